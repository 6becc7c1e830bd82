"""Checking answers: every way in which an answer can go wrong, on real ranks."""

import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from exercises_made_up import made_up_exercises
from torch import nn

from ranklab.exercises import Case, Choice, Exercise, check, checker_process
from ranklab.exercises.attempted import stub_lines

pytestmark = pytest.mark.timeout(180)
__all__ = ["made_up_exercises"]


def line_of(function, text):
    """Return the number of the line of `function` that has `text` in it, as the editor counts."""
    lines = Path(__file__).read_text().splitlines()
    first = function.__code__.co_firstlineno
    return next(n for n, line in enumerate(lines[first - 1 :], first) if text in line)


# Not attempted yet: nothing is started


def stub(x, src):
    box = x.clone()
    # YOUR CODE HERE
    raise NotImplementedError()
    return box


class StubInAMethod:
    def __init__(self):
        self.x = 1

    @staticmethod
    def step():
        def inner():
            raise NotImplementedError

        return inner


def with_a_message(x, src):
    if x.is_complex():
        raise NotImplementedError("complex numbers")
    return spread(x, src)


def naming_it(x, src):
    try:
        return spread(x, src)
    except NotImplementedError:
        return x


def test_a_stub_is_found_without_running_it():
    checker_process.end()
    report = check("spread", stub)
    line = line_of(stub, "raise NotImplementedError()")
    assert report.verdict == "open"
    assert not report
    assert str(report) == (
        f"spread: not attempted yet. Your code goes where line {line} raises NotImplementedError."
    )
    assert stub_lines(StubInAMethod) == [line_of(StubInAMethod.step, "raise NotImpl")]
    assert stub_lines(with_a_message) == stub_lines(naming_it) == []
    assert checker_process._checker is None


def step_that_is_a_stub(model, x):
    raise NotImplementedError()


def test_several_answers_are_not_attempted_while_none_is():
    assert "not attempted yet" in str(check("taught", StubInAMethod, stub))
    text = str(check("taught", Scale, step_that_is_a_stub))
    assert text.startswith("Not finished yet: case 1 of 2 (width 1).")
    line = line_of(step_that_is_a_stub, "raise")
    assert f"line {line} of test_exercises.py, in step_that_is_a_stub, which still raises" in text


# What cannot be an answer


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("spred", stub), "There is no exercise called 'spred'. Is it 'spread'?"),
        (("quite something else", stub), "There is no exercise called 'quite something else'."),
        ((stub, stub), "check wants the name of an exercise first, a string, and got <function"),
        (("spread", 3), "without a call, and got a value of type int"),
        (("spread",), "spread wants 1 function or class after its name, and got 0."),
        (("spread", stub, stub), "spread wants 1 function or class after its name, and got 2."),
        (("taught", stub), "taught wants 2 functions or classes after its name, and got 1."),
        (("letter", StubInAMethod), "letter wants a function without arguments, and got a class."),
    ],
)
def test_what_is_no_answer_is_told(arguments, says):
    report = check(*arguments)
    assert says in str(report)
    assert not report


def test_an_exercise_that_is_not_one_is_refused():
    with pytest.raises(ValueError, match="has no cases"):
        Exercise("none", [], None, hint="")
    with pytest.raises(ValueError, match="neither an expected result nor a judge"):
        Exercise("none", [Case("a", tuple)], None, hint="")
    with pytest.raises(TypeError, match="make is a function"):
        Case("a", 3)
    with pytest.raises(ValueError, match="not a number of ranks"):
        Case("a", tuple, ranks=0)
    with pytest.raises(ValueError, match="is right, and yet"):
        Choice("none", right="a", why={"a": "no"}, because="")


# Choices


@pytest.mark.parametrize(
    "answer, verdict, says",
    [
        (lambda: "b", "right", "Right: b. Everybody gets it."),
        (lambda: " B ", "right", "Right: b."),
        (lambda: "a", "wrong", "Not a. That is what scatter does."),
        (lambda: "d", "wrong", "Choose one: return a, b or c, as a string. It returned 'd'."),
        (lambda: None, "wrong", "It returned None."),
        (list, "wrong", "wants a function without arguments, and got a class"),
        (lambda: 1 / 0, "wrong", "letter() raised ZeroDivisionError: division by zero"),
        (lambda x: "b", "wrong", "letter() raised TypeError"),
        (lambda: (_ for _ in ()).throw(NotImplementedError), "open", "not attempted yet"),
    ],
)
def test_choices(answer, verdict, says):
    if verdict == "open":

        def answer():
            """ "a", "b" or "c"."""
            raise NotImplementedError()

    report = check("letter", answer)
    assert report.verdict == verdict
    assert says in str(report)


