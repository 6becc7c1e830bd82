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


@pytest.mark.parametrize(
    ("size", "expected"), [(1, (0, float("inf"))), (2, (6, 8)), (3, (12, 6)), (5, (24, 5))]
)
def test_a_ring_pays_latencies_and_sends_nearly_twice_all_bytes(size, expected):
    assert own.ring_of(size, alpha=3, beta=8) == expected


def test_the_gradient_of_a_model_is_flat_and_in_the_parameters_order():
    model = nn.Linear(2, 2)
    model.weight.grad, model.bias.grad = torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([5.0, 6])
    assert own.gradient_of(model).tolist() == [1, 2, 3, 4, 5, 6]
