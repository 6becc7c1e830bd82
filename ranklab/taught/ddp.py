# Generated from book/11_ddp.md by `make forms`: edit the manuscript, not this file.

"""PyTorch's own: what chapter 11_ddp teaches."""

import os
import random
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler


def network(dropout=0.0, seed=0):
    """A small network for 8 x 8 pixels, in float64. The same seed, the same first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(64, 48), nn.Tanh(), nn.Dropout(dropout), nn.Linear(48, 10)
        return nn.Sequential(*layers).double()


def shares(n, epoch, batch, group=None):
    """This rank's part of each batch of an epoch: lists of the numbers of samples, of n."""
    sampler = DistributedSampler(
        range(n), dist.get_world_size(group), dist.get_rank(group), drop_last=True
    )
    sampler.set_epoch(epoch)
    mine, share = list(sampler), batch // dist.get_world_size(group)
    return [mine[i : i + share] for i in range(0, len(mine) - share + 1, share)]


def augmented(inputs):
    """Shift 8 x 8 pixels sideways, Python draws how far, and add noise, which NumPy draws."""
    shifted = inputs.view(-1, 8, 8).roll(random.choice((-1, 0, 1)), dims=2).flatten(1)
    return shifted + torch.from_numpy(0.1 * np.random.standard_normal(shifted.shape))


def seed_all(seed):
    """Seed all generators of this process."""
    torch.manual_seed(seed)  # of its GPUs, too
    np.random.seed(seed)
    random.seed(seed)


def random_states():
    """Where all generators of this process stand, as numbers, tuples, lists and tensors."""
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


def warm_up(replica, inputs):
    """One backward pass for nothing: after it, DDP makes its final buckets."""
    replica.eval()  # batch norm keeps its statistics
    replica(inputs).sum().backward()
    replica.train()
    replica.zero_grad()


def resume(folder, parts, forget=(), group=None):
    """Restore parts from the newest checkpoint; return (batches dealt, losses), or (0, [])."""
    found = load_checkpoint(folder, group)
    if found is None:
        return 0, []
    shared, own = found["shared"], found["own"]
    for name in sorted(parts.keys() - set(forget)):
        parts[name].load_state_dict(shared[name])
    if "random states" not in forget and len(own) == dist.get_world_size(group):
        set_random_states(own[dist.get_rank(group)])
    return 0 if "position" in forget else shared["dealt"], shared["losses"]


def train(
    model,
    data,
    steps,
    batch,
    *,
    lr=0.1,
    horizon=24,
    noisy=True,
    group=None,
    folder=None,
    every=None,
    forget=(),
    before_step=None,
):
    """Train up to step `steps`; return the loss of every step, the mean over all ranks.

    batch: samples a step, of all ranks of the group together; the same after a stop. horizon: steps
    until the learning rate is 0. folder: where checkpoints are; the training goes on from the
    newest, and leaves one after each `every` steps. forget: names of what is not restored, to see
    what comes of it. before_step(step) is called before each step.
    """
    (X, y), n = data, dist.get_world_size(group)
    replica = DDP(model, process_group=group)
    optimizer = torch.optim.SGD(replica.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, horizon)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    if "warm-up" not in forget:
        warm_up(replica, X[:1])
    seed_all(dist.get_rank(group))  # not the same noise on every rank
    dealt, losses = resume(folder, parts, forget, group) if folder else (0, [])
    while len(losses) < steps:
        if before_step:
            before_step(len(losses))
        epoch, place = divmod(dealt, len(y) // batch)
        chosen = shares(len(y), epoch, batch, group)[place]
        inputs = augmented(X[chosen]) if noisy else X[chosen]
        loss = nn.functional.cross_entropy(replica(inputs), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total = loss.detach().clone()
        dist.all_reduce(total, group=group)
        losses.append(total.item() / n)
        dealt += 1
        if every and len(losses) % every == 0:
            shared = {name: part.state_dict() for name, part in parts.items()}
            shared |= {"dealt": dealt, "losses": losses}
            save_checkpoint(folder, len(losses), shared, random_states(), group)
    return losses


def write_whole(path, write):
    """Let write(file) make the file `path`. At any moment it is what it was, or all of the new."""
    path = Path(path)
    draft = path.with_name(f"{path.name}.draft")
    with open(draft, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())  # the bytes are on the disk, and not only on their way
    os.replace(draft, path)
    if os.name == "posix":  # and so is the name
        entry = os.open(path.parent, os.O_RDONLY)
        os.fsync(entry)
        os.close(entry)


def checkpoints(folder):
    """The whole checkpoints in a folder, the newest last."""
    return sorted(Path(folder).glob("step-*.pt"))


def latest_checkpoint(folder):
    """The newest whole checkpoint in a folder, or None."""
    return (checkpoints(folder) or [None])[-1]


def save_checkpoint(folder, step, shared, own, group=None, keep=2):
    """Write the checkpoint of a step, on rank 0 alone; keep that many. Every rank calls it.

    shared: what all ranks have alike, of which rank 0's is written. own: what each has for itself.
    On return it is there, for all ranks to see. Raises OSError, on all, if it cannot be written.
    """
    rank, problem = dist.get_rank(group), [None]
    all_own = [None] * dist.get_world_size(group) if rank == 0 else None
    dist.gather_object(own, all_own, group=group, group_dst=0)
    if rank == 0:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            state = {"step": step, "shared": shared, "own": all_own}
            write_whole(Path(folder, f"step-{step:08}.pt"), partial(torch.save, state))
            for old in checkpoints(folder)[:-keep]:
                old.unlink()
        except (OSError, RuntimeError) as error:  # torch.save has a RuntimeError for a full disk
            problem = [OSError(f"The checkpoint of step {step} cannot be written: {error}")]
    dist.broadcast_object_list(problem, group=group, group_src=0)  # nobody goes on before
    if problem[0]:
        raise problem[0]


def load_checkpoint(folder, group=None):
    """Return the newest checkpoint that can be read, on every rank the same; None if there is none.

    Rank 0 reads it and sends it to the others, who need not see the folder. Raises RuntimeError
    where there are checkpoints, and none can be read.
    """
    found, lost = None, False
    if dist.get_rank(group) == 0:
        there = checkpoints(folder)
        for path in reversed(there):
            try:
                found = torch.load(path, map_location="cpu", weights_only=True)
                break
            except Exception as error:
                warnings.warn(f"{path} cannot be read: {error}", stacklevel=2)
        lost = bool(there) and found is None
    box = [found, lost]
    dist.broadcast_object_list(box, group=group, group_src=0)
    found, lost = box
    if lost:
        raise RuntimeError(f"No checkpoint in {folder} can be read. To begin anew, move them away.")
    return found
