"""A test suite for wrappers that train data parallel, on real ranks.

Written against PyTorch's DistributedDataParallel; chapter 12's OwnDDP passes in its place. What
only OwnDDP promises is in test_own_ddp.py. In float64, on groups of 1 to 4 ranks.
"""

import copy
import functools

import pytest
import torch
import torch.distributed as dist
from on_ranks import group_of
from torch import nn
from wrappers import (
    BOTH,
    CLOSE,
    LOSSES,
    MODELS,
    SIZES,
    N,
    Two,
    batch,
    gradients_of_all,
    loss_of,
    my_batch,
    started,
    weights,
    wrap,
)

from ranklab.taught import own_ddp as own


@pytest.fixture(scope="module")
def ranks():
    with started() as ranks:
        yield ranks


# The weights after many steps


def train(kind, size, steps, optimizer_of="SGD"):
    """Train Awkward; return the weights of a rank, None from those that are not in the group."""
    rank = dist.get_rank()
    if rank >= size:
        return None
    torch.manual_seed(rank)
    replica = wrap(kind, own.Awkward().double(), group_of(*range(size)))
    options = {"momentum": 0.9} if optimizer_of == "SGD" else {}
    make = getattr(torch.optim, optimizer_of)
    optimizer = make(replica.parameters(), lr=0.05, weight_decay=0.01, **options)
    for step in range(steps):
        optimizer.zero_grad()
        if step % 4 == 3:
            with replica.no_sync():
                loss_of_awkward(replica, steps + step, rank).backward()
        loss_of_awkward(replica, step, rank).backward()
        optimizer.step()
    return weights(replica)


def loss_of_awkward(model, k, r):
    return model(batch(k, r), detour=(k + r) % 3 == 0)["y"].square().mean()


def alone(size, steps):
    """The same training in one process."""
    torch.manual_seed(0)
    model = own.Awkward().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.01, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        for k in [steps + step] * (step % 4 == 3) + [step]:
            for r in range(size):
                (loss_of_awkward(model, k, r) / size).backward()
        optimizer.step()
    return weights(model)


@pytest.fixture(scope="module")
def trained(ranks):
    """The weights of all ranks after 60 steps; each training is done once."""
    return functools.cache(lambda kind, size: ranks.run(train, kind, size, 60)[:size])


@SIZES
@BOTH
def test_weights_after_60_steps_are_those_of_a_training_without_ranks(trained, kind, size):
    """Tied, frozen, unused and sometimes used parameters, one used twice, no_sync, a dict."""
    got = trained(kind, size)
    torch.testing.assert_close(got[0], alone(size, 60), **CLOSE)
    assert all(torch.equal(of_rank, got[0]) for of_rank in got)


@SIZES
def test_weights_after_60_steps_are_those_of_pytorchs_wrapper(trained, size):
    torch.testing.assert_close(trained("own", size), trained("PyTorch's", size), **CLOSE)


def test_so_they_are_with_adam(ranks):
    own, pytorchs = (ranks.run(train, kind, 3, 24, "AdamW")[0] for kind in ("own", "PyTorch's"))
    torch.testing.assert_close(own, pytorchs, rtol=0, atol=1e-9)  # it divides by small numbers


def gradients_after_two(kind, to_none):
    replica = wrap(kind, Two())
    for k in range(2):
        replica.zero_grad(set_to_none=to_none)
        replica(my_batch(k)).square().mean().backward()
    return [p.grad.clone() for p in (replica.module.always.weight, replica.module.wanted.bias)]


@BOTH
def test_gradients_may_be_set_to_zero_in_place_of_none(ranks, kind):
    """Then a parameter that is not used has a gradient of zeros; without decay it stays."""
    kept, dropped = (ranks.run(gradients_after_two, kind, to_none) for to_none in (False, True))
    torch.testing.assert_close(kept, dropped, **CLOSE)


# The start


def starts(kind):
    rank = dist.get_rank()
    torch.manual_seed(rank)
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    module[1].running_mean.fill_(rank)
    module[2].requires_grad_(False)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    wrap(kind, module, unused=False)
    return before, module.state_dict()


