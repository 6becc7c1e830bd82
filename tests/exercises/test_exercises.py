"""Checking answers: what is none, what counts as one, and what of it is checked."""

import threading

import pytest
import torch
import torch.distributed as dist
from exercises_made_up import line_of, made_up_exercises, spread
from torch import nn

from ranklab.exercises import Case, Choice, Exercise, check, checker_process
from ranklab.exercises.attempted import stub_lines

__all__ = ["made_up_exercises"]


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
        f"spread: not attempted yet. Line {line} raises NotImplementedError: write your code in "
        "place of it."
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
        Exercise([], None, hint="")
    with pytest.raises(ValueError, match="neither a twin nor a judge"):
        Exercise([Case("a", tuple)], None, hint="")
    with pytest.raises(TypeError, match="make is a function"):
        Case("a", 3)
    with pytest.raises(ValueError, match="not a number of ranks"):
        Case("a", tuple, ranks=0)
    with pytest.raises(ValueError, match="is right, and yet"):
        Choice(right="a", why={"a": "no"}, because="")


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


def test_a_right_answer_may_have_been_busy_with_errors(capsys):
    assert check("spread", naming_it)
    assert check("spread", with_a_message)
    assert capsys.readouterr().out.count("Right: 5 cases") == 2  # printed, as this is no notebook


@pytest.mark.everything
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
