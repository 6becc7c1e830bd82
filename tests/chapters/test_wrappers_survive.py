"""What happens in a notebook between two steps, with PyTorch's wrapper and with the book's."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from wrappers import CLOSE, Two, batch, gradients_of_all, loss_of, my_batch, started, wrap

KINDS = "PyTorch's", "own"


@pytest.fixture(scope="module")
def ranks():
    with started() as ranks:
        yield ranks


def step(replica, k=0):
    """The gradients of an ordinary step."""
    replica.zero_grad()
    loss_of(replica, my_batch(k)).backward()
    return gradients(replica)


def gradients(replica):
    """All gradients: of what has none, nan."""
    flat = [
        torch.full_like(p, torch.nan) if p.grad is None else p.grad for p in replica.parameters()
    ]
    return torch.cat([grad.flatten() for grad in flat]).clone()


class Fails(Two):
    """A model whose forward can be told to fail, after a layer was used."""

    told = False

    def forward(self, x):
        y = super().forward(x)
        if self.told:
            raise KeyError("no such sample")
        return y


def with_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 2)).double()


# Each returns tensors, to be the same with either wrapper. `kind` says with which.


def wrapped_again(kind):
    module = Two()
    replica = wrap(kind, module)
    found = [step(replica)]
    for k in range(3):
        replica = wrap(kind, module)
        found += [step(replica, k), step(replica, k)]
    return found


def wrapped_twice(kind):
    """The first wrapper is still there."""
    module = Two()
    first = wrap(kind, module)
    step(first)
    second = wrap(kind, module)
    return [step(second, 1), step(second, 2)]


def backward_skipped(kind):
    """As all ranks do when one of them has found a NaN."""
    replica = wrap(kind, Two())
    found = []
    for k in range(3):
        loss_of(replica, my_batch(k + 10))
        found.append(step(replica, k))
    return found


def forward_failed(kind):
    replica = wrap(kind, Fails())
    found = []
    for k in range(3):
        replica.module.told = True
        with contextlib.suppress(KeyError):
            replica(my_batch(0))
        replica.module.told = False
        found.append(step(replica, k))
    return found


def evaluated_between(kind):
    """With gradients enabled, as who forgets no_grad() does."""
    replica = wrap(kind, Two())
    found = []
    for k in range(3):
        found.append(step(replica, k))
        replica.eval()
        loss_of(replica, my_batch(7))
        replica.train()
    return found


def evaluated_without_gradients(kind):
    """A batch norm's running mean is rank 0's at the first evaluation after a step."""
    replica = wrap(kind, with_norm())
    found = []
    for k in range(2):
        step(replica, k)
        replica.eval()
        with torch.no_grad():
            found += [replica(batch(9, 0)), replica(batch(9, 1)), replica.module[0].running_mean]
        replica.train()
    return [t.clone() for t in found]


def buffers_under_no_sync(kind):
    """The running mean that every forward finds, of steps in and outside of no_sync."""
    module, found = with_norm(), []
    replica = wrap(kind, module)
    module[0].register_forward_pre_hook(lambda *_: found.append(module[0].running_mean.clone()))
    for k, sync in enumerate([True, False, False, True, True, False, True]):
        with contextlib.nullcontext() if sync else replica.no_sync():
            loss_of(replica, my_batch(k)).backward()
    return [*found, gradients(replica)]


def nested_state(kind):
    """Saved from a model that has the replica as a part, changed, and loaded into it again."""
    whole = nn.Sequential(wrap(kind, Two()), nn.Linear(8, 8).double())
    saved = {name: t.clone() + 1 for name, t in whole.state_dict().items()}
    whole.load_state_dict(saved)
    assert "0.module.always.weight" in saved
    return [*whole[0].module.parameters()]


def through_the_module(kind):
    """Its gradients are added to the averaged ones, and stay the rank's own."""
    replica = wrap(kind, Two())
    step(replica)
    loss_of(replica.module, my_batch(1)).backward()
    return [gradients(replica), step(replica, 2)]


def two_backwards(kind):
    """Through one forward: what the second one adds is the rank's own."""
    replica = wrap(kind, Two())
    loss = loss_of(replica, my_batch(0))
    loss.backward(retain_graph=True)
    loss.backward()
    return [gradients(replica), step(replica, 2)]


def one_backward_of_two(kind):
    replica = wrap(kind, Two())
    first, second = loss_of(replica, my_batch(0)), loss_of(replica, my_batch(1))
    (first + second).backward()
    return [gradients(replica), step(replica, 2)]


SURVIVED = {
    each.__name__: each
    for each in (
        wrapped_again,
        wrapped_twice,
        backward_skipped,
        forward_failed,
        evaluated_between,
        evaluated_without_gradients,
        buffers_under_no_sync,
        nested_state,
        through_the_module,
        two_backwards,
        one_backward_of_two,
    )
}


def with_both(what):
    return [SURVIVED[what](kind) for kind in KINDS]


@pytest.mark.parametrize("what", SURVIVED)
def test_it_survives_what_pytorchs_does(ranks, what):
    for pytorchs, own in ranks.run(with_both, what):
        torch.testing.assert_close(own, pytorchs, **CLOSE, equal_nan=True)


def skipped_and_whole():
    """An ordinary step after all of it, and the whole batch's gradients."""
    replica, twin = wrap("own", Two()), Two()
    loss_of(replica, my_batch(3))
    step(replica)
    gradients_of_all(twin, range(dist.get_world_size()))
    return gradients(replica), gradients(twin)


def test_they_are_those_of_the_whole_batch(ranks):
    for own, whole in ranks.run(skipped_and_whole):
        torch.testing.assert_close(own, whole, **CLOSE, equal_nan=True)


def failed_backward(kind):
    """A backward that fails when most gradients are there; what a retry and a forward say."""
    module = Two()
    replica, said = wrap(kind, module), []
    step(replica)

    def fail(_):
        raise KeyError("out of memory")

    hook = module.always.weight.register_hook(fail)
    loss = loss_of(replica, my_batch(1))
    with contextlib.suppress(KeyError):
        loss.backward(retain_graph=True)
    hook.remove()
    for again in (loss.backward, lambda: loss_of(replica, my_batch(2))):
        try:
            again()
            said.append("")
        except RuntimeError as error:
            said.append(str(error))
    replica = wrap(kind, module)
    twin = wrap("own", Two())
    return *said, step(replica), step(twin)


def test_a_retry_after_a_backward_that_failed_is_refused_until_it_is_wrapped_again(ranks):
    for retried, forward, grads, expected in ranks.run(failed_backward, "own"):
        assert "came after its averaging" in retried
        assert "Wrap the model again" in forward
        torch.testing.assert_close(grads, expected, **CLOSE, equal_nan=True)
