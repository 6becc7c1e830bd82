# Generated from book/25_resume.md by `make forms`: edit the manuscript, not this file.

# %% check('killed_after_renaming', killed_after_renaming)

def killed_after_renaming():
    """Return "a" (all 12), "b" (0 at 12, others 8), "c" (all 8) or "d"."""
    return "a"

# %% check('save_whole', save_whole)

import os


def save_whole(path, data):
    """Make `data` the content of the file `path`, all of it or nothing."""
    draft = f"{path}.draft"
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)

# %% check('dealer', Dealer)

import torch


class Dealer:
    def __init__(self, n, seed, rank, world_size):
        self.n, self.seed = n, seed
        self.rank, self.world_size = rank, world_size
        self.epoch, self.dealt = 0, 0

    def next(self, batch):
        """This rank's samples of the next batch of `batch` samples in all."""
        if self.dealt + batch > self.n:
            self.epoch, self.dealt = self.epoch + 1, 0
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.n, generator=generator, device="cpu")
        whole = order[self.dealt : self.dealt + batch].tolist()
        self.dealt += batch
        return whole[self.rank :: self.world_size]

    def state(self):
        """What another dealer needs to know to go on: a dict of numbers."""
        return {"epoch": self.epoch, "dealt": self.dealt}

    def resume(self, state):
        """Go on from there."""
        self.epoch, self.dealt = state["epoch"], state["dealt"]
