"""Chapter 25's checkpoints: a killed run that is resumed ends with the bits of one never killed.

The ranks are processes of their own, forked from a server that has imported torch once, and the
kill is a real SIGKILL. As a run from scratch ends with the same bits as well, each life notes with
which step it began.
"""

import functools
import os
import random
import signal
import time

import pytest
import torch
from resuming import life
from resuming.forked import LIMIT, preload, processes
from tiers import few

from ranklab.taught import resume

MOVES = [(4, 2), (2, 4), (3, 1)]
pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs processes that fork, and SIGKILL"
)


@pytest.fixture(scope="module", autouse=True)
def server():
    preload()


class Run:
    """A training in a folder of its own, which lives once or more."""

    def __init__(self, folder, world_size):
        self.folder, self.world_size = folder, world_size
        self.lives = 0
        self.checkpoints, self.result = folder / "checkpoints", folder / "end.pt"

    def start(self, end=None, noisy=True):
        self.lives += 1
        ranks = [
            processes.Process(
                target=life.live,
                args=(self.folder, self.lives, r, self.world_size, end, noisy),
                daemon=True,
            )
            for r in range(self.world_size)
        ]
        for one in ranks:
            one.start()
        return ranks

    def finish(self, began, **how):
        """Live from step `began` to the end; return (losses, weights)."""
        assert self.exitcodes(self.start(**how)) == [0] * self.world_size
        assert self.noted("began") == [str(began)] * self.world_size
        return torch.load(self.result)

    def fail(self, end=None):
        """Live until all ranks have raised; return what they say."""
        assert self.exitcodes(self.start(end)) == [1] * self.world_size
        assert not self.result.exists()
        return self.noted("raised")

    def be_killed(self, began, end, **how):
        """Live from step `began` until a rank kills itself; a launcher would end the others."""
        ranks = self.start(end, **how)
        try:
            ranks[end[1]].join(LIMIT)
            assert ranks[end[1]].exitcode == -signal.SIGKILL
        finally:
            kill(ranks)
        assert not self.result.exists()
        assert life.noted(self.folder, "began", self.lives, end[1]) == str(began)

    def exitcodes(self, ranks):
        try:
            for one in ranks:
                one.join(LIMIT)
            return [one.exitcode for one in ranks]
        finally:
            kill(ranks)

    def noted(self, what):
        """What each rank of the last life has noted."""
        return [life.noted(self.folder, what, self.lives, r) for r in range(self.world_size)]

    def files(self):
        return sorted(path.name for path in self.checkpoints.iterdir())


def kill(ranks):
    for one in ranks:
        one.kill()
        one.join()


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    """world_size -> (losses, weights) of a run that was never killed."""

    def of(world_size):
        folder = tmp_path_factory.mktemp(f"never-{world_size}")
        return Run(folder, world_size).finish(began=0)

    return functools.cache(of)


def assert_same(got, expected):
    (losses, weights), (expected_losses, expected_weights) = got, expected
    assert losses == expected_losses
    assert weights.keys() == expected_weights.keys()
    for name, value in weights.items():
        assert torch.equal(value, expected_weights[name]), name


def drawn(seed):
    """An end that the seed decides, (how, rank, step, fraction), and the number of ranks."""
    draw = random.Random(seed)
    world_size = draw.choice((2, 3, 4))
    how = ("before", "written", "renamed")[seed % 3]
    if how == "before":
        return (how, draw.randrange(world_size), draw.randrange(life.STEPS), 0.0), world_size
    saved = draw.randrange(1, life.STEPS // life.EVERY + 1) * life.EVERY
    return (how, 0, saved, draw.random()), world_size


def newest_after(how, rank, step, fraction):
    """The step of the newest checkpoint when a run has ended in this way."""
    saved = how == "before" or (how == "renamed" and fraction >= 0.5)
    return step // life.EVERY * life.EVERY - (0 if saved else life.EVERY)


@pytest.mark.parametrize("seed", few(range(9), lambda seed: seed < 3))
def test_a_killed_run_ends_with_the_same_bits(seed, tmp_path, never_killed):
    end, world_size = drawn(seed)
    run = Run(tmp_path, world_size)
    run.be_killed(0, end)
    assert_same(run.finish(began=newest_after(*end)), never_killed(world_size))


def test_the_drawn_kills_are_of_all_kinds():
    ends = [drawn(seed)[0] for seed in range(9)]
    assert len({newest_after(*end) for end in ends}) > 2
    assert {end[3] >= 0.5 for end in ends if end[0] == "renamed"} == {True, False}


def test_killed_again_and_again(tmp_path, never_killed):
    run = Run(tmp_path, 3)
    run.be_killed(0, ("before", 2, 1, 0))
    run.be_killed(0, ("written", 0, 3, 0.5))
    run.be_killed(0, ("before", 1, 8, 0))
    run.be_killed(6, ("renamed", 0, 12, 0.9))
    assert_same(run.finish(began=12), never_killed(3))


@pytest.mark.parametrize("seed", few(range(3), lambda seed: seed == 0))
def test_killed_from_outside_at_any_moment(seed, tmp_path, never_killed):
    draw = random.Random(seed)
    run = Run(tmp_path, 2)
    ranks = run.start(("held", None, life.STEPS - 1, 0))  # so that the kill never comes too late
    victim = ranks[draw.randrange(2)]
    try:
        while not resume.latest_checkpoint(run.checkpoints):  # it trains
            assert [one.exitcode for one in ranks] == [None, None]
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.02))
        victim.kill()
        victim.join(LIMIT)
        assert victim.exitcode == -signal.SIGKILL
    finally:
        kill(ranks)
    newest = torch.load(resume.latest_checkpoint(run.checkpoints))["step"]
    assert newest > 0
    assert_same(run.finish(began=newest), never_killed(2))