@BOTH
def test_all_start_with_rank_0s_weights_and_buffers_frozen_ones_too(ranks, kind):
    found = ranks.run(starts, kind)
    assert not torch.equal(found[1][0]["2.weight"], found[0][0]["2.weight"])
    for _, after in found:
        assert all(torch.equal(t, found[0][0][name]) for name, t in after.items())


# One backward


def one_backward(kind, size, calls):
    """Gradients after some calls, each (batch, wanted on these ranks, sync), and rank 0's twin."""
    rank = dist.get_rank()
    if rank >= size:
        return None
    module, twin = Two(), Two()
    replica = wrap(kind, module, group_of(*range(size)))
    for k, wanted, sync in calls:
        if sync:
            replica(batch(k, rank), wanted=rank in wanted).square().mean().backward()
        else:
            with replica.no_sync():
                replica(batch(k, rank), wanted=rank in wanted).square().mean().backward()
        if rank == 0:
            for r in range(size):
                (twin(batch(k, r), wanted=r in wanted).square().mean() / size).backward()
    return [[p.grad for p in m.parameters()] for m in (module, twin)]


def assert_equal_to_twin(ranks, kind, size, calls):
    found = ranks.run(one_backward, kind, size, calls)[:size]
    for got, _ in found:
        for mine, twins in zip(got, found[0][1], strict=True):
            assert (mine is None) == (twins is None)
            if mine is not None:
                torch.testing.assert_close(mine, twins, **CLOSE)


EVERYONE = range(N)


@SIZES
@BOTH
def test_gradients_are_those_of_the_whole_batch(ranks, kind, size):
    assert_equal_to_twin(ranks, kind, size, [(0, EVERYONE, True)])


@BOTH
def test_a_gradient_that_some_ranks_lack_is_a_mean_with_zeros(ranks, kind):
    assert_equal_to_twin(ranks, kind, N, [(0, [1, 2], True)])


@BOTH
def test_a_gradient_that_all_ranks_lack_stays_none(ranks, kind):
    assert_equal_to_twin(ranks, kind, N, [(0, [], True)])


@BOTH
def test_a_gradient_that_no_rank_has_this_time_is_left_alone(ranks, kind):
    assert_equal_to_twin(ranks, kind, N, [(0, EVERYONE, True), (1, [], True)])


@BOTH
def test_other_ranks_use_it_in_the_next_step(ranks, kind):
    assert_equal_to_twin(ranks, kind, N, [(0, [0], True), (1, [3], True), (2, [1, 3], True)])


@BOTH
def test_accumulation_with_and_without_no_sync_gives_the_sum_of_the_means(ranks, kind):
    calls = [(0, EVERYONE, False), (1, [2], False), (2, EVERYONE, True), (3, EVERYONE, True)]
    assert_equal_to_twin(ranks, kind, N, calls)


def in_no_sync(kind, backward_inside):
    """The gradient after a forward in no_sync, and the rank's own."""
    module, twin = Two(), Two()
    replica = wrap(kind, module)
    with replica.no_sync():
        loss = replica(my_batch(0)).square().mean()
        if backward_inside:
            loss.backward()
    if not backward_inside:
        loss.backward()
    twin(my_batch(0)).square().mean().backward()
    return module.always.weight.grad, twin.always.weight.grad


@pytest.mark.parametrize("backward_inside", [True, False])
@BOTH
def test_a_forward_in_no_sync_averages_nothing(ranks, kind, backward_inside):
    for got, of_rank in ranks.run(in_no_sync, kind, backward_inside):
        torch.testing.assert_close(got, of_rank, **CLOSE)


def averaged_after_an_error(kind):
    """The gradient of a step after one that an error in no_sync has ended, and the twin's."""
    module, twin = Two(), Two()
    replica = wrap(kind, module)
    try:
        with replica.no_sync():
            raise KeyError
    except KeyError:
        replica(my_batch(0)).square().mean().backward()
    gradients_of_all(twin, range(N))
    return module.always.weight.grad, twin.always.weight.grad


@BOTH
def test_after_an_error_in_no_sync_gradients_are_averaged_again(ranks, kind):
    for got, twins in ranks.run(averaged_after_an_error, kind):
        torch.testing.assert_close(got, twins, **CLOSE)


def evaluated(kind):
    """Rank 0 alone looks at its loss, between forward and backward."""
    module = Two()
    replica = wrap(kind, module)
    loss = replica(my_batch(0)).square().mean()
    if dist.get_rank() == 0:
        with torch.no_grad():
            replica(my_batch(1))
    loss.backward()
    return module.always.weight.grad


