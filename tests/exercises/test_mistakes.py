"""What a check makes of mistakes: it runs them, whatever they do, and says the one that fits."""

import sys

import pytest
import torch
import torch.distributed as dist
from exercises_made_up import made_up_exercises

from ranklab import checks
from ranklab.exercises import check
from ranklab.exercises.solution import NoSuchText, Solution

__all__ = ["made_up_exercises"]

DOUBLE = Solution("double", "def double(x):\n    y = x + x\n    return y\n", "check('d', double)")


def reduced(x, op):
    dist.all_reduce(x := x.clone(), op)
    return x


def test_mistakes_that_agree_in_one_case_are_told_apart_by_another():
    assert "Hint: That is the product." in str(
        check("summed", lambda x: reduced(x, dist.ReduceOp.PRODUCT))
    )
    assert "Hint: That is the largest." in str(
        check("summed", lambda x: reduced(x, dist.ReduceOp.MAX))
    )


def test_a_mistake_that_kills_a_rank_in_some_case_is_no_match_there():
    def right_of_ones(x):
        return x * 2 if x == 1 else reduced(x, dist.ReduceOp.MAX)

    report = str(check("summed", right_of_ones))
    assert "Wrong in case 2 of 3" in report and "Hint: That is the largest." in report


def test_a_mistake_that_is_right_in_a_case_is_not_said_there():
    report = str(check("summed", lambda x: reduced(x, dist.ReduceOp.SUM) + (x == 4)))
    assert "Wrong in case 3 of 3" in report and "Hint: Of four." in report


def test_another_wrong_result_gets_the_exercises_hint():
    assert "Hint: Add." in str(check("summed", lambda x: x - 7))


def test_a_mistake_with_a_test_is_known_by_it():
    assert "Hint: It is too large." in str(check("summed", lambda x: x + 100))


def test_a_wrong_number_of_arguments_is_told_the_right_one():
    report = str(check("clip_together", lambda split: 0.0))
    assert "Hint: It is called as clip_together(split, shared, max_norm)." in report


def test_an_edit_changes_what_is_there_once_and_nothing_else_will_do():
    (edited,) = DOUBLE.edited({"x + x": "x * x", "return y": "return y + 1"}).answers()
    assert edited(3) == 10
    for edits in ({"x + y": ""}, {"x": "y"}, {"x + x": "x", "+ x\n": ""}):
        with pytest.raises(NoSuchText, match="double: "):
            DOUBLE.edited(edits)


def test_no_file_but_that_of_the_exercise_is_imported():
    assert checks.find("summed").name == "summed" and checks.find("summe") is None
    assert "summed" in checks.close_to("summd")


def test_results_are_compared_to_the_last_rank():
    def wrong_on_the_last(x):
        sums = reduced(x, dist.ReduceOp.MAX)
        return sums + 5 if dist.get_rank() else sums

    assert "Hint: Add." in str(check("summed", wrong_on_the_last))


def leaves_a_message_behind(x):
    box = torch.empty(1)
    if dist.get_rank():
        dist.recv(box, 0)
        dist.send(x, 0)
    else:
        sys.sent = [dist.isend(x.clone(), 1) for _ in range(2)]
        dist.recv(box, 1)
    return x + box


def test_what_a_case_leaves_in_its_process_group_does_not_make_the_next_one_wrong():
    assert check("summed", leaves_a_message_behind)
