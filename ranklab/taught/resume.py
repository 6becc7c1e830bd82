# Generated from book/25_resume.md by `make forms`: edit the manuscript, not this file.

"""Checkpoint and resume: killed at any moment, the same bits: what chapter 25_resume teaches."""

import os
import random
import warnings
from collections import OrderedDict
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler


def write_whole(path, write):
    """Let write(file) make the file: the old one until it is whole."""
    path = Path(path)
    draft = path.with_name(f"{path.name}.draft")
    with open(draft, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())  # the bytes are on the disk, not on their way
    os.replace(draft, path)
    if os.name == "posix":  # and so is the name
        entry = os.open(path.parent, os.O_RDONLY)
        os.fsync(entry)
        os.close(entry)


def only_readable(value, where="state"):
    """Raise TypeError for what torch.load(weights_only=True) does not read."""
    kind = type(value)
    if kind in (dict, OrderedDict):
        for key, part in value.items():
            only_readable(key, f"a key of {where}")
            only_readable(part, f"{where}[{key!r}]")
    elif kind in (list, tuple, set):
        for k, part in enumerate(value):
            only_readable(part, f"{where}[{k}]")
    elif not isinstance(value, (torch.Tensor, torch.dtype, torch.device)):
        plain = bool, int, float, complex, str, bytes, type(None), torch.Size
        if kind not in plain:
            what = f"{kind.__module__}.{kind.__qualname__}"
            raise TypeError(f"{where} is a {what}, which no load would read.")


def checkpoints(folder):
    """The whole checkpoints in a folder, the newest last."""
    return sorted(Path(folder).glob("step-*.pt"))


def latest_checkpoint(folder):
    """The newest whole checkpoint in a folder, or None."""
    return (checkpoints(folder) or [None])[-1]


def write_checkpoint(folder, state, keep=2):
    """Write a state, and delete all but the newest ones."""
    only_readable(state)
    Path(folder).mkdir(parents=True, exist_ok=True)
    name = f"step-{state['step']:08}.pt"
    write_whole(Path(folder, name), partial(torch.save, state))
    for old in checkpoints(folder)[:-keep]:
        old.unlink()


def save_checkpoint(folder, step, shared, own, group=None):
    """Write the checkpoint of a step, on rank 0 alone. Every rank calls it.

    shared: what all ranks have alike. own: what each has for itself. On
    return it is there for all to see; if not, OSError on all ranks.
    """
    first, problem = dist.get_rank(group) == 0, [None]
    everyones = [None] * dist.get_world_size(group) if first else None
    dist.gather_object(own, everyones, group=group, group_dst=0)
    if first:
        state = {"step": step, "shared": shared, "own": everyones}
        try:
            write_checkpoint(folder, state)
        except Exception as error:  # whatever it is, the others must hear
            said = f"The checkpoint of step {step} cannot be written: {error}"
            problem = [OSError(said)]
    dist.broadcast_object_list(problem, group=group, group_src=0)
    if problem[0]:
        raise problem[0]


def newest_readable(folder):
    """The newest checkpoint that can be read, or None; are there any?"""
    there = checkpoints(folder)
    for path in reversed(there):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            return state, True
        except Exception as error:
            warnings.warn(f"{path} cannot be read: {error}", stacklevel=2)
    return None, bool(there)


def load_checkpoint(folder, group=None):
    """The newest readable checkpoint, on every rank the same, or None."""
    box = [None, False]
    if dist.get_rank(group) == 0:
        box = list(newest_readable(folder))
    dist.broadcast_object_list(box, group=group, group_src=0)
    found, any_there = box
    if any_there and found is None:
        said = "can be read. To begin anew, move them away."
        raise RuntimeError(f"No checkpoint in {folder} {said}")
    return found


def shares(n, epoch, batch, group=None):
    """This rank's part of each batch of an epoch: lists of numbers below n."""
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    sampler = DistributedSampler(range(n), world_size, rank, drop_last=True)
    sampler.set_epoch(epoch)
    with torch.device("cpu"):  # where the sampler's generator is
        mine, share = list(sampler), batch // world_size
    return [mine[i : i + share] for i in range(0, len(mine) - share + 1, share)]


