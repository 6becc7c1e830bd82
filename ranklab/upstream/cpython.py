"""What is used of CPython without being promised: texts that it writes, two tricks through C."""

import ctypes
import functools
import re
import signal

_MISSING = re.compile(
    r"NameError: name '(\w+)' is not defined|Can't get attribute '(\w+)' on <module '__main__'"
)
_IN_FILE_OF_A_CELL = re.compile(r" \(\d+\.py, line \d+\)$")
# The last that faulthandler writes: where Python began to run the engine, or that there is more.
_STACKS_END = re.compile(r"in _run_module_as_main|^  \.\.\.$", re.MULTILINE)
_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')
_FRAME_OF_TRACEBACK = re.compile(r'  File "(.+)", line (\d+), in (.+)(?:\n    (.+))?')
_RAISED = re.compile(r"^[\w.]+(?:: |$)", re.MULTILINE)  # "NameError: name 'x' is not defined"


def missing_name(text):
    """Return the name that an error says is not there, also to an unpickler; or "".

    Without it: an error does not say that a name is there in the notebook and not on the ranks.
    """
    found = _MISSING.search(text)
    return (found[1] or found[2]) if found else ""


def without_file_of_cell(message):
    """Return what a SyntaxError says, without the file that IPython made up for the cell.

    Without it: the number of a line that nobody can see stands behind a syntax error's message.
    """
    return _IN_FILE_OF_A_CELL.sub("", message)


def frames_of_stack(text):
    """Return [(file, line, function)] of what faulthandler wrote, innermost first.

    Without it: `ranks.where()` does not know the line of a rank in one long call of C.
    """
    return _FRAME.findall(text)


def is_whole_stack(text):
    """Has faulthandler written all of the main thread's stack?

    Without it: a look at a rank in one long call of C takes a second each time.
    """
    return _STACKS_END.search(text) is not None


def stacks_at_fault(text):
    """Return the stacks that faulthandler wrote at a fault such as SIGSEGV; "" without one.

    Without it: the error does not say in which line a rank died.
    """
    return text.rpartition("Fatal Python error")[2]


def stack_of_current_thread(text):
    """Return the stack of the thread in which the fault was, of all that faulthandler wrote.

    Without it: the error does not say in which function of a library a rank died.
    """
    return text.partition("Current thread")[2].partition("\n\n")[0]


def read_traceback(text):
    """Return (message, [(file, line, function, source)]) of a traceback's text, outermost first.

    Without it: what fails in a DataLoader's worker is told without the reader's line.
    """
    told = text.rpartition("Traceback (most recent call last):\n")[2]
    raised = _RAISED.search(told)
    return told[raised.end() :].strip() if raised else "", _FRAME_OF_TRACEBACK.findall(told)


def remember_source(file, text):
    """Let tracebacks find the text of a file that is on no disk.

    Without it: an error of an answer has no source lines.
    """
    import linecache

    lines = text.splitlines(keepends=True)
    linecache.cache[file] = (len(text), None, lines, file)  # without a time, it is kept


def is_cached(function):
    """Has `functools.lru_cache` made this function?

    Without it: an answer with a cache is "not packable".
    """
    return isinstance(function, type(functools.lru_cache(abs)))


def raise_in(thread, error):
    """Have `error`, a class, raised in a thread as soon as that runs Python.

    Without it: a rank that receives from anyone cannot be freed, and only `restart` helps.
    """
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    set_error(ctypes.c_ulong(thread), ctypes.py_object(error))


def when_it_goes_on(act):
    """Return a function that has `act()` called in the main thread when that next runs Python.

    Without it: a rank that makes many calls of MPI in a loop is taken for stuck in the first.
    """

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def call(_):
        act()
        return 0

    return functools.partial(ctypes.pythonapi.Py_AddPendingCall, call, None)


def when_aborted(act):
    """Have `act()` called as this process aborts; return what must be kept for as long.

    It is Python in a C handler of SIGABRT. That is right only where a thread of C++ aborts while
    all of Python's wait, as in Gloo: the handler waits for Python's lock, and gets it.

    Without it: the error does not say in which communication a message did not fit.
    """

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def handler(_):
        act()

    c_signal = ctypes.CDLL(None).signal
    c_signal.argtypes, c_signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    c_signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
    return handler
