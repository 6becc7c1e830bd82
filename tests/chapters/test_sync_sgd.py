"""Chapter 10's synchronous SGD, on 1 to 4 real ranks, beside one process with the whole batch."""

from functools import cache
from itertools import accumulate, chain, pairwise

import pytest
import torch
import torch.distributed as dist
from on_ranks import on
from tiers import few
from torch import nn
from torch.utils.data import DistributedSampler

from ranklab.taught import sync_sgd as own
from ranklab.taught.training import evaluate, samples_of_step

CLOSE = 1e-12
SHARDS = [  # the sizes of the ranks' shards
    (24,), (12, 12), (23, 1), (8, 8, 8), (3, 13, 8), (5, 5, 5, 5), (7, 8, 7, 8), (1, 2, 3, 30),
    (9, 0, 4), (0, 6, 0, 2),
]  # fmt: skip


def take(digits):
    """Have these digits, and do not read them again."""
    own.digits = lambda: digits


@pytest.fixture(scope="module")
def four(four):
    """Four ranks that have the digits: scikit-learn, which reads them, takes a rank a second."""
    four.run(take, own.digits())
    return four


def flat_gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


# The gradient of a batch


class WithIdleParts(nn.Module):
    """A frozen parameter, one that is used twice, and one that no output depends on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 10)
        self.first.bias.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.last(torch.tanh(self.first(torch.tanh(self.first(x)))))


def gradient_and_twin(group, kind, sizes):
    """The averaged gradient of shards of these sizes, and that of the whole batch, in float64."""
    (X, y), _ = own.digits()
    X, mine = X.double(), [slice(*ends) for ends in pairwise([0, *accumulate(sizes)])]
    mine, n = mine[dist.get_rank(group)], sum(sizes)
    replica, alone = kind().double(), kind().double()
    nn.functional.cross_entropy(replica(X[mine]), y[mine]).backward()  # 0 samples: not a number
    own.average_gradients(replica, sizes[dist.get_rank(group)] / n, group)
    nn.functional.cross_entropy(alone(X[:n]), y[:n]).backward()
    return flat_gradient(replica), flat_gradient(alone)


def assert_gradients_of_the_whole(results):
    for averaged, whole in results:
        assert (averaged - whole).abs().max() < CLOSE
        assert torch.equal(averaged, results[0][0])  # the same bits on every rank


@pytest.mark.parametrize("kind", [own.DigitsNet, WithIdleParts])
@pytest.mark.parametrize("sizes", SHARDS, ids=str)
def test_the_averaged_gradient_is_that_of_the_whole_batch(four, sizes, kind):
    assert_gradients_of_the_whole(on(four, range(len(sizes)), gradient_and_twin, kind, sizes))


@pytest.mark.parametrize("members", [(1, 3), (3,), (1, 2, 3)])
def test_so_it_is_in_a_group_without_rank_0(four, members):
    sizes = (5, 8, 7)[: len(members)]
    assert_gradients_of_the_whole(on(four, members, gradient_and_twin, own.DigitsNet, sizes))


def plain_mean_and_twin(group):
    """Two ranks' plain mean over equal shards, and over unequal ones, and the whole batch's."""
    (X, y), _ = own.digits()
    found = []
    for cut in (20, 30):
        shards = slice(0, cut), slice(cut, 40)
        models = own.DigitsNet().double(), own.DigitsNet().double()
        for model, part in zip(models, (shards[dist.get_rank(group)], slice(0, 40))):
            nn.functional.cross_entropy(model(X[part].double()), y[part]).backward()
        own.average_gradients(models[0], group=group)
        found.append((flat_gradient(models[0]) - flat_gradient(models[1])).abs().max().item())
    return found


def test_the_plain_mean_is_right_for_equal_shards_only(four):
    for equal, unequal in on(four, range(2), plain_mean_and_twin):
        assert equal < CLOSE and unequal > 1e-3


@pytest.mark.parametrize("world_size", range(1, 9))
@pytest.mark.parametrize("n", [0, 1, 7, 64, 1438])
def test_shards_are_all_there_is_and_differ_by_one_at_most(n, world_size):
    shards = [list(range(n)[own.shard(n, r, world_size)]) for r in range(world_size)]
    assert [*chain(*shards)] == list(range(n))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


# The start


def start_from(group, src):
    """Broadcast a model whose weights, buffers and types differ from rank to rank."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(own.DigitsNet(seed=dist.get_rank()), nn.BatchNorm1d(10), nn.Linear(10, 2))
    model[2].double().bias.requires_grad_(False)
    model[1](torch.randn(5, 10))
    model[1].num_batches_tracked += dist.get_rank()
    before = [t.detach().clone() for t in [*model.parameters(), *model.buffers()]]
    places = [t.data_ptr() for t in [*model.parameters(), *model.buffers()]]
    drifts = [own.drift(model, group)]
    own.broadcast_parameters(model, src, group)
    after = [t.detach().clone() for t in [*model.parameters(), *model.buffers()]]
    same_places = places == [t.data_ptr() for t in [*model.parameters(), *model.buffers()]]
    return before, after, [*drifts, own.drift(model, group)], same_places