def seed_all(seed):
    """Seed all generators of this process."""
    torch.manual_seed(seed)  # of its GPUs, too
    np.random.seed(seed)
    random.seed(seed)


def random_states():
    """Where the generators of this process stand: no pickled objects."""
    name, keys, *rest = np.random.get_state()
    states = {"torch": torch.get_rng_state(), "python": random.getstate()}
    states["numpy"] = [name, keys.tolist(), *rest]
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states):
    """Put all generators of this process where they stood."""
    torch.set_rng_state(states["torch"].cpu())
    random.setstate(states["python"])
    np.random.set_state(tuple(states["numpy"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def network(dropout=0.0, seed=0):
    """A small network for 8 x 8 pixels, in float64; one seed, one start."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        first, last = nn.Linear(64, 48), nn.Linear(48, 10)
    layers = first, nn.Tanh(), nn.Dropout(dropout), last
    return nn.Sequential(*layers).double().to(torch.get_default_device())


def augmented(inputs):
    """Shift 8 x 8 pixels sideways, and add noise."""
    shift = random.choice((-1, 0, 1))
    shifted = inputs.view(-1, 8, 8).roll(shift, dims=2).flatten(1)
    noise = 0.1 * np.random.standard_normal(shifted.shape)
    return shifted + torch.from_numpy(noise).to(shifted)


def mean_over_ranks(loss, group=None):
    """The mean of all ranks' losses, a float."""
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    return total.item() / dist.get_world_size(group)


class Training:
    """A training that knows what it is. batch: samples, of all ranks."""

    def __init__(self, model, data, batch, noise=None, horizon=24, group=None):
        self.data, self.batch, self.noise = data, batch, noise
        self.group, self.replica = group, DDP(model, process_group=group)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, horizon)
        self.parts = {"model": model, "optimizer": sgd, "schedule": cosine}
        self.dealt, self.losses = 0, []
        seed_all(dist.get_rank(group))  # noise of its own on every rank

    def step(self):
        """One step on this rank's share of the next batch."""
        X, y = self.data
        epoch, place = divmod(self.dealt, len(y) // self.batch)
        mine = shares(len(y), epoch, self.batch, self.group)[place]
        inputs = self.noise(X[mine]) if self.noise else X[mine]
        loss = nn.functional.cross_entropy(self.replica(inputs), y[mine])
        self.parts["optimizer"].zero_grad()
        loss.backward()
        self.parts["optimizer"].step()
        self.parts["schedule"].step()
        self.dealt += 1
        self.losses.append(mean_over_ranks(loss, self.group))


def state_of(run):
    """What all ranks have alike, and what this rank has for itself."""
    shared = {name: part.state_dict() for name, part in run.parts.items()}
    shared |= {"dealt": run.dealt, "losses": list(run.losses)}
    return shared, random_states()


def restore(run, found, forget=()):
    """Put a run where it was when the checkpoint `found` was taken."""
    shared, own = found["shared"], found["own"]
    for name, part in run.parts.items():
        if name not in forget:
            part.load_state_dict(shared[name])
    if "position" not in forget:
        run.dealt = shared["dealt"]
    run.losses = list(shared["losses"])
    same_ranks = len(own) == dist.get_world_size(run.group)
    if "random states" not in forget and same_ranks:
        set_random_states(own[dist.get_rank(run.group)])


def warm_up(run):
    """Let DDP make its final buckets: a backward pass for nothing."""
    run.replica.eval()  # no dropout, and batch norm keeps its statistics
    run.replica(run.data[0][:1]).sum().backward()
    run.replica.train()
    run.replica.zero_grad()
    return run


def train(run, steps, folder, every, before_step=None):
    """Train up to step `steps`, from the newest checkpoint on; leave new ones.

    before_step(step) is called before each step.
    """
    found = load_checkpoint(folder, run.group)
    if found:
        restore(run, found)
    while len(run.losses) < steps:
        if before_step:
            before_step(len(run.losses))
        run.step()
        if len(run.losses) % every == 0:
            step = len(run.losses)
            save_checkpoint(folder, step, *state_of(run), run.group)
    return run.losses
