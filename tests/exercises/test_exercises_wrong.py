"""Checking answers: every way in which one can go wrong, on real ranks, two at a time."""

import os
import signal
import sys
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from exercises_made_up import line_of, made_up_exercises, spread

from ranklab.exercises import check

__all__ = ["made_up_exercises"]
FILE = os.path.basename(__file__)


def waits_in_a_circle(x, src):
    box = x.clone()
    dist.recv(box, (dist.get_rank() + 1) % dist.get_world_size())
    return box


def nobody_receives(x, src):
    if dist.get_rank() == src:
        dist.send(x, (src + 1) % dist.get_world_size())
    return x.clone()


def others_wait_for_the_failed(x, src):
    if dist.get_rank() == src:
        return helper_that_fails(x)
    box = x.clone()
    dist.recv(box, src)
    return box


def helper_that_fails(x):
    return x[10]


def computes_forever(x, src):
    n = 0
    while True:
        n += 1


def exits(x, src):
    print("rank", dist.get_rank(), "was here", flush=True)
    if dist.get_rank() == 2:
        os._exit(3)
    dist.barrier()


def is_killed(x, src):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return spread(x, src)


def mismatched(x, src):
    dist.all_reduce(torch.zeros(dist.get_rank() + 1))
    return x


def stops(x, src):
    os.kill(os.getpid(), signal.SIGSTOP)


def writes_into_x(x, src):
    dist.broadcast(x, src)
    return x


def always_the_first(x, src):
    return torch.tensor([10.0])


def of_the_length_of_the_first(x, src):
    return spread(x, src) if len(x) == 1 else spread(x, src) + 1


def returns_nothing(x, src):
    spread(x, src)


def in_a_row(x, src):
    return spread(x, src)[None]


def in_float64(x, src):
    return spread(x, src).double()


def one_number_off(x, src):
    box = spread(x, src)
    if len(box) == 1000 and dist.get_rank() == 2:
        box[17] += 1
    return box


def asks_for_a_global(x, src):
    return x if rank == src else None  # noqa: F821


def uses_a_chapters_function(x, src):
    return ring_all_reduce(x)  # noqa: F821


def uses_what_is_nowhere(x, src):
    return my_helper(x)  # noqa: F821


def is_interrupted_when_it_is_through(x, src):
    def late(frame, event, arg):  # as if the signal had come a moment later
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event == "return" and name == "run" and file.endswith("on_rank.py"):
            sys.setprofile(None)
            raise KeyboardInterrupt

    try:
        while True:
            pass
    except KeyboardInterrupt:
        sys.setprofile(late)
        return x


def all_are_killed(x, src):
    os.kill(os.getpid(), signal.SIGKILL)


def all_raise_with_an_address(x, src):
    raise RuntimeError(f"{'a long message of a library ' * 5} [127.0.0.1:{2000 + dist.get_rank()}]")


def unfinished_on_others(x, src):
    if dist.get_rank() == src:
        return x
    raise NotImplementedError("the others")


def unfinished_where_it_is_seldom(x, src):
    if len(x) == 7:
        return not_yet(x)
    return spread(x, src)


not_yet = eval("lambda x: (_ for _ in ()).throw(NotImplementedError)")


def prints_forever(x, src):
    while True:
        print("again and again " * 20)


def leaves_python(x, src):
    sys.exit("enough")


def makes_the_group(x, src):
    dist.init_process_group("gloo")


def lacks_an_argument(x):
    return x


def one_makes_a_group(x, src):
    if dist.get_rank() == 0:
        dist.new_group([0, 1])
    return x


def takes_the_group_down(x, src):
    dist.destroy_process_group()
    return x


@dataclass(frozen=True)
class Says:
    """What the report on an answer says, and what not. line: that has this text in it."""

    answer: object
    says: tuple
    not_says: tuple = ()
    line: str = ""