# Answers on ranks


def spread(x, src):
    box = x.clone()
    if dist.get_rank() == src:
        for other in range(dist.get_world_size()):
            if other != src:
                dist.send(x, other)
    else:
        dist.recv(box, src)
    return box


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


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.answer.__name__)
def test_a_wrong_answer_is_told_and_the_next_one_is_checked(case):
    report = check("spread", case.answer)
    assert report.verdict == "wrong"
    text = str(report)
    for said in case.says:
        assert said in text, text
    for said in case.not_says:
        assert said not in text, text
    if case.line:
        line = line_of(case.answer, case.line)
        assert f"line {line} of test_exercises.py, in {case.answer.__name__}" in text, text
    assert str(check("spread", spread)) == "Right: 5 cases, 1 to 4 ranks."


def test_a_right_answer_may_have_been_busy_with_errors(capsys):
    assert check("spread", naming_it)
    assert check("spread", with_a_message)
    assert capsys.readouterr().out.count("Right: 5 cases") == 2  # printed, as this is no notebook


def test_the_environment_decides_nothing(monkeypatch):
    checker_process.end()
    monkeypatch.setenv("RANKLAB_RANKS", "2")
    assert str(check("spread", spread)) == "Right: 5 cases, 1 to 4 ranks."


def test_more_ranks_are_there_where_a_case_wants_them():
    assert str(check("many", dist.get_world_size)) == "Right: 1 case, 5 ranks."
    assert check("spread", spread)


# What is counted, driven, changed


def passes_on(x):
    right = (dist.get_rank() + 1) % dist.get_world_size()
    if right == dist.get_rank():
        return x.clone()
    box = torch.empty_like(x)
    handle = dist.isend(x, right)
    dist.recv(box, dist.get_rank() - 1 if dist.get_rank() else dist.get_world_size() - 1)
    handle.wait()
    return box


def gathers_all(x):
    boxes = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(boxes, x)
    return boxes[dist.get_rank() - 1]


def test_a_judge_knows_what_was_sent():
    assert check("passed_on", passes_on)
    assert "A message is enough." in str(check("passed_on", gathers_all))


class Scale(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.factors = nn.Parameter(torch.full((n,), 1.0))

    def forward(self, x):
        return (self.factors * x).sum()


class ScaleThatForgets(Scale):
    def forward(self, x):
        return super().forward(x) - len(x) + 1


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def one_step(model, x):
    y = model(x)
    torch.optim.SGD(model.parameters(), lr=0.0).step()
    return y


def step_with_a_rule_of_its_own(model, x):
    y = Doubling.apply(model(x)) / 2
    y.backward()
    return y


def test_classes_and_functions_are_driven():
    assert check("taught", Scale, one_step)
    assert check("taught", Scale, step_with_a_rule_of_its_own)
    text = str(check("taught", ScaleThatForgets, one_step))
    assert "Wrong in case 2 of 2: width 4" in text
    assert "At [0]\n    expected: 4\n    got:      1" in text
    text = str(check("taught", Scale, lambda model, x: None))
    assert "It raised AttributeError: 'NoneType' object has no attribute 'item'" in text


def test_what_is_to_be_changed_is_compared():
    assert check("ones", lambda x: x.add_(1))
    text = str(check("ones", lambda x: x + 1))
    assert "expected: [1, 1]" in text
    assert "got:      [0, 0]" in text


def test_a_check_that_fails_does_not_blame_the_reader():
    report = check("broken", spread)
    assert report.verdict == "open"
    assert "says nothing about your answer: ZeroDivisionError" in str(report)
    assert check("spread", spread)


lock = threading.Lock()


def test_an_answer_that_cannot_travel_is_told_why():
    def locks(x, src):
        with lock:
            return x

    said = "locks uses `lock` of this notebook, which cannot go to the processes that check it."
    assert said in str(check("spread", locks))
    assert said in str(check("spread", lambda x, src: locks(x, src)))


def returns_a_handle(x, src):
    return dist.broadcast(x.clone(), src, async_op=True)


def yields(x, src):
    yield x


@pytest.mark.parametrize(
    "answer, says",
    [
        (returns_a_handle, "returned a handle (its operation may not be done: wait for it"),
        (yields, "and returned a generator."),
        (lambda x, src: threading.Lock(), "and returned a lock."),
        (lambda x, src: spread, "and returned the function spread itself."),
    ],
)
def test_a_result_that_cannot_travel_is_named(answer, says):
    assert says in str(check("spread", answer))


def replaces_a_call(x, src):
    dist.recv = None
    return x


def test_what_an_answer_replaces_in_torch_is_put_back():
    assert not check("spread", replaces_a_call)
    assert check("spread", spread)
