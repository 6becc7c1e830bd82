"""One rank of a training that may be killed, as test_resume.py starts it."""

import errno
import io
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ranklab.taught import resume

STEPS, EVERY, BATCH = 16, 3, 12
SAMPLES = 60  # five batches an epoch: most kills are in the middle of one
HELD = 90  # seconds that a rank waits for its end


def data():
    """Images of 8 x 8 random pixels, with labels that can be learned from them."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(SAMPLES, 64, dtype=torch.float64, generator=generator)
    return images, images[:, :10].argmax(1)


def live(folder, number, rank, world_size, end, noisy):
    """Train to the end, from the newest checkpoint; rank 0 leaves its result in end.pt.

    number: which life of the training it is. Notes in the folder say on each rank with which step
    the life began, and what was raised.
    end: None, or (how, rank, step, fraction): that rank dies "before" the step, or while its
    checkpoint is saved: when a "fraction" of it is "written", or next to its being "renamed"; or
    the disk is "full" then. "held": all ranks wait before the step until somebody kills them.
    """
    join(folder / f"meet-{number}", rank, world_size)
    stop = _prepare(*end) if end and end[1] in (rank, None) else None

    def before_step(now):
        note(folder, "began", number, rank, now)
        if stop:
            stop(now)

    model = resume.network(dropout=0.2 if noisy else 0.0)
    noise = resume.augmented if noisy else None
    try:  # nothing may hold DDP when its process group ends, or a rank hangs at its exit
        losses = resume.train(
            resume.warm_up(resume.Training(model, data(), BATCH, noise, horizon=STEPS)),
            STEPS,
            folder / "checkpoints",
            EVERY,
            before_step,
        )
    except Exception as error:
        note(folder, "raised", number, rank, f"{type(error).__name__}: {error}")
        sys.exit(1)
    if rank == 0:
        torch.save((losses, model.state_dict()), folder / "end.pt.draft")
        os.replace(folder / "end.pt.draft", folder / "end.pt")
    dist.barrier()
    dist.destroy_process_group()


def join(meet, rank, world_size):
    """Join the group of the ranks that meet in this file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if os.uname().sysname == "Linux" else "lo0"
    torch.set_num_threads(1)
    store = dist.FileStore(str(meet), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)


def note(folder, what, number, rank, value):
    """Note something of a rank's life; the first of its kind stays."""
    path = folder / f"{what}-{number}-{rank}"
    if not path.exists():
        path.write_text(str(value))


def noted(folder, what, number, rank):
    return (folder / f"{what}-{number}-{rank}").read_text()


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def _no_space():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _prepare(how, rank, step, fraction):
    """Arrange this rank's end; return what is to be called before each step, or None."""
    if how == "before":
        return lambda now: _die() if now == step else None
    if how == "held":
        return lambda now: _wait_for_the_kill() if now == step else None
    if how == "renamed":
        os.replace = _dying_at_the_renaming(step, after=fraction >= 0.5)
    else:
        torch.save = _saving_a_part(step, fraction, {"written": _die, "full": _no_space}[how])
    return None


def _wait_for_the_kill():
    time.sleep(HELD)
    sys.exit(f"Nobody has killed this rank for {HELD} s.")


def _saving_a_part(step, fraction, stop):
    """A torch.save that writes this part of the step's checkpoint, and then stops."""
    save = torch.save

    def save_a_part(state, file, *args, **kwargs):
        if not isinstance(state, dict) or state.get("step") != step:  # pickling saves storages
            return save(state, file, *args, **kwargs)
        buffer = io.BytesIO()
        save(state, buffer)
        whole = buffer.getvalue()
        file.write(whole[: int(fraction * len(whole))])
        file.flush()
        os.fsync(file.fileno())
        stop()

    return save_a_part


def _dying_at_the_renaming(step, after):
    """An os.replace at which the rank dies: before the name has changed, or after it has.

    Then the older checkpoints are still there.
    """
    replace = os.replace

    def die_at_renaming(old, new):
        if Path(new).name != f"step-{step:08}.pt" or after:
            replace(old, new)
        if Path(new).name == f"step-{step:08}.pt":
            _die()

    return die_at_renaming