WRONG = [
    Says(
        waits_in_a_circle,
        (
            "Wrong in case 1 of 5: 1 number, 4 ranks.",
            "Ranks 0, 1, 2 and 3 wait in a circle",
            "nobody sends.",
            "rank 2 waits to receive float32[1] from rank 3",
            "Hint: Who receives?",
        ),
        line="dist.recv(box, (dist.get_rank() + 1)",
    ),
    Says(
        nobody_receives,
        ("Rank 1 waits to send", "rank 2 has returned from nobody_receives: nobody there receives"),
        not_says=("cell",),
    ),
    Says(
        others_wait_for_the_failed,
        (
            "Rank 1 raised IndexError: index 10 is out of bounds",
            "in helper_that_fails: return x[10]",
            "in others_wait_for_the_failed: return helper_that_fails(x)",
            "Ranks 0, 2 and 3 wait to receive",
            "but rank 1 has failed",
        ),
        not_says=("Hint", "closed"),
    ),
    Says(computes_forever, ("It was not done after 6 s", "ranks 0, 1, 2 and 3 run"), line="while"),
    Says(
        exits,
        ("Rank 2 died: the process is gone (exit code 3).", "rank 2 printed:\n    rank 2 was here"),
        not_says=("Hint", "raised"),
    ),
    Says(is_killed, ("Rank 1 died: the process is gone (killed by SIGKILL).",)),
    Says(mismatched, ("The collectives do not match", "rank 1 calls all_reduce of float32[2]")),
    Says(stops, ("It was not done after 6 s", "its process is stopped (SIGSTOP)")),
    Says(
        writes_into_x,
        (
            "It changed its first argument x, on ranks 0, 2 and 3",
            "on rank 0 it was [0] (float32[1]) before",
        ),
    ),
    Says(
        always_the_first,
        (
            "Wrong in case 2 of 5: no number at all, 2 ranks.",
            "The shape should be [0], and is [1].",
            "It gives the result of the first case here, too: it looks written for that case",
            "Hint: Draw who has what",
        ),
    ),
    Says(
        of_the_length_of_the_first,
        (
            "wrong in 3 of the 4 others",
            "They differ at all places, first at [0]: 0 expected, got 1",
        ),
    ),
    Says(
        returns_nothing,
        (
            "returns_nothing([0] (float32[1]), 1) on rank 0",
            "expected: [10] (float32[1])",
            "got:      None",
            "It returned nothing (None): is a `return` missing?",
            "Ranks 1, 2 and 3 are wrong, too.",
        ),
    ),
    Says(in_a_row, ("The shape should be [1], and is [1, 1].",)),
    Says(in_float64, ("The dtype should be float32, and is float64.",)),
    Says(
        one_number_off,
        (
            "Wrong in case 5 of 5: 1000 numbers, 4 ranks.",
            "expected: [30, 31, 32, 33, ..., 1029] (float32[1000])",
            "They differ at 1 of 1,000 places, first at [17]: 47 expected, got 48.",
            "Only rank 2 is wrong.",
        ),
        not_says=("looks written",),
    ),
    Says(
        asks_for_a_global,
        (
            "Ranks 0, 1, 2 and 3 raised NameError: name 'rank' is not defined",
            "An answer has no `rank` around it: ask dist.get_rank().",
        ),
    ),
    Says(
        uses_a_chapters_function,
        ("A chapter has made it: from ranklab.taught.all_reduce import ring_all_reduce",),
    ),
    Says(
        uses_what_is_nowhere,
        ("and `my_helper` is neither. What `%%px` cells define is on the notebook's ranks alone.",),
    ),
    Says(is_interrupted_when_it_is_through, ("It was not done after 6 s",)),
    Says(all_are_killed, ("Ranks 0, 1, 2 and 3 died: ",)),
    Says(
        all_raise_with_an_address,
        ("Ranks 0, 1, 2 and 3 raised RuntimeError: a long message", "[127.0.0.1:2000]"),
    ),
    Says(
        unfinished_on_others,
        ("Not finished yet", "still raises NotImplementedError: the others. Your code goes there."),
        line='raise NotImplementedError("the others")',
    ),
    Says(unfinished_where_it_is_seldom, ("Not finished yet: case 4 of 5 (7 numbers, 3 ranks).",)),
    Says(
        prints_forever, ("It was not done", "What ranks 0, 1, 2 and 3 printed:\n    again", "...")
    ),
    Says(leaves_python, ("raised SystemExit: enough",)),
    Says(makes_the_group, ("The check has made the process group already: leave that call out.",)),
    Says(
        lacks_an_argument, ("raised TypeError", "called as lacks_an_argument([0] (float32[1]), 1)")
    ),
    Says(one_makes_a_group, ("Rank 0 waits in new_group, but ranks 1, 2 and 3 have returned",)),
    Says(takes_the_group_down, ("on rank 0", "expected: [10]")),
]


# The exercises of the chapters have mistakes that end in these ways, too, and take as long.
RARE = (stops, is_interrupted_when_it_is_through, prints_forever, one_makes_a_group, exits)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.answer.__name__,
            marks=pytest.mark.everything if case.answer in RARE else (),
        )
        for case in WRONG
    ],
)
def test_a_wrong_answer_is_told_and_the_next_one_is_checked(case):
    report, after = check("spread", case.answer), check("spread", spread)
    assert report.verdict == "wrong"
    text = str(report)
    for said in case.says:
        assert said in text, text
    for said in case.not_says:
        assert said not in text, text
    if case.line:
        line = line_of(case.answer, case.line)
        assert f"line {line} of {FILE}, in {case.answer.__name__}" in text, text
    assert str(after) == "Right: 5 cases, 1 to 4 ranks."
