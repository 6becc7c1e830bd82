"""What the lab reads in texts of PyTorch, tried on what is installed.

A process that Gloo aborts (gloo_told.py) says them all.
"""

from borrowed import Borrowed, gloo_told

from ranklab.upstream import cpython, torch_says
from ranklab.upstream import torch as ours

HERE = Borrowed(torch_says)


@HERE.each
def test_what_is_borrowed_is_there(borrowed):
    HERE.is_there(borrowed)


@HERE.tries(torch_says.words_of_cpp, torch_says.does_not_fit)
def _(_):
    words = torch_says.words_of_cpp(gloo_told()["stderr"])
    assert torch_says.does_not_fit(words) == ("400", "4")


@HERE.tries(torch_says.waited_in_vain, torch_says.timed_out)
def _(_):
    late, closed = gloo_told()["late"], gloo_told()["closed"]
    assert torch_says.waited_in_vain(late) and torch_says.waited_in_vain(closed)
    assert torch_says.timed_out(late) and not torch_says.timed_out(closed)


@HERE.tries(torch_says.without_noise)
def _(_):
    late = torch_says.without_noise(gloo_told()["late"])
    assert late == "Timed out waiting 100ms for recv operation to complete"
    closed = torch_says.without_noise(gloo_told()["closed"])
    assert closed in ("Connection closed by peer.", "Read error: Connection reset by peer.")


@HERE.tries(torch_says.has_no_world, torch_says.has_a_world, torch_says.group_is_over)
def _(_):
    assert torch_says.has_no_world(gloo_told()["no world"])
    assert torch_says.has_a_world(gloo_told()["a world"])
    assert all(map(torch_says.group_is_over, gloo_told()["outlived"]))


@HERE.tries(torch_says.called_by_checks)
def _(_):
    called = {"name": "all_reduce", "shape": "[4]", "dtype": "float32"}
    assert torch_says.called_by_checks(gloo_told()["checks"]) == called


@HERE.tries(torch_says.is_of_a_worker)
def _(_):
    told = gloo_told()["worker"]
    assert torch_says.is_of_a_worker(told)
    _, frames = cpython.read_traceback(told)
    assert frames[-1][2:] == ("__getitem__", "raise KeyError(i)")


def test_what_optimizers_load_is_loaded_ahead():
    assert ours.LOADED_BY_OPTIMIZERS in gloo_told()["modules"]
