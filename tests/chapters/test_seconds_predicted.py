"""What chapter 12 predicts seconds with, by values that are computed by hand."""

import pytest
import torch
from torch import nn

from ranklab.taught import own_ddp as own


@pytest.mark.parametrize(
    ("buckets", "alpha", "beta", "seconds"),
    [
        ([8], 0.5, 4, 5 + 0.5 + 2),  # forward 1, backward 4, and then all of it is sent
        ([4, 4], 0.5, 4, 5 + 0.5 + 1),  # the first half is sent behind the second half
        ([2, 6], 0.5, 4, 5 + 0.5 + 1.5),
        ([4, 4], 0.5, 1, 3 + 4.5 + 4.5),  # the first one is still under way when all is computed
        ([4, 4], 0, float("inf"), 5),
        ([], 0.5, 4, 5),
    ],
)
def test_seconds_of_a_step_that_sends_during_backward(buckets, alpha, beta, seconds):
    assert own.overlapped_seconds(buckets, 1, 4, alpha, beta) == seconds


def test_a_message_keeps_the_core_from_its_work():
    """Of 8 bytes in two messages, each takes 1 s and a second for each 4 bytes."""
    busy = {"core": (1, 4)}
    assert own.overlapped_seconds([4, 4], 1, 4, 0.5, 4, **busy) == 1 + 2 + 2 + 2 + 2
    assert own.overlapped_seconds([4, 4], 1, 4, 5, 4, **busy) == 3 + 6 + 6


@pytest.mark.parametrize(("alpha", "beta"), [(1e-3, 1e9), (1e-4, 1e10), (1e-3, 5e10), (1e-2, 5e10)])
def test_the_best_number_of_equal_buckets(alpha, beta):
    """The page's rule: for a backward of 67 ms and 400 MB, beside the best of 400."""

    def seconds(k):
        return own.overlapped_seconds([400e6 / k] * k, 0, 0.067, alpha, beta)

    by_rule = round(max((0.067 - 400e6 / beta) / alpha, (0.067 / alpha) ** 0.5))
    assert seconds(by_rule) < 1.02 * min(map(seconds, range(1, 400)))


@pytest.mark.parametrize(
    ("size", "expected"), [(1, (0, float("inf"))), (2, (6, 8)), (3, (12, 6)), (5, (24, 5))]
)
def test_a_ring_pays_latencies_and_sends_nearly_twice_all_bytes(size, expected):
    assert own.ring_of(size, alpha=3, beta=8) == expected


def test_the_gradient_of_a_model_is_flat_and_in_the_parameters_order():
    model = nn.Linear(2, 2)
    model.weight.grad, model.bias.grad = torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([5.0, 6])
    assert own.gradient_of(model).tolist() == [1, 2, 3, 4, 5, 6]