@BOTH
def test_one_rank_may_evaluate_without_the_others(ranks, kind):
    first, *others = ranks.run(evaluated, kind)
    assert all(torch.equal(grad, first) for grad in others)


# Models of all kinds


def through(kind, what):
    """Gradients of a model on all ranks, and of the whole batch."""
    torch.manual_seed(0)
    model, loss = MODELS[what](), LOSSES.get(what, loss_of)
    twin = copy.deepcopy(model)
    replica = wrap(kind, model)
    for _ in range(3):
        replica.zero_grad()
        loss(replica, my_batch(0)).backward()
    gradients_of_all(twin, range(N), loss_of=loss)
    return [[p.grad.double() for p in m.parameters()] for m in (model, twin)]


@pytest.mark.parametrize("what", MODELS)
@BOTH
def test_models_of_all_kinds(ranks, kind, what):
    close = {"rtol": 1e-5, "atol": 1e-6} if what == "two types" else CLOSE
    for got, twins in ranks.run(through, kind, what):
        torch.testing.assert_close(got, twins, **close)


def buffers_after(kind):
    """A batch norm's running mean, as the forward of the second step finds it, and after it."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    replica, found = wrap(kind, module), []
    module[0].register_forward_pre_hook(lambda *_: found.append(module[0].running_mean.clone()))
    for k in range(2):
        replica(my_batch(k)).square().mean().backward()
    return found[1], module[0].running_mean


@BOTH
def test_before_a_forward_the_buffers_are_rank_0s(ranks, kind):
    found = ranks.run(buffers_after, kind)
    assert all(torch.equal(before, found[0][0]) for before, _ in found)
    assert not torch.equal(found[0][1], found[1][1])  # nobody averages them


def in_two_groups(kind):
    """Ranks 0 and 2 train one model, ranks 1 and 3 another, at the same time."""
    teams = (0, 2), (1, 3)
    groups, mine = [group_of(*team) for team in teams], dist.get_rank() % 2
    module, twin = Two(), Two()
    replica = wrap(kind, module, groups[mine])
    for k in range(3):  # in the second step the buckets are made anew
        replica.zero_grad()
        replica(my_batch(k)).square().mean().backward()
    gradients_of_all(twin, teams[mine], step=2)
    return module.always.weight.grad, twin.always.weight.grad


@BOTH
def test_groups_train_for_themselves(ranks, kind):
    for got, twins in ranks.run(in_two_groups, kind):
        torch.testing.assert_close(got, twins, **CLOSE)


def norms(kind):
    module, twin = Two(), Two()
    replica = wrap(kind, module)
    replica(my_batch(0)).square().mean().backward()
    gradients_of_all(twin, range(N))
    found = [nn.utils.clip_grad_norm_(m.parameters(), 0.1) for m in (module, twin)]
    return *found, module.always.weight.grad, twin.always.weight.grad


@BOTH
def test_gradients_can_be_clipped_when_backward_returns(ranks, kind):
    for norm, twins, grad, twins_grad in ranks.run(norms, kind):
        torch.testing.assert_close(norm, twins, **CLOSE)
        torch.testing.assert_close(grad, twins_grad, **CLOSE)


# In time


def traced(kind):
    """When the last gradient was computed and the first message began, in ns."""
    from ranklab import trace

    layers = [part for _ in range(12) for part in (nn.Linear(256, 256), nn.Tanh())]
    limits = {"bucket_bytes": 1 << 19, "first_bytes": 1 << 19}
    limits = limits if kind == "own" else {"bucket_cap_mb": 0.5}
    replica, x = wrap(kind, nn.Sequential(*layers), unused=False, **limits), torch.randn(256, 256)
    for _ in range(3):
        replica(x).square().mean().backward()
    dist.barrier()
    with trace() as t:
        replica(x).square().mean().backward()
    last = max(event.end for event in t.events if event.phase == "backward")
    return last, [event.start for event in t.communication]


@BOTH
def test_messages_are_under_way_before_backward_has_ended(ranks, kind):
    for computed, sent in ranks.run(traced, kind):
        assert len(sent) >= 4
        assert sum(start < computed for start in sent) >= 2
