"""What goes wrong in the lab, as errors that a reader can use."""


class SaidInWords:
    """An error whose message says it all: a notebook shows that, and none of the lab's own code."""

    def _render_traceback_(self):  # IPython's hook
        return [f"\x1b[31m{type(self).__name__}\x1b[39m: {self}"]


class ArgumentError(SaidInWords, ValueError):
    """Something was asked for that cannot be."""


class RankError(SaidInWords, RuntimeError):
    """Something failed on one rank or more. `tracebacks` has, by rank, the whole traceback.

    failures: what happened to each, for the lab's own use.
    """

    def __init__(self, message, failures=()):
        super().__init__(message)
        self.failures = tuple(failures)

    @property
    def tracebacks(self):
        return {failure.rank: failure.traceback for failure in self.failures}


class MissingOnRanks(RankError, KeyError):
    """A name was asked for that some ranks do not have."""

    __str__ = RuntimeError.__str__  # a KeyError would show the sentence in quotes


def named(ranks):
    """Return "rank 1" or "ranks 0, 2 and 3"."""
    *most, last = [str(rank) for rank in sorted(ranks)]
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
