"""Chapter 11: the recipe for unequal shards, with which DDP's average is the mean over all ranks'
samples; and its whole program, started in each way."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from launch import BLOCK
from on_ranks import group_of, started
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bookmaker.folders import HERE
from ranklab.taught import ddp, training


@pytest.fixture(scope="module")
def ranks():
    with started() as ranks:
        yield ranks


def model_and_data(n):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, 5, dtype=torch.float64, generator=generator)
    labels = torch.randint(3, (n,), generator=generator)
    model = nn.Linear(5, 3, bias=False).double()
    nn.init.constant_(model.weight, 0.1)
    return model, inputs, labels


def gradient_and_count(members, sizes):
    """What a member's gradient is after the recipe, and how many samples it was told of."""
    group = group_of(*members)
    if dist.get_rank() not in members:
        return None
    place = members.index(dist.get_rank())
    model, inputs, labels = model_and_data(sum(sizes))
    mine = slice(sum(sizes[:place]), sum(sizes[: place + 1]))
    replica = DistributedDataParallel(model, process_group=group)
    losses = nn.functional.cross_entropy(replica(inputs[mine]), labels[mine], reduction="sum")
    return ddp.backward_of_mean(losses, sizes[place], group), model.weight.grad


@pytest.mark.parametrize(
    "members, sizes",
    [((0, 1, 2, 3), (3, 1, 8, 5)), ((0, 1, 2, 3), (4, 0, 1, 0)), ((1, 3), (7, 2)), ((2,), (6,))],
)
def test_it_is_the_gradient_of_the_whole_batch(ranks, members, sizes):
    model, inputs, labels = model_and_data(sum(sizes))
    nn.functional.cross_entropy(model(inputs), labels).backward()
    found = ranks.run(gradient_and_count, members, sizes)
    for count, gradient in (found[r] for r in members):
        assert count == sum(sizes)
        torch.testing.assert_close(gradient, model.weight.grad, rtol=1e-12, atol=1e-14)


TWO = ["--standalone", "--nproc-per-node", "2"]
START = {
    "mp.spawn": [],
    "torchrun": ["-m", "torch.distributed.run", *TWO],
    "launch": ["-m", "torch.distributed.launch", "--use-env", *TWO],
}


@pytest.mark.everything
@pytest.mark.parametrize("launcher", START)
def test_the_whole_program_starts_and_goes_on(launcher, tmp_path):
    """The page runs it by mp.spawn. However it is started: what it saves, it goes on with."""
    program = shutil.copy(HERE.root / "scripts" / "11_train_ddp.py", tmp_path)
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    environment = {n: v for n, v in os.environ.items() if n not in ("RANK", "LOCAL_RANK")}
    environment |= {"PYTHONPATH": str(tmp_path), "GLOO_SOCKET_IFNAME": loopback_name()}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    torch.save(saved_after_nothing(), tmp_path / "start.pt")
    told = ["--meet", f"file://{tmp_path}/meet", "--save", "end.pt", "--resume", "start.pt"]
    run = [sys.executable, *START[launcher], program, *told]
    done = subprocess.run(run, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 ranks have trained: end.pt" in done.stdout
    state = torch.load(tmp_path / "end.pt")
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.0
    for name, weights in saved_after_nothing()["model"].items():
        assert torch.equal(state["model"][name], weights)  # at the rate in the checkpoint


def saved_after_nothing():
    """A checkpoint of its model with other weights than it starts with, and a rate of 0."""
    model = training.MLP([64, 48, 10], seed=7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def loopback_name():
    return "lo0" if sys.platform == "darwin" else "lo"
