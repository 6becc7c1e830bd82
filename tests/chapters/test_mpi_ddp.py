"""Chapter 13's data parallelism over MPI: 1 to 4 ranks beside one, and beside torch's DDP."""

import pickle
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from on_ranks import on
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from under_mpi import mpiexec, needs_mpi

pytestmark = needs_mpi

PROGRAM = Path(__file__).with_name("mpi_ddp_cases.py")
CLOSE = 1e-12
BY_DAY = (
    "equality",
    "own_statistics",
    "plain_mean",
    "ways",
    "few_examples",
    "clipped",
    "scheduled",
    "lacking",
    "resumed",
    "broadcast",
    "dealt",
    "twice",
    "skipped",
)


def results(folder, *cases):
    done = mpiexec(4, PROGRAM, folder / "found.pickle", *cases)
    assert done.returncode == 0, done.stdout[-4000:]
    return pickle.loads((folder / "found.pickle").read_bytes())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """{case: what each rank has returned}: one launch for all."""
    return results(tmp_path_factory.mktemp("mpi"), *BY_DAY)


def apart(one, other):
    assert one.shape == other.shape and np.isfinite(one).all()
    return np.abs(one - other).max()


def on_every_rank(of_ranks):
    """The weights of the ranks that took part, which must be the same to the bit."""
    first, *others = [one for one in of_ranks if one is not None]
    assert all(np.array_equal(first, other) for other in others)
    return first


def of(found, *keys):
    """From what each rank has returned, what stands under these keys."""
    for key in keys:
        found = [one[key] for one in found]
    return on_every_rank(found)


# Equal to one process


@pytest.mark.parametrize("norm", ["off", "synchronized"])
def test_any_number_of_ranks_trains_what_one_would(found, norm):
    alone = found["equality"][0][1, norm]
    for k in (2, 3, 4):
        assert apart(of(found["equality"], (k, norm)), alone) < CLOSE


def test_with_statistics_of_its_own_each_rank_sees_another_batch(found):
    own, alone = found["own_statistics"], found["equality"][0][1, "synchronized"]
    parameters = slice(0, len(alone) - 28)  # the running statistics, of 6 and 8 channels, differ
    weights = on_every_rank([one[parameters] for one in own])
    assert apart(weights, alone[parameters]) > 1e-3
    assert apart(own[0], own[1]) > 1e-3


def test_a_plain_mean_of_unequal_shards_is_another_training(found):
    plain = on_every_rank(found["plain_mean"])
    assert apart(plain, found["equality"][0][1, "off"]) > 1e-3


def test_one_buffer_several_and_none_come_to_the_same(found):
    each = of(found["ways"], "each")
    for way in ("flat", "overlapped"):
        assert apart(of(found["ways"], way), each) < CLOSE


def test_a_rank_without_a_share_takes_part_and_counts_nothing(found):
    assert apart(of(found["few_examples"], 4), found["few_examples"][0][1]) < CLOSE


def test_a_gradient_that_one_rank_lacks(found):
    (alone, _, idle_alone), *_ = (one[1] for one in found["lacking"])
    for key in (4, "overlapped"):
        weights, lacked, idle = zip(*(one[key] for one in found["lacking"]))
        assert apart(on_every_rank(weights), alone) < CLOSE
        assert any(lacked) and len(set(lacked)) > 1  # some ranks lack it where others do not
        assert idle_alone and all(idle)  # what nobody uses stays as it is, weight decay or not


def test_clipping_goes_by_the_norm_of_the_whole_gradient(found):
    assert apart(of(found["clipped"], 4), found["clipped"][0][1]) < CLOSE
    assert min(found["clipped"][0]["norms"]) > 0.5  # it did clip


def test_a_schedule_reaches_the_optimizer_from_outside_and_inside(found):
    outside, inside = of(found["scheduled"], "outside", 4), of(found["scheduled"], "inside")
    assert np.array_equal(outside, inside)
    assert apart(outside, found["scheduled"][0]["outside"][1]) < CLOSE
    assert apart(outside, of(found["scheduled"], "constant")) > 1e-3


def test_what_is_resumed_is_what_was_not_interrupted_to_the_bit(found):
    whole, resumed = (on_every_rank(weights) for weights in zip(*found["resumed"]))
    assert np.array_equal(whole, resumed)