@pytest.mark.parametrize("before, after", few(MOVES, lambda *ranks: ranks == (4, 2)))
def test_goes_on_with_another_number_of_ranks(before, after, tmp_path):
    folders = [tmp_path / name for name in ("whole", "moved")]
    for folder in folders:
        folder.mkdir()
    expected, _ = Run(folders[0], before).finish(began=0, noisy=False)
    moved = Run(folders[1], before)
    moved.be_killed(0, ("before", 0, 10, 0), noisy=False)
    moved.world_size = after
    losses, _ = moved.finish(began=9, noisy=False)
    assert losses[:9] == expected[:9]  # these are in the checkpoint
    assert losses == pytest.approx(expected, rel=0, abs=1e-12)


def test_two_are_kept_and_no_draft_is_read(tmp_path):
    run = Run(tmp_path, 2)
    run.be_killed(0, ("written", 0, 15, 0.4))
    assert run.files() == ["step-00000009.pt", "step-00000012.pt", "step-00000015.pt.draft"]
    assert resume.latest_checkpoint(run.checkpoints).name == "step-00000012.pt"
    run.finish(began=12)
    assert run.files() == ["step-00000012.pt", "step-00000015.pt"]


def test_a_checkpoint_holds_the_random_states_of_each_rank(tmp_path):
    """They differ: the same noise on all ranks would be the noise of a smaller batch."""
    run = Run(tmp_path, 2)
    run.be_killed(0, ("before", 0, 4, 0))
    first, second = torch.load(resume.latest_checkpoint(run.checkpoints))["own"]
    assert not torch.equal(first["torch"], second["torch"])
    assert first["python"] != second["python"]
    assert first["numpy"] != second["numpy"]


# Checkpoints that cannot be read, or not be written


def damage(path):
    path.write_bytes(path.read_bytes()[:1000])


def test_of_a_damaged_checkpoint_the_one_before_is_taken(tmp_path, never_killed):
    run = Run(tmp_path, 2)
    run.be_killed(0, ("before", 1, 13, 0))
    damage(resume.latest_checkpoint(run.checkpoints))
    assert_same(run.finish(began=9), never_killed(2))


def test_if_no_checkpoint_can_be_read_no_rank_begins_anew(tmp_path):
    """Or what is left of the training would soon be deleted."""
    run = Run(tmp_path, 3)
    run.be_killed(0, ("before", 1, 10, 0))
    for path in run.checkpoints.iterdir():
        damage(path)
    for said in run.fail():
        assert "RuntimeError: No checkpoint in" in said
        assert "can be read" in said
    assert run.files() == ["step-00000006.pt", "step-00000009.pt"]


def test_a_full_disk_ends_all_ranks_and_costs_no_earlier_checkpoint(tmp_path, never_killed):
    run = Run(tmp_path, 3)
    for said in run.fail(("full", 0, 9, 0.5)):
        assert "OSError: The checkpoint of step 9 cannot be written" in said
        assert "[Errno 28]" in said
    assert_same(run.finish(began=6), never_killed(3))


def test_a_folder_that_cannot_be_made_ends_all_ranks(tmp_path):
    run = Run(tmp_path, 3)
    run.checkpoints.write_text("a file in the folder's place")
    for said in run.fail():
        assert "OSError: The checkpoint of step 3 cannot be written" in said