STARTS = [((0,), 0), ((0, 1), 1), ((0, 1, 2), 0), ((0, 1, 2, 3), 2), ((1, 3), 0), ((1, 3), 1)]


@pytest.mark.parametrize("members, src", STARTS)
def test_every_rank_starts_from_what_src_of_the_group_has(four, members, src):
    results = on(four, members, start_from, src)
    for _, after, (first, last), same_places in results:
        assert all(map(torch.equal, after, results[src][0]))
        assert last == 0 and same_places
        assert len(members) == 1 or first > 0.1


def drift_with(group, on_rank, number):
    """The drift if a weight of one rank, in the group, is this number."""
    model = own.DigitsNet()
    if dist.get_rank(group) == on_rank:
        model.last.weight.data[3, 5] = number
    return own.drift(model, group)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("on_rank", [0, 1, 2])
def test_the_drift_is_inf_on_every_rank_if_one_has_what_is_not_finite(four, on_rank, number):
    assert on(four, (1, 2, 3), drift_with, on_rank, number) == [float("inf")] * 3


def test_the_seed_decides_which_digits_are_for_testing():
    (first, _), _ = own.digits()
    (again, _), _ = own.digits(seed=0)
    (other, _), (other_test, labels) = own.digits(seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (len(first), len(other), len(other_test), len(labels)) == (1438, 1438, 359, 359)


def test_the_seed_decides_the_first_weights_and_nobody_else_is_disturbed():
    before = torch.get_rng_state()
    first, again, other = (own.DigitsNet(seed).last.weight for seed in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


# A whole training


def training(group, steps, dtype, **how):
    """Train on the digits; return (losses, share of held-out digits found, drift)."""
    (X, y), (X_test, y_test) = own.digits()
    model = own.DigitsNet(seed=dist.get_rank(group)).to(dtype)  # of which the first one's counts
    how = {"steps": steps, "batch_size": 128, "learning_rate": 0.2} | how
    losses = own.sync_sgd(model, X.to(dtype), y, **how, group=group)
    return losses, evaluate(model, X_test.to(dtype), y_test)[1], own.drift(model, group)


@cache
def by_hand(steps, momentum=0.9, seed=0):
    """The losses of the same training without any of the chapter's code."""
    (X, y), _ = own.digits()
    model, losses = own.DigitsNet().double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=momentum)
    for step in range(steps):
        chosen = samples_of_step(step, len(X), 128, seed)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X[chosen].double()), y[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def assert_losses(results, twin):
    for losses, _, drift in results:
        assert (torch.tensor(losses) - twin).abs().max() < 1e-10
        assert drift == 0


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_losses_are_those_of_one_process(four, k):
    assert_losses(on(four, range(k), training, 24, torch.float64), by_hand(24))


@pytest.mark.parametrize(
    "how",
    [{"momentum": 0.0}, {"momentum": 0.5}, {"seed": 1}, {"seed": 2, "momentum": 0.8}],
    ids=str,
)
def test_so_they_are_with_another_momentum_or_seed_in_a_group_without_rank_0(four, how):
    assert_losses(on(four, (1, 3), training, 15, torch.float64, **how), by_hand(15, **how))


@pytest.mark.parametrize("k", few([1, 2, 3, 4], lambda k: k == 4))
def test_95_percent_of_held_out_digits_are_found(four, k):
    for losses, accuracy, drift in on(four, range(k), training, 66, torch.float32):
        assert accuracy > 0.95 and drift == 0
        assert losses[-1] < 0.1 * losses[0]


# Batch normalization


def summed(group):
    """A tensor before and after its all-reduce, the sum, and the gradients before and after."""
    me = dist.get_rank(group) + 1.0
    x = torch.full((3,), me, requires_grad=True)
    total = own.AllReduce.apply(x, group)
    gradient = torch.full((3,), 10 * me)
    total.backward(gradient)
    return [t.tolist() for t in (x.detach(), total.detach(), gradient, x.grad)]


def test_an_all_reduce_leaves_what_it_is_given_as_it_is(four):
    for r, found in enumerate(on(four, (1, 2, 3), summed)):
        assert found == [[r + 1] * 3, [6] * 3, [10 * (r + 1)] * 3, [60] * 3]


def normalized_and_twin(group, sizes):
    """Outputs, gradients, running statistics: of shards with ours, of the whole with PyTorch's."""
    me, found = dist.get_rank(group), []
    ends = [0, *accumulate(sizes)]
    x = torch.randn(ends[-1], 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for kind, part in ((own.SyncedBatchNorm, slice(ends[me], ends[me + 1])), (nn.BatchNorm1d, ...)):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 4), kind(4), nn.Tanh(), nn.Linear(4, 1)).double()
        model[1].group = group
        for _ in range(3):  # the running statistics of several steps
            model.zero_grad()
            inputs = x[part].clone().requires_grad_()
            outputs = model(inputs)
            (outputs.sum() / ends[-1]).backward()
        if kind is own.SyncedBatchNorm:
            own.average_gradients(model, 1, group)
        norm = model[1]
        model.eval()
        found.append((outputs.detach(), inputs.grad, model(x[:3]).detach(), flat_gradient(model),
                      norm.running_mean, norm.running_var, norm.num_batches_tracked))  # fmt: skip
    mine, whole = found
    own_rows = slice(ends[me], ends[me + 1])
    return mine, (whole[0][own_rows], whole[1][own_rows], *whole[2:])


