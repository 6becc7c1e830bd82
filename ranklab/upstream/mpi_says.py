"""What MPICH and its mpiexec write when something ends, read without MPI."""

import re

_ABORT = re.compile(r"^(?:Abort\(\d+\).*?: *)?((?:application called|Fatal error in).*)", re.M)
_ASSERTION = re.compile(r"^(Assertion failed in file .*)", re.M)
# "Message truncated, error stack:", then a line for each function of MPICH, the last with a reason.
_STACK = re.compile(r", error stack:\n(?:\w+\(\d+\)\.*: ?.*\n)*\w+\(\d+\)\.*: ?(.*)")


def without_stack(message):
    """Return what an error of MPI says, without the functions of MPICH on the way to it.

    Without it: errors of MPI take ten lines, with addresses that differ from rank to rank.
    """
    return _STACK.sub(r": \1", message)


def words(output):
    """Return why MPI ended a process, of what that wrote; "" where it is not MPI's doing.

    Without it: the error of a rank that MPI ended says an exit code and no reason.
    """
    output = without_stack(output)
    found = _ABORT.search(output) or _ASSERTION.search(output)
    return f"MPI: {found[1].strip()}" if found else ""
