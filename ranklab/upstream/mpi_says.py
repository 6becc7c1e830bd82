"""What MPICH and its mpiexec write when something ends, read without MPI."""

import re

_ABORT = re.compile(r"^(?:Abort\(\d+\).*?: *)?((?:application called|Fatal error in).*)", re.M)
_ASSERTION = re.compile(r"^(Assertion failed in file .*)", re.M)
# "Message truncated, error stack:", then a line for each function of MPICH, the last with a reason.
_STACK = re.compile(r", error stack:\n(?:\w+\(\d+\)\.*: ?.*\n)*\w+\(\d+\)\.*: ?(.*)")
# In the block of text in which mpiexec says which process ended first.
_ENDED_FIRST = re.compile(r"PID (\d+) RUNNING AT.*?EXIT CODE: (\d+)", re.S)
_BY_SIGNAL = re.compile(r"THE EXIT STRING: .*\(signal (\d+)\)")


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


def end_of(pid, output):
    """Return (exit code or None, did mpiexec end it?) of a process; output: of mpiexec.

    Without it: ranks that are not forked are all said to have died, and not which one died first.
    """
    first = _ENDED_FIRST.search(output)
    if not first:
        return None, False
    if int(first[1]) != pid:
        return -9, True
    signal = _BY_SIGNAL.search(output)
    return -int(signal[1]) if signal else int(first[2]), False
