"""Chapter 4: the slow inputs, the formula and the measurement that later chapters may take."""

import itertools
import time

import pytest
import torch

from ranklab.taught.feeding import (
    Decoded,
    Fetched,
    loader,
    predicted,
    throughput,
)


def test_a_batch_is_waited_for_once_and_in_all(monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    x, y = next(iter(loader(Fetched(3, 0.5), batch_size=4)))
    assert waits == [2.0]
    assert x.tolist() == [[float(i)] * 3 for i in range(4)] and y.tolist() == [0, 1, 2, 3]
    assert Fetched(2, 0.25)[17][1] == 7 and waits == [2.0, 0.25]


def test_a_decoded_batch_costs_seconds_of_a_core():
    before = time.thread_time()
    next(iter(loader(Decoded(1, 0.005), batch_size=4)))
    assert 0.02 <= time.thread_time() - before < 1


@pytest.mark.parametrize(
    ("arguments", "batches_a_second"),
    [
        ((0, 0.3, 0.1), 2.5),  # loads, then trains
        ((1, 0.3, 0.1), 1 / 0.3),
        ((2, 0.3, 0.1), 2 / 0.3),
        ((3, 0.3, 0.1), 10),
        ((9, 0.3, 0.1), 10),  # the step alone
        ((9, 0.09, 0.01, 0.03, 2), 2 / 0.03),  # the cores
        ((5, 0.09, 0.01, 0.03, 2), 5 / 0.09),
    ],
)
def test_the_slowest_decides(arguments, batches_a_second):
    assert predicted(*arguments) == pytest.approx(batches_a_second)


def test_throughput_is_measured_in_repeats_without_the_first_batches():
    seen = []
    batches = ((torch.full((4,), float(i)), i) for i in itertools.count())
    rates = throughput(batches, lambda x, y: seen.append(y), count=2, warm_up=3, repeats=2)
    assert seen == [*range(7)] and len(rates) == 2 and min(rates) > 0
