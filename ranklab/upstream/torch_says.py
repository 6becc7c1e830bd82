"""What PyTorch's errors say, read without PyTorch."""

import re

from ranklab.upstream.torch import type_name

_OUTLIVED = re.compile(
    r"Group .* is not registered, please create group|is not initialized in the world group map"
)
# What a rank says when it waited in vain, or when the other end of its connection went away.
_WAITED = re.compile(
    r"[Tt]imed out|[Tt]imeout|Connection (closed|reset|refused)|pair closure|Broken pipe"
    r"|to pass monitoredBarrier"
)
# Parts of Gloo's messages that say nothing to a reader, and differ from rank to rank.
_NOISE = re.compile(
    r"\[/\S*\.(?:cc|cpp|h):\d+\] | \[[0-9a-f.:]+\]:\d+| This is typically caused by.*"
    r"|\[enforce fail at \S+\] err == 0\. ",
    re.S,
)
_ABORTED = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
_WORDS_OF_CPP = re.compile(r"what\(\): +(.*)")
# What the checks say on each rank: what this one calls, and then, not always rightly (a barrier is
# called something else), what another one does.
_FINGERPRINT = re.compile(
    r"Rank \d+ is running collective: CollectiveFingerPrint\((.*?)\), but Rank \d+ is running ",
    re.S,
)
_IN_A_WORKER = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\nOriginal Traceback")


def waited_in_vain(message):
    """Does it say that a rank waited in vain, or that the other end of its connection went away?

    Without it: an error names every rank as a cause, not the one that failed or came late.
    """
    return _WAITED.search(message) is not None


def timed_out(message):
    """Does it say that the time was up, and not only that another rank went away?

    Without it: the error of a deadlock quotes the rank that knows least.
    """
    return "Timed out" in message


def without_noise(message):
    """Leave out of a message what says nothing to a reader, and differs from rank to rank.

    Without it: one failure of all ranks is told once for each, with addresses and file names.
    """
    return _NOISE.sub("", message).strip()


def has_no_world(message):
    """Does it say that there is no process group?

    Without it: who has destroyed it is not told to call `reset`.
    """
    return "Default process group has not been initialized" in message


def has_a_world(message):
    """Does it say that there is a process group already?

    Without it: who calls `init_process_group` in a cell is not told that the lab has done so.
    """
    return "initialize the default process group twice" in message


def group_is_over(message):
    """Does it say that a group's process group was ended?

    Without it: who uses a group from before `reset` is not told to make it again.
    """
    return _OUTLIVED.search(message) is not None


def words_of_cpp(output):
    """Return what C++ printed of the exception that ended a process; "" if nothing.

    Without it: the error does not say what a rank died of.
    """
    return next(reversed(_WORDS_OF_CPP.findall(output)), "")


def does_not_fit(message):
    """Return (bytes that came, bytes that fit) where Gloo says that a message does not; or None.

    Without it: the error does not say why Gloo aborted a rank.
    """
    found = _ABORTED.search(message)
    return found and (found[1], found[2])


def called_by_checks(message):
    """Return what the rank called on which torch's own checks found a mismatch; or None.

    {"name": "all_reduce", "shape": "[3]" or "", "dtype": "float32" or ""}.

    Without it: `Ranks(debug=True)` shows each rank's own words in place of one sentence.
    """
    found = _FINGERPRINT.search(message)
    if not found:
        return None
    text = found[1].replace("OpType", ", OpType")  # torch forgets this comma
    known = dict(re.findall(r"(\w+)=(\[.*?\]|[^,\]]*)", text))
    name = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather"}.get(known.get("OpType"))
    name = name or known.get("OpType", "a collective").lower()
    dtype = type_name(known.get("TensorDtypes", ""))
    return {"name": name, "shape": known.get("TensorShape", ""), "dtype": dtype}


def is_of_a_worker(message):
    """Is it the text of an exception in a DataLoader's worker?

    Without it: a wrong answer that fails there (chapter 10) is told without the reader's line.
    """
    return _IN_A_WORKER.match(message) is not None
