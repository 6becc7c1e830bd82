"""Chapter 12's OwnDDP: what it promises beyond what holds of all wrappers (test_wrappers.py)."""

import ast
import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from on_ranks import group_of
from torch import nn
from wrappers import (
    CLOSE,
    N,
    Recomputed,
    Two,
    gradients_of_all,
    loss_of,
    my_batch,
    started,
    weights,
    wrap,
)

from ranklab.errors import RankError
from ranklab.taught import own_ddp as own

SCRIPT = Path(__file__).parents[2] / "scripts" / "12_own_ddp.py"


@pytest.fixture(scope="module")
def ranks():
    with started() as ranks:
        yield ranks


def classes_of_the_page(*names):
    """Their syntax trees, in this order."""
    tree = ast.parse(SCRIPT.read_text()).body
    found = {part.name: part for part in tree if isinstance(part, ast.ClassDef)}
    return [found[name] for name in names]


def length(part):
    return part.end_lineno - part.lineno + 1


def test_the_wrapper_is_short():
    """With its reducer, built up in steps, as the page has them."""
    reducer = "Dealt", "InBuckets", "Overlapped", "InOrder", "Complete", "Armed", "Reducer"
    classes = classes_of_the_page(*reducer, "Replicated", "Shared", "OwnDDP")
    assert sum(map(length, classes)) <= 220
    methods = [part for each in classes for part in each.body if isinstance(part, ast.FunctionDef)]
    assert max(map(length, methods)) <= 25


# Models that are refused


def differing(how):
    """Wrap models that differ; return what was raised."""
    last = dist.get_rank() == N - 1
    names = ["one", "two"][:: -1 if last else 1] if how == "order" else ["one", "two"]
    if how == "one more" and last:
        names = [*names, "three", "four"]
    if how == "one less" and last:
        names = ["one"]
    module = nn.ModuleDict({name: nn.Linear(4, 4) for name in names})
    if how == "shape" and last:
        module["two"] = nn.Linear(4, 5)
    if how == "type" and last:
        module["two"].double()
    if how == "frozen" and last:
        module["two"].requires_grad_(False)
    if how == "buffer" and last:
        module["one"].register_buffer("seen", torch.zeros(1))
    return refused(module)


def refused(module):
    """What is raised when it is wrapped, or None."""
    try:
        own.OwnDDP(module)
    except ValueError as error:
        return str(error)


DIFFERENCES = {
    "order": ("one.weight", "two.weight"),
    "shape": ("two.weight (4, 4)", "(5, 4)"),
    "type": ("torch.float32", "torch.float64"),
    "one more": ("missing", "three.weight"),
    "one less": ("two.weight", "missing"),
    "frozen": ("float32, trained on rank 0", "float32 on rank 3"),
    "buffer": ("missing on rank 0", "one.seen"),
}


@pytest.mark.parametrize("how", DIFFERENCES)
def test_models_that_differ_are_named_on_every_rank(ranks, how):
    for said in ranks.run(differing, how):
        assert "rank 3" in said
        assert all(part in said for part in DIFFERENCES[how]), said


def test_equal_models_are_accepted(ranks):
    assert ranks.run(differing, "not at all") == [None] * N


def without_trained_parameters():
    return [refused(nn.Linear(4, 4).requires_grad_(False)), refused(nn.Tanh())]


def test_a_model_without_trained_parameters_is_refused(ranks):
    for said in ranks.run(without_trained_parameters):
        assert all("nothing to average" in each for each in said)


# What comes without its counterpart