@pytest.mark.parametrize("sizes", [s for s in SHARDS if sum(s) > 1], ids=str)
def test_synchronized_batch_norm_is_that_of_the_whole_batch(four, sizes):
    for mine, whole in on(four, range(len(sizes)), normalized_and_twin, sizes):
        for got, wanted in zip(mine, whole):
            assert got.shape == wanted.shape
            torch.testing.assert_close(got, wanted, rtol=0, atol=CLOSE)


# What DistributedSampler deals


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_the_batches_of_a_step_are_the_same_for_any_number_of_ranks(world_size):
    n, size = 1438, 24  # which 2, 3, 4 and 8 divide
    hands = []
    for r in range(world_size):
        sampler = DistributedSampler(range(n), num_replicas=world_size, rank=r)
        sampler.set_epoch(2)
        hands.append(list(sampler))
    one = DistributedSampler(range(n), num_replicas=1, rank=0)
    one.set_epoch(2)
    deck, share = list(one), size // world_size
    for step in range(n // size):
        dealt = {s for hand in hands for s in hand[step * share : (step + 1) * share]}
        assert dealt == set(deck[step * size : (step + 1) * size])


# What the page says of PyTorch


def test_the_old_name_of_the_reductions_still_answers_and_warns():
    with pytest.warns(FutureWarning, match="ReduceOp"):
        assert dist.reduce_op.SUM == dist.ReduceOp.SUM
