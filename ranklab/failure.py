"""When something goes wrong on the ranks: one short message instead of a traceback per rank."""

import linecache
import re
from dataclasses import dataclass

COLOR = re.compile(r"\x1b\[[0-9;]*m")
# "Cell In[3], line 2", "File /tmp/ipykernel_12/34.py:2, in f(x)", and what older IPythons write.
CELL = re.compile(r"^(?:Cell In ?\[|Input In ?\[|File .*(?:ipykernel_\d+|<ipython-input)).*")
LINE = re.compile(r"(?:line |\.py:)(\d+)")
FUNCTION = re.compile(r", in ([^\s(]+)\(")
ARROW = re.compile(r"^-+> ?(\d+) (.*)")
# What a rank says when it waited in vain, or when the other end of its connection went away.
WAITED = re.compile(r"[Tt]imed out|timeout|Connection (closed|reset)|pair closure|Broken pipe")
# "[/__w/pytorch/.../pair.cc:553] " and "[127.0.0.1]:3761" say nothing to a reader.
PLACE_IN_GLOO = re.compile(r"\[/[^\]]*\.(?:cc|cpp|h):\d+\] ")
ADVERTISEMENT = re.compile(r" This is typically caused by a remote worker crashing.*", re.S)


class RankError(RuntimeError):
    """Something failed on one rank or more. `tracebacks` has, by rank, the whole traceback."""

    def __init__(self, message, tracebacks=None):
        super().__init__(message)
        self.tracebacks = tracebacks or {}

    def _render_traceback_(
        self,
    ):  # what a notebook shows: the message, and nothing of the lab's own
        return [f"{type(self).__name__}: {self}"]


class MissingOnRanks(RankError, KeyError):
    """A name was asked for that some ranks do not have."""

    __str__ = RuntimeError.__str__  # a KeyError would show the sentence in quotes


@dataclass(frozen=True)
class Failure:
    """What happened to one rank: `kind` is "error", "waited", "died", "busy" or "aborted"."""

    rank: int
    kind: str
    error: str = ""  # "ValueError: x must be positive"
    place: str = ""  # "line 3: y = f(x)"
    traceback: str = ""


def from_remote(rank, remote, first_line=1):
    """Read an ipyparallel RemoteError. `first_line` is the number of the cell's first line of code."""
    if remote.ename == "EngineError":
        return Failure(rank, "died")
    text = COLOR.sub("", remote.traceback or "")
    message = ADVERTISEMENT.sub("", PLACE_IN_GLOO.sub("", str(remote.evalue))).strip()
    kind = "waited" if WAITED.search(message) else "error"
    error = f"{remote.ename}: {message}" if message else remote.ename
    return Failure(rank, kind, error, place_of(text, first_line), text)


def place_of(traceback, first_line):
    """Return the lines of the reader's own code that led to the error, outermost first."""
    places = []
    lines = traceback.splitlines()
    for i, header in enumerate(lines):
        if not CELL.match(header):
            continue
        number = LINE.search(header)
        function = FUNCTION.search(header)
        source = ""
        for line in lines[i + 1 : i + 12]:
            if arrow := ARROW.match(line):
                number, source = arrow, arrow[2].strip()
                break
        if not number:
            continue
        n = int(number[1])
        if header.startswith("File ") and not source:
            file = header[len("File ") :].split(".py:")[0].strip() + ".py"
            source = linecache.getline(file, n).strip()
        if function and "<module>" not in function[1]:
            places.append(f"line {n} of {function[1]}: {source}")
        else:
            places.append(f"line {n + first_line - 1}: {source}")
    return "\n".join(f"    {place}" for place in places)


def named(ranks):
    """Return "rank 1" or "ranks 0, 2 and 3"."""
    *most, last = [str(rank) for rank in sorted(ranks)]
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


SAYS = {
    "error": "failed",
    "waited": "waited for another rank in vain",
    "died": "died: the process is gone",
    "busy": "did not answer: still busy, or stuck",
    "aborted": "did not start on this, because an earlier cell failed there",
}


def error_from(failures, name, done=()):
    """Make one RankError of what happened; `name` is what the reader calls the Ranks object."""
    paragraphs = []
    for kind in SAYS:  # causes before consequences
        alike = {}
        for failure in failures:
            if failure.kind == kind:
                alike.setdefault((failure.place, failure.error), []).append(failure.rank)
        for (place, error), ranks in alike.items():
            where = f", in\n{place}" if place else "."
            paragraphs.append(
                "\n".join(filter(None, [f"{named(ranks)} {SAYS[kind]}{where}", error]))
            )
    paragraphs.append(what_next({failure.kind for failure in failures}, name))
    tracebacks = {failure.rank: failure.traceback for failure in failures}
    return RankError("\n\n".join(filter(None, paragraphs)), tracebacks)


def what_next(kinds, name):
    """Return the sentence that says what to call next."""
    if "died" in kinds or "busy" in kinds:
        return f"Call {name}.restart(): it starts fresh processes, without the variables of these."
    if "waited" in kinds:
        return (
            f"The process group does not work any more. Call {name}.reset() for a new one: "
            "the variables stay."
        )
    return ""
