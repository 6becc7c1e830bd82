"""Where in the reader's own code a rank is or was: "    line 3 of an earlier cell, in f: y = f(x)".

It comes from the text of a traceback, or from frames. In both, a `%%px` cell is a file that only
the rank knows, and Python's line 1 is not the editor's: there, line 1 is `%%px`.
"""

import linecache
import os
import re
from dataclasses import dataclass

from ranklab.upstream import ipython

SHOWN = 3  # places at each end of a long way
NOT_THE_READERS = re.compile(
    r"/(?:site|dist)-packages/(?!ranklab/taught/)|/lib/python\d|/ranklab/(?!taught/)|<string>|<frozen|\.pyx$"
)


@dataclass(frozen=True)
class LastCell:
    """The last `%%px` cell, for ranks that can say no more than a number of a line."""

    text: str = ""
    first_line: int = 2  # what the reader's editor calls the first line

    def line(self, number):
        """Return the line that Python counts as `number`, from 1."""
        lines = self.text.lstrip("\n").splitlines()  # IPython drops empty lines ahead
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def in_traceback(traceback, first_line=None):
    """Return the lines of the reader's own code that led to the error, outermost first.

    The first cell in the traceback is the one that ran, if `first_line` is given; the others are
    `%%px` cells that ran before, whose code begins on the second line.
    """
    lines = traceback.splitlines()
    said, this_cell = [], None
    for i, text in enumerate(lines):
        header = ipython.header(text)
        if header is None or NOT_THE_READERS.search(header.file):
            continue
        number, file = header.line, header.file
        # A cell of this notebook is no file that the rank could read; the kernel knows it.
        source = linecache.getline(file, number).strip() if file else ""
        source = source or ipython.source_below(lines[i + 1 : i + 12])
        where = ""
        if header.cell:
            if first_line is not None and this_cell is None:
                this_cell = header.cell
            number, where = _in_cell(number, header.cell == this_cell, first_line)
        elif not ipython.is_file_of_cell(file):
            where = f" of {os.path.basename(file)}"
        said.append(_line(f"line {number}{where}", header.function, source))
    return "\n".join(_shortened(said))


def in_frames(frames, cell):
    """Return the lines of the reader's own code that a rank is in, outermost first.

    frames: of the reader, outermost first: {"file": ..., "line": ..., "in": the function or "",
    "source": the line, where the rank knows it}. cell: the LastCell.
    """
    return "\n".join(_shortened([_line(*place) for place in _way(frames, cell)]))


def outermost(frames, cell):
    """Return the first of them without its source: "line 3"; "" where there is none."""
    return next((where for where, *_ in _way(frames, cell)), "")


def _way(frames, cell):
    """Yield ("line 3 of an earlier cell", the function or "", the source) of each frame."""
    this_cell = None
    for frame in frames:
        file, number, where = frame["file"], frame["line"], ""
        source = linecache.getline(file, number).strip()  # a cell of this notebook, or a file
        if ipython.is_file_of_cell(file) and not source:  # a %%px cell: only the rank knows it
            this_cell = this_cell or file
            here = file == this_cell
            source = cell.line(number) if here else ""
            number, where = _in_cell(number, here, cell.first_line)
        elif not ipython.is_file_of_cell(file):
            where = f" of {os.path.basename(file)}"
        yield f"line {number}{where}", frame["in"], frame["source"] or source


def _in_cell(number, is_this_cell, first_line):
    """Return (the editor's number of a line of a `%%px` cell, what to say of the cell)."""
    if is_this_cell:
        return number + first_line - 1, ""
    return number + 1, " of an earlier cell"


def _line(where, function, source):
    inside = f", in {function}" if function else ""
    return f"    {where}{inside}: {source}"


def _shortened(places):
    """Leave out the middle of a long way through the reader's functions, as in a recursion."""
    if len(places) <= 2 * SHOWN:
        return places
    left_out = f"    ... and {len(places) - 2 * SHOWN} more"
    return [*places[:SHOWN], left_out, *places[-SHOWN:]]
