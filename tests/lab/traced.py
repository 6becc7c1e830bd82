"""Ranks that are traced, for the tests of traces; and functions that run on them."""

import pytest

from ranklab import Ranks

N = 4
TIMEOUT = 5  # s: a whole one passes in the test of a deadlock


@pytest.fixture(scope="module")
def running():
    with Ranks(N, timeout=TIMEOUT) as ranks:
        yield ranks


@pytest.fixture
def ranks(running):
    """Ranks with a working process group, whatever the test before did to it."""
    if running.run(is_broken)[0]:
        running.reset()
    return running


def on_ranks(function):
    function.__module__ = "__main__"
    return function


@on_ranks
def is_broken():
    global broken
    was = globals().get("broken", False)
    broken = False
    return was


@on_ranks
def ring():
    from ranklab import trace

    x, box = torch.ones(7), torch.zeros(7)  # noqa: F821
    with trace() as t:
        for _ in range(world_size):  # noqa: F821
            sent = dist.isend(x, (rank + 1) % world_size)  # noqa: F821
            dist.recv(box, (rank - 1) % world_size)  # noqa: F821
            sent.wait()
    return t
