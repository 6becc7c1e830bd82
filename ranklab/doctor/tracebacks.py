"""Two things that IPython's tracebacks on a rank get wrong or leave out."""

import linecache
import sys

from IPython.core import ultratb


def whole(shell):
    """Return the traceback of the last error, for SystemExit, of which IPython tells no line."""
    error = sys.last_value
    return shell.InteractiveTB.structured_traceback(
        type(error), error, error.__traceback__, tb_offset=1
    )


def show_the_line_that_raised():
    """Let IPython name the line that raised, not the one that a `finally` ran last.

    It confuses the two where a frame's file is on no disk, which goes for every cell. The way that
    is right takes long, too long for the thousand frames of a recursion.
    """
    length_of_file = getattr(ultratb, "get_line_number_of_frame", None)

    def length(frame):
        is_cell = frame.f_code.co_filename in linecache.cache
        long = isinstance(getattr(sys, "last_value", None), RecursionError)
        return 0 if is_cell and not long else length_of_file(frame)

    if length_of_file is not None:
        ultratb.get_line_number_of_frame = length
