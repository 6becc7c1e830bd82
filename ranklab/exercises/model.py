"""What an exercise is, as the files of `ranklab.checks` write it down."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One call of the answer.

    what: the case in words; a report adds how many ranks there are. make(rank, world_size): the
    tuple of arguments of one rank, made afresh at each call, and always the same. ranks: how many
    there are. hint: what is said in place of the exercise's own hint where this case is wrong.
    """

    what: str
    make: Callable[[int, int], tuple]
    _: KW_ONLY
    ranks: int = 4
    hint: str = ""

    def __post_init__(self):
        if not callable(self.make):
            raise TypeError(f"Case {self.what!r}: make is a function of (rank, world_size).")
        if not isinstance(self.ranks, int) or self.ranks < 1:
            raise ValueError(f"Case {self.what!r}: ranks={self.ranks!r} is not a number of ranks.")


@dataclass(frozen=True)
class Seen:
    """What came of one case, for judges and for the tests of mistakes. Lists are in rank order.

    happened: "returned" on all ranks, or else "error", "stuck" (ranks wait in vain), "slow" (over
    the limit), "died", "changed" (the arguments). results: empty unless all returned. error: what
    was raised, "IndexError: list index out of range". seconds: what the slowest rank took. found:
    what the report is on (`of` of a Finding), such as "value", or "judge" where the results are as
    expected and the judge found something else.

    Only with trace=True: sent, the bytes that each rank sent (for collectives, what the usual
    algorithm sends); messages, how many it sent; collectives, {name: calls} of each rank.
    """

    case: Case
    inputs: list
    results: list
    expected: list
    happened: str = "returned"
    error: str = ""
    seconds: float = 0.0
    found: str = ""
    sent: list | None = None
    messages: list | None = None
    collectives: list | None = None


class Mistake:
    """What a reader who made this mistake should be told, and `wrong` answers that make it.

    A wrong answer is {text: other text}, edits of the exercise's solution, each text being there
    once; or a function or a class; or a tuple of them, where the exercise wants several. The tests
    hand in each of them, and it must be told the sentence.

    happened: what becomes of such an answer (see Seen). "returned": its result is wrong, and a
    reader whose result is the same has made the mistake; they are run to see that. All others
    ("stuck", "error", ...) are never run. test(seen): what has to be true of an answer besides, of
    its error, say. A mistake with a test is known by that alone, and not run either. An exception
    in it means False.
    """

    def __init__(self, sentence, *wrong, happened="returned", test=None):
        self.sentence, self.wrong, self.test = sentence, wrong, test
        self.happened = (happened,) if isinstance(happened, str) else tuple(happened)

    @property
    def runs(self):
        """Is it found out by running it?"""
        return self.test is None and self.happened == ("returned",)

    def fits(self, seen):
        """Is what was `seen` enough to know the mistake by?"""
        if self.runs or seen.happened not in self.happened:
            return False
        try:
            return self.test is None or bool(self.test(seen))
        except Exception:
            return False


@dataclass(frozen=True)
class Exercise:
    """An answer that is run on ranks.

    cases: the first is the one that the exercise's text shows. twin(inputs): from the arguments of
    each rank to the result of each, in rank order, without ranks or by what PyTorch has; None where
    only the judge decides. hint: one sentence, where no mistake is recognized. mistakes: the first
    that fits is said. also_right: answers that are right in another way than the solution, written
    as those of a Mistake; the tests run them.

    judge(seen): a sentence that says what is wrong, or None. drive(answer, *args): what runs on a
    rank in place of answer(*args), and returns the result. in_place: the answer changes its first
    argument, and that is compared. trace: does the judge or a test need what was sent? trains: is
    an optimizer or DDP made, which the ranks had better import before the answer's seconds are
    counted? limit: seconds that a case may take. too_slow(seen): a sentence on the time that a
    right answer took, or None; a case is run again before that counts, as the machine may have been
    busy. tolerance: (relative, absolute) for floats; by default torch's own. answers: how many
    functions and classes `check` is given; from 2 up, `drive` gets a tuple of them. gaps: how many
    the stub has, where the check has something to say as soon as one is filled in; 0: where one of
    the answers has none left. name: that of its file.
    """

    cases: Sequence[Case]
    twin: Callable[[list], list] | None
    _: KW_ONLY
    hint: str
    mistakes: Sequence[Mistake] = ()
    also_right: Sequence[Any] = ()
    judge: Callable[[Seen], str | None] | None = None
    too_slow: Callable[[Seen], str | None] | None = None
    drive: Callable[..., Any] | None = None
    in_place: bool = False
    trace: bool = False
    trains: bool = False
    limit: float = 10.0
    tolerance: tuple[float, float] | None = None
    answers: int = 1
    gaps: int = 0
    name: str = ""

    def __post_init__(self):
        if not self.cases:
            raise ValueError("The exercise has no cases.")
        if self.twin is None and self.judge is None:
            raise ValueError("The exercise has neither a twin nor a judge.")

    @property
    def ranks(self):
        """The most ranks that a case asks for."""
        return max(case.ranks for case in self.cases)


@dataclass(frozen=True)
class Choice:
    """A prediction: a function without arguments that returns one of a few letters.

    right: that letter. why: for each other letter, what speaks against it. because: why the right
    one is right, said once it was chosen.
    """

    right: str
    why: dict[str, str]
    because: str
    name: str = ""  # that of its file

    def __post_init__(self):
        if self.right in self.why:
            raise ValueError(f"The choice {self.right!r} is right, and yet in `why`.")

    @property
    def letters(self):
        """All choices, in order."""
        return sorted([self.right, *self.why])
