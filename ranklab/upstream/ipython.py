"""What is used of IPython and ipykernel without being promised: how they run code, and tell errors.

IPython is imported where it is used: who reads an error's text does not need it.
"""

import re
import sys
import warnings
from dataclasses import dataclass

# How IPython heads a frame: "Cell In[3], line 2 in f" or "File ~/a/b.py:2 in f"; where the reader
# has chosen another `%xmode`, "Cell In[3], line 2, in f(x)".
_CELL = re.compile(r"\s*(?:Cell|Input) In ?(\[\d+\])")
_FILE = re.compile(r"\s*File (\S+\.py)[:,]")
_LINE = re.compile(r"(?:line |\.py:)(\d+)")
_FUNCTION = re.compile(r"\d,? in ([^\s(<]+)")
_ARROW = re.compile(r"-+> ?(\d+) (.*)")
_FILE_OF_CELL = re.compile(r"ipykernel_\d+|<ipython-input")


def is_file_of_cell(file):
    """Is `file` what a kernel calls the text of a cell?

    Without it: an error names a made-up file in place of the cell, and a line that is one off.
    """
    return _FILE_OF_CELL.search(file) is not None


@dataclass(frozen=True)
class Header:
    """A frame of a traceback, by its first line: in a cell ("[3]") or a file ("" where it is not).

    function: "" outside of one.
    """

    cell: str
    file: str
    line: int
    function: str


def header(text):
    """Return the Header that this line of a traceback is, or None.

    Without it: an error on the ranks does not say on which line of the cell it was.
    """
    cell, file, line = _CELL.match(text), _FILE.match(text), _LINE.search(text)
    if not line or not (cell or file):
        return None
    function = _FUNCTION.search(text)
    return Header(
        cell[1] if cell else "",
        file[1] if file else "",
        int(line[1]),
        function[1] if function else "",
    )


def source_below(lines):
    """Return the line that the arrow points to; a SyntaxError has no arrow, only the line.

    lines: of the traceback, what is below a header.

    Without it: an error on the ranks does not show the line.
    """
    for line in lines:
        if arrow := _ARROW.match(line):
            return arrow[2].strip()
        if _CELL.match(line) or _FILE.match(line):
            break
    return lines[0].strip() if lines and lines[0].startswith("  ") else ""


def runs_code(frame):
    """Is it the frame in which IPython runs a cell, or ipyparallel's engine a call?

    Without it: `ranks.where()` takes a rank that runs for idle, and frees nobody.
    """
    return frame.f_code.co_name in ("run_code", "do_apply")


def tells_error(frame):
    """Is it the frame in which IPython writes the error that a cell ended in?

    Without it: a rank that writes a long error is taken for stuck.
    """
    return frame.f_code.co_name == "showtraceback"


def answer_requests(kernel, name, answer):
    """Have `answer(stream, ident, request)` reply to a kind of request, in the control thread.

    Without it: no rank can say where it is while it runs a cell, and the doctor is gone.
    """
    kernel.control_handlers[name] = answer


def in_control_thread(kernel, act, seconds):
    """Call `act()` every so many seconds in the thread that does not wait for cells.

    Without it: `ranks.where()` does not know for how long a rank has been there.
    """
    from tornado.ioloop import PeriodicCallback

    kernel.control_thread.io_loop.add_callback(lambda: PeriodicCallback(act, 1e3 * seconds).start())


def wrap_cells(kernel, wrapped):
    """Put `wrapped(do_execute)` in the place of what runs a cell, and returns the reply to it.

    Without it: collectives that do not match, and are not noticed by Gloo, give wrong results.
    """
    kernel.do_execute = wrapped(kernel.do_execute)


def keep_silent_on_exit():
    """Let a rank that ends by `sys.exit` print no advice on how to leave a terminal.

    Without it: that advice stands in the page.
    """
    warnings.filterwarnings("ignore", "To exit: use", UserWarning)


def last_traceback(shell):
    """Return the traceback of the last error, for SystemExit, of which IPython tells no line.

    Without it: the error of a rank that called `sys.exit` does not say where.
    """
    error = sys.last_value
    return shell.InteractiveTB.structured_traceback(
        type(error), error, error.__traceback__, tb_offset=1
    )


def write_short_tracebacks(shell):
    """Let an error be told by Python's own traceback, without the lines around those of its frames.

    To show these, IPython parses the files of all frames: seconds, and a core for each rank.

    Without it: a cell that fails in torch's code ends seconds later.
    """
    shell.InteractiveTB.set_mode("Plain")
