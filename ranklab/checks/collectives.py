"""What the exercises of chapter 07 check: collectives put to use, and built from messages."""

from itertools import pairwise

import torch

from ranklab.exercises import Case, Choice, Exercise, Hint

rank_2_holds = Choice(
    "rank_2_holds",
    right="c",
    why={
        "a": "That is what rank 2 began with. In an all-to-all a rank keeps only the part that is "
        "for itself.",
        "b": "That is what everyone would hold after an all-gather of the parts 0.",
        "d": "These are sums: a reduce-scatter. An all-to-all adds nothing.",
    },
    because="Rank 2 gets part 2 of everyone, in rank order: a column of the table whose rows the "
    "ranks held before.",
)


def _more_than_one_call(seen):
    """A sentence if a rank made more than one collective call."""
    most = max(sum(calls.values()) for calls in seen.collectives)
    if most > 1:
        return (
            f"The result is right, and it took {most} collective calls. One is enough: what goes "
            "together travels together."
        )
    return None


# total_accuracy --------------------------------------------------------------------------------


def _counts(what, *pairs):
    """Every rank's (right, seen)."""
    return Case(what, lambda rank, world_size: pairs[rank], ranks=len(pairs))


def _mean_of_accuracies(inputs):
    return sum(right / seen for right, seen in inputs) / len(inputs)


total_accuracy = Exercise(
    "total_accuracy",
    cases=[
        _counts("9 of 10 right and 1 of 30", (9, 10), (1, 30)),
        _counts("one rank has seen nothing", (3, 4), (0, 0), (1, 1)),
        _counts("nobody is ever right", (0, 7), (0, 2), (0, 1), (0, 9)),
        _counts("alone", (2, 3)),
        _counts("all have seen some", (1, 2), (30, 40), (5, 5), (17, 100)),
    ],
    expected=lambda inputs: (
        [sum(right for right, _ in inputs) / sum(seen for _, seen in inputs)] * len(inputs)
    ),
    hints=[
        Hint(
            lambda seen: abs(seen.results[0] - _mean_of_accuracies(seen.inputs)) < 1e-6,
            "That is the mean of the ranks' accuracies, as if all had seen as many. Add up what "
            "can be added: the counts.",
        ),
        Hint(
            lambda seen: "ZeroDivisionError" in seen.error,
            "A rank that has seen nothing has no accuracy of its own. Divide last.",
        ),
        Hint(
            lambda seen: seen.results[0] > 1,
            "An accuracy above 1: are both counts summed over all ranks?",
        ),
    ],
    hint="Which two numbers can be added over the ranks, and what is to be done with the sums?",
    judge=_more_than_one_call,
    trace=True,
)


# largest ---------------------------------------------------------------------------------------


def _tensors(what, *rows, dtype=torch.float32):
    """Every rank's x."""
    return Case(
        what, lambda rank, world_size: (torch.tensor(rows[rank], dtype=dtype),), ranks=len(rows)
    )


def _largest(inputs):
    maxima = [x.max().item() for (x,) in inputs]
    return [(max(maxima), maxima.index(max(maxima)))] * len(inputs)


def _of_last_with_it(inputs):
    maxima = [x.max().item() for (x,) in inputs]
    return len(maxima) - 1 - maxima[::-1].index(max(maxima))


