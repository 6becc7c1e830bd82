"""What MPICH, its mpiexec and mpi4py tell by names and texts of their own, read without MPI."""

import re

# A rank that waits in MPICH computes all the time, so that four on two cores keep each other from
# their work. With this it sleeps between two looks: a seventh of a core in place of all of it, for
# 0.1 ms a message. (MPIR_CVAR_CH4_PROGRESS_THROTTLE, with MPICH 5.0.2, changes nothing.)
RESTING = "MPIR_CVAR_ENABLE_HEAVY_YIELD"
TOLD = ("PMI", "MPI_LOCAL", "HYDI")  # how the names of what mpiexec tells a process begin
FILE = "PMI_FD"  # names an open file, by which the process finds the others

_ABORT = re.compile(r"^(?:Abort\(\d+\).*?: *)?((?:application called|Fatal error in).*)", re.M)
_ASSERTION = re.compile(r"^(Assertion failed in file .*)", re.M)
# "Message truncated, error stack:", then a line for each function of MPICH, the last with a reason.
_STACK = re.compile(r", error stack:\n(?:\w+\(\d+\)\.*: ?.*\n)*\w+\(\d+\)\.*: ?(.*)")


def is_meant_by(version):
    """Is it MPICH whose mpiexec says this of its version?

    Without it: each rank under MPI imports torch by itself, and a start takes five times as long.
    """
    return "HYDRA" in version


def rank_in(environment):
    """Return the rank that mpiexec has told a process.

    Without it: engines that are forked take places in the world of MPI in another order.
    """
    return int(environment["PMI_RANK"])


def forget(environment, told):
    """Take out what mpiexec has told (TOLD), and note how many ranks are here as torchrun does.

    It is sent to the ranks by value, which need not have ranklab.

    Without it: a program of MPI that a rank starts takes itself for that rank.
    """
    if "MPI_LOCALNRANKS" in environment:
        environment["LOCAL_WORLD_SIZE"] = environment["MPI_LOCALNRANKS"]
    for name in [name for name in environment if name.startswith(told)]:
        del environment[name]


forget.__module__ = "__main__"  # else ipyparallel would look for it in this module


def is_of_mpi4py(frame):
    """Is it a frame of mpi4py's own code?

    Without it: `where()` says a line of mpi4py's in place of the reader's call.
    """
    return "/mpi4py/" in frame.f_code.co_filename


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
