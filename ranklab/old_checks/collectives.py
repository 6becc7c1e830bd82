"""What the exercises of chapter 07 check: collectives put to use, and built from messages."""

import math

import torch

from ranklab.checks._said import breaks_a_rule
from ranklab.old_checks._model import Case, Choice, Exercise, Hint

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
        Hint(breaks_a_rule, "Both counts fit into one tensor."),
        Hint(
            lambda seen: abs(seen.results[0] - _mean_of_accuracies(seen.inputs)) < 1e-6,
            "That is the mean of the ranks' accuracies, as if all had seen as many. Add up what "
            "can be added: the counts.",
        ),
        Hint(
            lambda seen: (
                "ZeroDivisionError" in seen.error or any(math.isnan(got) for got in seen.results)
            ),
            "A rank that has seen nothing has no accuracy of its own. Divide last.",
            when=("returned", "error"),
        ),
        Hint(
            lambda seen: seen.results[0] > 1,
            "An accuracy above 1: are both counts summed over all ranks?",
        ),
        Hint(
            lambda seen: True,
            "Every rank must make the call, also one that has seen nothing.",
            when=("stuck", "died"),
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


def _numbers_right(seen):
    """Is the first of each pair right, as far as float32 tells?"""
    pairs = list(zip(seen.results, seen.expected, strict=True))
    return bool(pairs) and all(math.isclose(r[0], e[0], rel_tol=1e-6) for r, e in pairs)


def _one_box(seen):
    """Do all ranks agree on the largest number of a rank, a wrong one, and find it in box 0?"""
    (number, who), *others = seen.results
    maxima = [x.max().item() for (x,) in seen.inputs]
    return all(other == (number, who) for other in others) and (
        who,
        number in maxima,
        number == max(maxima),
    ) == (0, True, False)


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
            lambda seen: True,
            "dist.all_reduce works in place: give it a tensor of your own.",
            when=("changed",),
        ),
        Hint(
            lambda seen: len({len(x) for (x,) in seen.inputs}) > 1,
            "A collective of tensors wants the same shape from every rank. x has another length on "
            "each; `mine` has not.",
            when=("died", "error", "stuck"),
        ),
        Hint(
            breaks_a_rule,
            "Whoever has everyone's largest number can also see whose the largest of them is.",
        ),
        Hint(
            lambda seen: seen.inputs[0][0].dtype == torch.float64 and _numbers_right(seen),
            "The largest numbers of both ranks differ in the ninth decimal place only. float64 can "
            "tell them apart, float32 cannot: which type has the tensor that travels?",
        ),
        Hint(
            lambda seen: seen.found == "value" and _one_box(seen),
            "Every rank found the same one of the ranks' numbers in all boxes. `[box] * n` is one "
            "box, n times: each rank's number wants a box of its own.",
        ),
        Hint(
            lambda seen: seen.found != "value" and torch.is_tensor(seen.results[0][0]),
            "A number is asked for: `.item()` makes one of a tensor of one.",
        ),
        Hint(
            lambda seen: (
                seen.found == "value"
                and all(got[1] == _of_last_with_it(seen.inputs) for got in seen.results)
                and _numbers_right(seen)
            ),
            "Where several ranks have the largest number, the lowest of them is asked for.",
        ),
        Hint(
            lambda seen: seen.found == "value" and _numbers_right(seen),
            "The number is right. Who has it? A maximum over the ranks forgets where it came from; "
            "a list of everybody's maxima does not.",
        ),
        Hint(
            lambda seen: max(x.max().item() for (x,) in seen.inputs) < 0 <= seen.results[0][0],
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
            lambda seen: seen.results[0] == [numbers for (numbers,) in seen.inputs if numbers],
            "A rank without numbers has a place in the list, too: an empty one.",
        ),
        Hint(
            lambda seen: (
                len({len(numbers) for numbers in seen.results[0]}) == 1
                and len(seen.results[0]) == len(seen.inputs)
                and len(seen.results[0][0]) > min(len(numbers) for (numbers,) in seen.inputs)
            ),
            "All lists are of one length now. What was added to fill them up?",
        ),
        Hint(
            lambda seen: "IndexError" in seen.error,
            "The list that is to be filled needs a place for every rank before the call; what "
            "stands in the places does not matter.",
            when=("error",),
        ),
        Hint(
            lambda seen: (
                len({len(numbers) for (numbers,) in seen.inputs}) > 1
                and not seen.error.startswith("NameError")
            ),
            "A collective of tensors wants the same shape from every rank. There is one for "
            "anything that Python can pickle.",
            when=("error", "died", "stuck"),
        ),
    ],
    hint="There is a collective for objects that does just this.",
)
