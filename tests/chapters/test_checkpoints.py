"""What chapter 25's checkpoints are made of: the file, the one rank that writes, the groups."""

import contextlib
import functools
import os
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from resuming.forked import Forked, preload
from torch import nn

from ranklab.checks.resume._any_moment import flaw
from ranklab.taught import resume

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    preload()
    ranks = Forked(4, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


@functools.cache
def group_of(*members):
    """The group of these ranks; all ranks of the world make it at the same time, once."""
    return dist.new_group(list(members))


@pytest.mark.parametrize("old", [None, b"what was there before"])
def test_the_file_is_the_old_or_the_new_whenever_the_writer_is_killed(old):
    def save(path, data):
        resume.write_whole(path, lambda file: file.write(data))

    assert flaw(save, old, b"the new content" * 9) == ""


# On return the checkpoint is there for all


def saved_slowly(folder):
    """Rank 0's renaming waits for the others; return which step each finds after the call."""
    resume.save_checkpoint(folder, 1, {}, None)
    replace, seen = os.replace, Path(folder, f"seen by {dist.get_rank()}")

    def replace_when_the_others_are_through(old, new):
        others = [Path(folder, f"seen by {r}") for r in range(1, dist.get_world_size())]
        wait_for(lambda: all(path.exists() for path in others))
        replace(old, new)

    with contextlib.ExitStack() as stack:
        if dist.get_rank() == 0:
            stack.enter_context(mock.patch("os.replace", replace_when_the_others_are_through))
        for name in ("barrier", "broadcast", "broadcast_object_list", "all_reduce"):
            stack.enter_context(mock.patch.object(dist, name, noting(getattr(dist, name), seen)))
        resume.save_checkpoint(folder, 2, {}, None)
    found = resume.latest_checkpoint(folder).name
    seen.touch()
    dist.barrier()
    return found


def noting(communicate, path):
    """`communicate`, but whoever calls it notes first that it goes to wait for the others."""

    def call(*args, **kwargs):
        path.touch()
        return communicate(*args, **kwargs)

    return call


def wait_for(condition, limit=40):
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "The others neither wait nor return."
        time.sleep(0.01)


def test_nobody_returns_before_the_checkpoint_is_there(ranks, tmp_path):
    assert ranks.run(saved_slowly, str(tmp_path)) == ["step-00000002.pt"] * 4


# A group of any ranks


def saved_and_loaded_by(members, folder):
    """Save and load in this group; return what its ranks find, None from the others."""
    group = group_of(*members)
    if dist.get_rank() not in members:
        return None
    nothing = resume.load_checkpoint(folder, group)
    me = dist.get_rank()
    resume.save_checkpoint(folder, 7, {"from": me}, f"of {me}", group)
    return nothing, resume.load_checkpoint(folder, group)


@pytest.mark.parametrize("members", [(0, 1, 2, 3), (1, 3), (2,), (1, 2, 3)])
def test_groups_save_and_load_for_themselves(ranks, members, tmp_path):
    found = ranks.run(saved_and_loaded_by, members, str(tmp_path))
    everyones = [f"of {r}" for r in members]
    expected = {"step": 7, "shared": {"from": members[0]}, "own": everyones}
    assert [found[r] for r in members] == [(None, expected)] * len(members)


def refused(members, folder):
    """What a save says where no folder can be made, and the ranks that meet after it."""
    group = group_of(*members)
    if dist.get_rank() not in members:
        return None
    try:
        resume.save_checkpoint(folder, 7, {}, None, group)
    except OSError as error:
        there = [None] * len(members)
        dist.all_gather_object(there, dist.get_rank(), group)
        return str(error), there


@pytest.mark.parametrize("members", [(0, 1, 2, 3), (1, 3)])
def test_what_cannot_be_written_is_an_error_on_all_ranks_and_none_waits(ranks, members, tmp_path):
    file = tmp_path / "file"
    file.touch()
    found = ranks.run(refused, members, str(file / "folder"))
    for said, there in (found[r] for r in members):
        assert "The checkpoint of step 7 cannot be written" in said
        assert there == [*members]


# The samples


def dealt(members, epoch, n=50, batch=12):
    group = group_of(*members)
    return resume.shares(n, epoch, batch, group) if dist.get_rank() in members else None


@pytest.mark.parametrize("members", [(0, 1, 2, 3), (1, 3), (1, 2, 3)])
def test_the_ranks_shares_are_disjoint_parts_of_each_batch(ranks, members):
    hands = [ranks.run(dealt, members, 0)[r] for r in members]
    assert {len(hand) for hand in hands} == {4}  # batches of 12, from 50 samples
    assert {len(share) for hand in hands for share in hand} == {12 // len(members)}
    samples = [sample for hand in hands for share in hand for sample in share]
    assert len(set(samples)) == len(samples) == 48


def test_every_epoch_is_dealt_in_an_order_of_its_own(ranks):
    first, again, second = (ranks.run(dealt, (1, 3), epoch) for epoch in (0, 0, 1))
    assert first == again
    for r in (1, 3):
        assert first[r] != second[r]


# What no load would read


class Own(dict):
    """A type of somebody's."""


@pytest.mark.parametrize(
    "foreign, place",
    [
        (np.float64(1), "state['shared']['here'][1]"),
        (Path("folder"), "state['shared']['here'][1]"),
        (Own(), "state['shared']['here'][1]"),
        ({Path("key"): 1}, "a key of state['shared']['here'][1]"),
    ],
)
def test_what_no_load_would_read_is_refused_before_anything_is_written(foreign, place, tmp_path):
    resume.write_checkpoint(tmp_path, {"step": 1, "shared": {}})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TypeError) as refusal:
        resume.write_checkpoint(tmp_path, {"step": 2, "shared": {"here": [0, foreign]}})
    assert str(refusal.value).startswith(f"{place} is a ")
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_not_refused_is_read(tmp_path):
    model = nn.Linear(2, 2)
    adam = torch.optim.AdamW(model.parameters())
    model(torch.ones(2)).sum().backward()
    adam.step()
    parts = {
        "model": model.state_dict(),
        "adam": adam.state_dict(),
        "chance": resume.random_states(),
    }
    parts["more"] = [None, (1, 2.0, 1j), {"a"}, b"b", torch.Size([3]), torch.bfloat16]
    parts["more"].append(torch.device("cpu"))
    resume.write_checkpoint(tmp_path, {"step": 1, **parts})
    state, _ = resume.newest_readable(tmp_path)
    assert state["more"] == parts["more"] and state["chance"].keys() == parts["chance"].keys()