def test_two_backwards_add_up_in_one_buffer_and_are_refused_by_several(found):
    for added, refused, once in found["twice"]:
        assert apart(added, 2 * once) < CLOSE
        assert "A second backward" in refused


def test_a_step_that_all_leave_out_leaves_nothing_behind_in_several_buffers(found):
    after, once = zip(*found["skipped"])
    assert apart(on_every_rank(after), on_every_rank(once)) < CLOSE


def test_the_parameters_and_the_statistics_of_any_rank_are_handed_out(found):
    before, after = zip(*found["broadcast"])
    assert np.array_equal(on_every_rank(after), before[2]) and not np.array_equal(*before[:2])


# The data


@pytest.mark.parametrize("k", [1, 3, 4])
def test_every_rank_has_its_share_of_every_batch(found, k):
    one, _, steps = found["dealt"][0][1]
    of_ranks = [of_rank[k] for of_rank in found["dealt"][:k]]
    assert steps == 5 and all(of_rank[2] == 5 for of_rank in of_ranks)
    assert [share for _, share, _ in of_ranks] == {1: [12], 3: [4] * 3, 4: [3] * 4}[k]
    for epoch in range(2):
        for step in range(steps):
            batches = [of_rank[0][epoch][step] for of_rank in of_ranks]
            whole = one[epoch][step][0]
            assert [n for _, _, (_, n) in batches] == [len(whole)] * k
            # Who has no share gets an example that does not count.
            assert sorted(chain(*(X[:m] for X, _, (m, _) in batches))) == sorted(whole)
            assert all(y == X and len(X) == max(1, m) for X, y, (m, _) in batches)


def test_an_epoch_has_every_example_once_and_another_order(found):
    first, second = found["dealt"][0][1][0]
    orders = [list(chain(*(X for X, _, _ in epoch))) for epoch in (first, second)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert orders[0] != orders[1]


# Beside torch


def torch_twin(start):
    """The network of mpi_ddp_cases.py, of torch, with these weights."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 10),
    ).double()  # fmt: skip
    begin = 0
    for p in model.parameters():
        p.data = torch.tensor(start[begin : begin + p.numel()]).view(p.shape)
        begin += p.numel()
    return model


def train_by_ddp(group, start):
    """What mpi_ddp_cases.beside_torch does, by torch over Gloo."""
    import mpi_ddp_cases as cases

    from ranklab.framework.loading import RandomSampler

    examples, rank = cases.Examples(36), torch.distributed.get_rank(group)
    model = torch_twin(start)
    replica = DistributedDataParallel(model)
    opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.001)
    sampler = RandomSampler(36, cases.SEED)
    for _ in range(5):
        order = list(sampler)
        for begin in range(0, 36, 12):
            mine = order[begin : begin + 12][rank::4]
            opt.zero_grad()
            out = replica(torch.tensor(examples.X[mine]))
            nn.functional.cross_entropy(out, torch.tensor(examples.y[mine])).backward()
            opt.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


@pytest.mark.everything
def test_it_trains_what_torchs_ddp_trains_over_gloo(four, tmp_path):
    found = results(tmp_path, "beside_torch")
    start = on_every_rank([start for start, _ in found["beside_torch"]])
    theirs = on(four, range(4), train_by_ddp, start)[0]
    ours = on_every_rank([weights[: len(theirs)] for _, weights in found["beside_torch"]])
    assert apart(ours, theirs) < CLOSE


# The end


FAILS = """
from ranklab.framework.world import mean_over_ranks
from ranklab.taught import mpi_ddp as ddp
rank, _ = ddp.init()
if rank == 1:
    print("said before", flush=True)
    raise ValueError("on rank 1")
mean_over_ranks(1)
"""


def test_an_exception_on_one_rank_is_shown_and_ends_all():
    done = mpiexec(2, "-c", FAILS, limit=30)
    assert done.returncode != 0
    assert "said before" in done.stdout and "ValueError: on rank 1" in done.stdout


@pytest.mark.everything
def test_so_does_resnet9(tmp_path):
    of_ranks = results(tmp_path, "whole_resnet9")["whole_resnet9"]
    for k in (2, 3, 4):
        assert apart(of(of_ranks, k), of_ranks[0][1]) < CLOSE