largest = Exercise(
    "largest",
    cases=[
        _tensors("the largest on rank 2", [3.0, 1.0], [4.0, 1.0], [5.0, 9.0], [2.0, 6.0]),
        _tensors("the same on two ranks", [1.0], [7.0, 2.0], [0.0, 7.0]),
        _tensors("negative numbers only", [-5.0, -3.5], [-4.0], [-2.5, -9.0]),
        _tensors("of different lengths", [0.0], [1.0, 2.0, 3.0, 2.5], [2.0, 2.0]),
        _tensors("float64", [1.0, 1.0], [1.0, 1.0 + 1e-9], dtype=torch.float64),
        _tensors("alone", [2.0, 8.0, 4.0]),
    ],
    expected=_largest,
    hints=[
        Hint(
            lambda seen: seen.happened == "changed",
            "dist.all_reduce works in place: give it a tensor of your own.",
        ),
        Hint(
            lambda seen: (
                seen.results[0][0] == seen.expected[0][0]
                and seen.results[0][1] == _of_last_with_it(seen.inputs)
                and seen.results[0][1] != seen.expected[0][1]
            ),
            "Where several ranks have the largest number, the lowest of them is asked for.",
        ),
        Hint(
            lambda seen: (
                seen.results and all(r[0] == e[0] for r, e in zip(seen.results, seen.expected))
            ),
            "The number is right. Who has it? A maximum over the ranks forgets where it came from; "
            "a list of everybody's maxima does not.",
        ),
        Hint(
            lambda seen: seen.results and max(x.max().item() for (x,) in seen.inputs) < 0,
            "All numbers are negative here. Where does the other one come from?",
        ),
    ],
    hint="First each rank's own maximum; then everyone needs everyone's.",
    judge=_more_than_one_call,
    trace=True,
)


# all_lists -------------------------------------------------------------------------------------


def _lists(what, *lists):
    return Case(what, lambda rank, world_size: (list(lists[rank]),), ranks=len(lists))


all_lists = Exercise(
    "all_lists",
    cases=[
        _lists("lists of 2, 0, 3 and 1 numbers", [1, 2], [], [3, 4, 5], [6]),
        _lists("nobody has any", [], [], []),
        _lists("numbers that are zero", [0, 0], [1, 0], [0]),
        _lists("very large numbers", [2**40], [3**50, -1]),
        _lists("alone", [5, 6]),
    ],
    expected=lambda inputs: [[numbers for (numbers,) in inputs]] * len(inputs),
    hints=[
        Hint(
            lambda seen: any(r is None for r in seen.results) and seen.results[0] is not None,
            "Only one rank has the lists. All of them are to have them.",
        ),
        Hint(
            lambda seen: seen.results[0] == [n for (numbers,) in seen.inputs for n in numbers],
            "All numbers are there, in one long list. Nobody can tell any more whose they are.",
        ),
        Hint(
            lambda seen: (
                len({len(numbers) for numbers in seen.results[0]}) == 1
                and len(seen.results[0]) == len(seen.inputs)
            ),
            "All lists are of one length now. What was added to fill them up?",
        ),
        Hint(
            lambda seen: bool(seen.error),
            "A collective of tensors wants the same shape from every rank. There is one for "
            "anything that Python can pickle.",
        ),
    ],
    hint="There is a collective for objects that does just this.",
)


# all_max ---------------------------------------------------------------------------------------


def _numbers(what, length, ranks, dtype=torch.float32):
    """Every rank's x: its largest number is at another place on each."""

    def make(rank, world_size):
        x = (torch.arange(length) * (rank + 3) * 7 + 5 * rank) % 23 - 30
        return (x.to(dtype),)

    return Case(what, make, ranks=ranks)


def _stacked(seen):
    return torch.stack([x for (x,) in seen.inputs])


def _rounds(seen):
    """A sentence if a rank sent more messages than the barrier does."""
    n, most = len(seen.inputs), max(seen.messages)
    needed = (n - 1).bit_length()
    if any(seen.collectives):
        return "The numbers are right. But build it from messages: exchange is all that you need."
    if most > needed:
        return (
            f"The numbers are right, but a rank sent {most} messages where {needed} would do: the "
            "distance doubles from round to round."
        )
    return None