def raised_by(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def loss(model, step=0):
    return loss_of(model, my_batch(step))


def averaged(replica):
    """The gradients of an ordinary step, and those of the whole batch."""
    twin = copy.deepcopy(replica.module)
    replica.zero_grad()
    twin.zero_grad()
    loss(replica).backward()
    gradients_of_all(twin, range(N))
    return [[p.grad for p in m.parameters()] for m in (replica.module, twin)]


def of_what_was_absent():
    """The gradient of a layer that the forward before, which averaged, has not used."""
    replica = wrap("own", Two())
    inside = torch.tanh(replica.module.wanted(my_batch(0)))
    replica(my_batch(0), wanted=False).sum().backward()
    said = raised_by(inside.sum().backward)
    return said, *averaged(replica)


def test_a_gradient_after_its_averaging_is_refused_and_then_it_works(ranks):
    for said, grads, twins in ranks.run(of_what_was_absent):
        assert "after its averaging" in said
        torch.testing.assert_close(grads, twins, **CLOSE)


def recompute_the_last_part():
    """A checkpoint that runs a backward of its own inside of that of the model."""
    replica = wrap("own", nn.Sequential(nn.Linear(8, 8), Recomputed(use_reentrant=True)).double())
    return raised_by(lambda: loss(replica).backward())


def test_a_backward_inside_of_backward_is_refused(ranks):
    """Its end is not that of the outer one, whose gradients come after the averaging."""
    assert all("after its averaging" in said for said in ranks.run(recompute_the_last_part))


def add_without_averaging(inside):
    """Gradients to which a step in no_sync adds the rank's own, and what they should be."""
    replica, twin, mine = wrap("own", Two()), Two(), Two()
    loss(replica).backward()
    with replica.no_sync():
        found = loss(replica, 1)
        if inside:
            found.backward()
    if not inside:
        found.backward()
    gradients_of_all(twin, range(N))
    loss(mine, 1).backward()
    return replica.module.always.bias.grad, twin.always.bias.grad + mine.always.bias.grad


@pytest.mark.parametrize("inside", [True, False])
def test_what_a_forward_in_no_sync_adds_after_the_averaging_is_welcome(ranks, inside):
    for grad, expected in ranks.run(add_without_averaging, inside):
        torch.testing.assert_close(grad, expected, **CLOSE)


def by_autograd_grad():
    """Gradients that are returned and not accumulated: this rank's, and the whole batch's."""
    replica, mine, twin = wrap("own", Two()), Two(), Two()
    (grad,) = torch.autograd.grad(loss(replica), [replica.module.always.weight])
    loss(mine).backward()
    gradients_of_all(twin, range(N))
    return grad, mine.always.weight.grad, twin.always.weight.grad


def test_autograd_grad_averages_nothing(ranks):
    for grad, mine, twins in ranks.run(by_autograd_grad):
        torch.testing.assert_close(grad, mine, **CLOSE)
        assert not torch.allclose(grad, twins)


# Buckets and messages


class Crossed(nn.Module):
    """Layers c, a, b, used in the order that it is told."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.c, self.a, self.b = (nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x, layers):
        for name in layers:
            x = torch.tanh(getattr(self, name)(x))
        return x


def orders():
    """The parameters in the order of the buckets, at first and after each of some steps."""
    module = Crossed()
    name_of = {p: name[0] for name, p in module.named_parameters()}
    replica = own.OwnDDP(module, bucket_bytes=1, first_bytes=1)

    def order():
        return "".join(name_of[p] for b in replica.reducer.buckets for p in b.parameters)

    found, of_rank_0 = [order()], ["abc", "cab", "bca", "abc"]
    for layers in of_rank_0 if dist.get_rank() == 0 else ["bac"] * 4:
        replica(torch.ones(2, 4), layers).sum().backward()
        found.append(order())
    return found


def test_buckets_begin_in_reverse_order_and_then_follow_rank_0s_first_arrivals(ranks):
    """Though gradients arrive in another order on the other ranks, and later on rank 0."""
    assert ranks.run(orders) == [["bac", *["cba"] * 4]] * N


def count_messages():
    """With its own all-reduce: the sizes of the messages of one step, and of the buckets."""
    sent = []

    def counting(buffer, group=None, async_op=False):
        sent.append(buffer.numel())
        return dist.all_reduce(buffer, group=group, async_op=async_op)

    replica = wrap("own", Two(), all_reduce=counting)
    for k in range(2):
        sent.clear()
        loss(replica, k).backward()
    with replica.no_sync():
        loss(replica).backward()
    return sent, [bucket.buffer.numel() for bucket in replica.reducer.buckets]


def test_a_step_sends_each_bucket_once_with_the_all_reduce_that_it_was_given(ranks):
    for sent, buckets in ranks.run(count_messages):
        assert sent == buckets
        assert len(sent) >= 2


class Noting:
    """An all-reduce under way that notes when it is waited for."""

    def __init__(self, work, events):
        self.work, self.events = work, events

    def wait(self):
        self.events.append("wait")
        return self.work.wait()


def events_of_a_step():
    """The order of sending, waiting, and the gradients' arrivals, in the second step."""
    events = []

    def noting(buffer, group=None, async_op=False):
        events.append("send")
        return Noting(dist.all_reduce(buffer, group=group, async_op=True), events)

    layers = [nn.Linear(8, 8, bias=False) for _ in range(6)]
    replica = own.OwnDDP(nn.Sequential(*layers).double(), None, noting, 1, 1)
    for p in replica.parameters():  # after the reducer's own hook
        p.register_post_accumulate_grad_hook(lambda p: events.append("gradient"))
    for k in range(2):
        events.clear()
        loss(replica, k).backward()
    return events


def test_each_bucket_leaves_when_it_is_full_and_nobody_waits_before_the_last_gradient(ranks):
    assert ranks.run(events_of_a_step) == [["send", "gradient"] * 6 + ["wait"] * 6] * N


# In groups of any ranks, and its state


def in_a_group(members):
    """The start and the third gradient of the group's ranks, and what they should be."""
    group = group_of(*members)
    if dist.get_rank() not in members:
        return None
    module, twin = Two(), Two()
    nn.init.constant_(module.always.bias, dist.get_rank())
    nn.init.constant_(twin.always.bias, members[0])
    replica = wrap("own", module, group)
    started_equal = torch.equal(weights(module), weights(twin))
    for k in range(3):
        replica.zero_grad()
        loss(replica, k).backward()
    gradients_of_all(twin, members, step=2)
    return started_equal, module.always.weight.grad, twin.always.weight.grad


@pytest.mark.parametrize("members", [(1, 3), (2,), (1, 2, 3)])
def test_a_group_need_not_begin_with_rank_0(ranks, members):
    for r, found in enumerate(ranks.run(in_a_group, members)):
        assert (found is not None) == (r in members)
        if found:
            started_equal, grad, twins = found
            assert started_equal
            torch.testing.assert_close(grad, twins, **CLOSE)


def broadcast_in(members, src):
    """What a group's ranks have after a broadcast of their numbers, of two types."""
    group, me = group_of(*members), dist.get_rank()
    found = [torch.full((2, 3), 2**40 + me), torch.full((4,), float(me)), torch.tensor(me)]
    if me in members:
        own.broadcast_all(found, src, group)
    return [sorted({*(t % 2**40).flatten().tolist()}) for t in found]  # no float32 holds 2**40 + 1


@pytest.mark.parametrize("src", [0, 1, 2])
def test_tensors_of_all_types_come_from_src_of_the_group(ranks, src):
    assert ranks.run(broadcast_in, (1, 2, 3), src) == [[[0]] * 3] + [[[src + 1]] * 3] * 3


# Last, as these ranks end the others


@pytest.fixture
def spare_ranks():
    """Ranks for what leaves the process group broken."""
    with started(2, timeout=10) as ranks:
        yield ranks


def skip_a_backward():
    replica = wrap("own", Two())
    found = loss(replica)
    if dist.get_rank() == 0:
        found.backward()
    else:
        dist.barrier()


def test_a_rank_that_skips_a_backward_is_named(spare_ranks):
    with pytest.raises(RankError, match=r"(?s)all_reduce.*barrier|barrier.*all_reduce"):
        spare_ranks.run(skip_a_backward)
