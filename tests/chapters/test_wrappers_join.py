"""Wrappers where the ranks have different numbers of batches: join, PyTorch's and the book's."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from wrappers import BOTH, CLOSE, N, gradients_of_all, my_batch, started, weights, wrap


@pytest.fixture(scope="module")
def ranks():
    with started() as ranks:
        yield ranks


def replica_of(kind):
    """A replica with a batch norm; each rank would begin with other weights."""
    torch.manual_seed(dist.get_rank())
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    return wrap(kind, module, unused=False)


def step(replica, optimizer, k):
    optimizer.zero_grad()
    replica(my_batch(k)).square().mean().backward()
    optimizer.step()


def uneven(replica, throw=False, optimizer=None):
    """Rank r has r + 1 batches. Return how many it has done, and what was raised."""
    optimizer = optimizer or torch.optim.SGD(replica.parameters(), lr=0.1)
    done, raised = 0, ""
    try:
        with replica.join(throw_on_early_termination=throw):
            for k in range(dist.get_rank() + 1):
                step(replica, optimizer, k)
                done += 1
    except RuntimeError as error:
        raised = str(error)
    return done, raised


def flat(module):
    """All parameters and buffers."""
    return torch.cat([t.double().flatten() for t in module.state_dict().values()])


def join(kind, throw):
    """Return (weights, batches done, what was raised)."""
    replica = replica_of(kind)
    done, raised = uneven(replica, throw)
    return flat(replica.module), done, raised


@BOTH
def test_join_ends_with_the_weights_of_the_rank_that_went_on_longest(ranks, kind):
    found = ranks.run(join, kind, False)
    assert [done for _, done, _ in found] == [1, 2, 3, 4]
    assert all(torch.equal(values, found[3][0]) for values, _, _ in found)


def test_join_gives_the_weights_of_pytorchs(ranks):
    own, pytorchs = (ranks.run(join, kind, False)[0][0] for kind in ("own", "PyTorch's"))
    torch.testing.assert_close(own, pytorchs, **CLOSE)


def with_momentum(kind):
    """The weights after join, and after an ordinary step of the same optimizer."""
    replica = replica_of(kind)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1, momentum=0.9)
    uneven(replica, optimizer=optimizer)
    joined = weights(replica.module)
    step(replica, optimizer, 9)
    return joined, weights(replica.module)


def test_with_momentum_ranks_differ_after_the_next_step_as_with_pytorchs(ranks):
    own, pytorchs = (ranks.run(with_momentum, kind) for kind in ("own", "PyTorch's"))
    torch.testing.assert_close(own, pytorchs, **CLOSE)
    joined, after = zip(*own)
    assert all(torch.equal(each, joined[0]) for each in joined)
    assert not torch.allclose(after[0], after[3])


@BOTH
def test_join_tells_all_ranks_if_one_has_no_more_data(ranks, kind):
    found = ranks.run(join, kind, True)
    assert all(raised for _, _, raised in found)
    if kind == "own":
        assert [done for _, done, _ in found] == [1] * N
        assert all("on ranks [0], but on [1, 2, 3]" in raised for _, _, raised in found)


def step_after_join(kind):
    """The gradient of an ordinary step after join, its twin's, and the buffers of the next one."""
    replica = replica_of(kind)
    uneven(replica)
    twin = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    twin.load_state_dict(replica.module.state_dict())
    gradients_of_all(twin, range(N), step=9)
    found, norm = [], replica.module[1]
    norm.register_forward_pre_hook(lambda *_: found.append(norm.running_mean.clone()))
    for k in (9, 10):
        replica.zero_grad()
        replica(my_batch(k)).square().mean().backward()
        found.append(replica.module[0].weight.grad.clone())
    _, grad, before_the_second, _ = found
    return grad, twin[0].weight.grad, before_the_second


def expected_buffers(kind):
    """What rank 0's running mean is after one ordinary step after join."""
    replica = replica_of(kind)
    uneven(replica)
    replica(my_batch(9))
    return replica.module[1].running_mean


@BOTH
def test_after_join_steps_are_ordinary_ones_again(ranks, kind):
    of_rank_0 = ranks.run(expected_buffers, kind)[0]
    for grad, twins, buffers in ranks.run(step_after_join, kind):
        torch.testing.assert_close(grad, twins, **CLOSE)
        if kind == "own":  # PyTorch's goes on with those of the last rank
            torch.testing.assert_close(buffers, of_rank_0, **CLOSE)