all_max = Exercise(
    "all_max",
    cases=[
        _numbers("3 numbers", 3, 4),
        _numbers("4 numbers", 4, 3),
        _numbers("5 numbers", 5, 2),
        _numbers("no number at all", 0, 2),
        _numbers("int64", 6, 4, torch.int64),
        _numbers("bfloat16", 3, 2, torch.bfloat16),
        _numbers("2 numbers", 2, 1),
    ],
    expected=lambda inputs: (
        [
            torch.stack([x for (x,) in inputs]).max(0).values
            if inputs[0][0].numel()
            else inputs[0][0]
        ]
        * len(inputs)
    ),
    in_place=True,
    hints=[
        Hint(
            lambda seen: seen.happened == "stuck",
            "Everyone sends and receives in the same round: one after the other is a circle. That "
            "is what exchange is for.",
        ),
        Hint(
            lambda seen: bool(seen.error),
            "The ranks stand in a circle: after the last one comes rank 0. And those who send to "
            "the right receive from the left.",
        ),
        Hint(
            lambda seen: all(torch.equal(r, x) for r, (x,) in zip(seen.results, seen.inputs)),
            "Nobody's x has changed. The answer is what stands in x afterwards, not what is "
            "returned.",
        ),
        Hint(
            lambda seen: (
                bool((seen.results[0] > _stacked(seen).max(0).values).any())
                or bool((seen.results[0] < _stacked(seen).min(0).values).any())
            ),
            "There are numbers that nobody had. What is to be done with what comes: add, or take "
            "the larger one?",
        ),
        Hint(
            lambda seen: bool(seen.results),
            "Numbers are missing. In the round with `step`, how far away is your partner, and do "
            "you keep the larger of both?",
        ),
    ],
    hint="It is the barrier, with a message in it that says something.",
    judge=_rounds,
    trace=True,
)


# own_scan --------------------------------------------------------------------------------------


def _values(what, shape, ranks, dtype=torch.float32, transposed=False):
    """Every rank's x, of a shape; transposed: not in one piece in memory."""

    def make(rank, world_size):
        x = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5 + 2 * rank + 1
        x = x.to(dtype)
        return (x.t() if transposed else x,)

    return Case(what, make, ranks=ranks)


def _prefix_sums(inputs):
    sums = [inputs[0][0].clone()]
    for (x,) in inputs[1:]:
        sums.append(sums[-1] + x)
    return sums


def _all_equal(results, expected):
    return all(torch.equal(one, other) for one, other in zip(results, expected))


def _two_of_each(seen):
    xs = [x for (x,) in seen.inputs]
    return [xs[0], *(one + other for one, other in pairwise(xs))]


own_scan = Exercise(
    "own_scan",
    cases=[
        _values("1 number", [1], 4),
        _values("int64", [4], 3, torch.int64),
        _values("5 numbers", [5], 2),
        _values("no number at all", [0], 3),
        _values("a matrix that is not in one piece", [2, 3], 4, torch.float64, transposed=True),
        _values("bfloat16", [3], 4, torch.bfloat16),
        _values("1 number", [1], 1),
        _values("2 × 2 numbers", [2, 2], 2),
    ],
    expected=_prefix_sums,
    hints=[
        Hint(
            lambda seen: seen.happened == "stuck",
            "A scan is a row, not a circle: for whom does rank 0 have to wait?",
        ),
        Hint(
            lambda seen: seen.happened == "died" or "size" in seen.error,
            "A message must fit into its box. What has the same shape and type as x?",
        ),
        Hint(
            lambda seen: "contiguous" in seen.error.lower() or "dense" in seen.error.lower(),
            "This x is not in one piece in memory. send of chapter 7 packs it; dist.send wants "
            "x.contiguous().",
        ),
        Hint(
            lambda seen: _all_equal(
                seen.results, [e - x for e, (x,) in zip(seen.expected, seen.inputs)]
            ),
            "These are the sums of what the ranks before have. A rank's own x is to be in it, too.",
        ),
        Hint(
            lambda seen: (
                len(seen.results) > 1 and _all_equal(seen.results, [seen.expected[-1]] * 9)
            ),
            "Every rank has the sum of all. Rank r should have that of ranks 0 to r.",
        ),
        Hint(
            lambda seen: len(seen.results) > 2 and _all_equal(seen.results, _two_of_each(seen)),
            "Each rank adds its left neighbor's x. What does the rank after the next one need to "
            "be sent?",
        ),
    ],
    hint="Who needs what from whom? Let one partial sum travel along the row of ranks.",
    judge=lambda seen: (
        "The numbers are right. But build it from messages, with send and recv alone."
        if any(seen.collectives)
        else None
    ),
    trace=True,
)
