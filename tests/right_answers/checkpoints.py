"""Right answers to the exercises on a file that is whole, and on a dealer that remembers."""

import contextlib
import os
import shutil
import tempfile
from os import fsync, replace
from pathlib import Path

import torch

from right_answers import right

# save_whole


@right("save_whole")
def fsync_of_a_file_object(path, data):
    with open(f"{path}~", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file)
    os.rename(f"{path}~", path)


@right("save_whole")
def without_a_buffer(path, data):
    with open(path + ".new", "wb", buffering=0) as file:
        file.write(data)
        fsync(file.fileno())
    replace(path + ".new", path)


@right("save_whole")
def by_its_number(path, data):
    draft = path + ".new"
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        while data:
            data = data[os.write(number, data) :]
        os.fdatasync(number)
    finally:
        os.close(number)
    os.replace(draft, path)


@right("save_whole")
def with_pathlib(path, data):
    """The bytes reach the disk by another number of the same file; the folder's names, too."""
    target = Path(path)
    draft = target.with_suffix(".draft")
    draft.write_bytes(data)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


@right("save_whole")
def a_thousand_pieces(path, data):
    with open(f"{path}.draft", "wb") as file:
        for k in range(len(data)):
            file.write(data[k : k + 1])
        file.flush()
        os.fsync(file.fileno())
    os.replace(src=f"{path}.draft", dst=path)


@right("save_whole")
def new_drafts_that_are_swept_up(path, data):
    folder, name = os.path.split(path)
    for left in Path(folder).glob(f"{name}.*.draft"):
        left.unlink()
    with tempfile.NamedTemporaryFile(
        "wb", prefix=f"{name}.", suffix=".draft", dir=folder, delete=False
    ) as file:
        file.writelines([data[:3], data[3:]])
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


@right("save_whole")
def in_a_folder_below(path, data):
    below = path + ".drafts"
    shutil.rmtree(below, ignore_errors=True)
    os.mkdir(below)
    number, draft = tempfile.mkstemp(dir=below)
    with os.fdopen(number, "wb") as file:
        file.write(memoryview(data))
        file.flush()
        os.fsync(number)
    os.replace(draft, path)
    os.rmdir(below)


@right("save_whole")
def what_went_wrong_is_cleaned_up(path, data):
    draft = f"{path}.draft"
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: os.path.exists(draft) and os.remove(draft))
        file = stack.enter_context(open(draft, "wb"))
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        os.replace(draft, path)


# dealer


@right("dealer")
class ByTheNumberOfTheSample:
    """One number is the position: how many samples were dealt or left out since the start."""

    def __init__(self, n, seed, rank, world_size):
        self.n, self.seed, self.place, self.position = n, seed, (rank, world_size), 0

    def next(self, batch):
        rank, world_size = self.place
        left = self.n - self.position % self.n
        if left < batch:
            self.position += left
        epoch, first = divmod(self.position, self.n)
        torch.manual_seed(self.seed + epoch)
        order = torch.randperm(self.n)
        self.position += batch
        return order[first + rank : first + batch : world_size].tolist()

    def state(self):
        return {"position": self.position}

    def resume(self, state):
        self.position = state["position"]


@right("dealer")
class ByWhatIsLeft:
    """Keeps the rest of the deck, and makes it anew after a stop."""

    def __init__(self, n, seed, rank, world_size):
        self.n, self.seed, self.rank, self.world_size = n, seed, rank, world_size
        self.shuffle(0)

    def shuffle(self, epoch):
        self.epoch = epoch
        generator = torch.Generator().manual_seed(self.seed + epoch)
        self.deck = torch.randperm(self.n, generator=generator).tolist()

    def next(self, batch):
        if len(self.deck) < batch:
            self.shuffle(self.epoch + 1)
        hands = [[] for _ in range(self.world_size)]
        for k in range(batch):
            hands[k % self.world_size].append(self.deck.pop(0))
        return hands[self.rank]

    def state(self):
        return {"epoch": self.epoch, "left": len(self.deck)}

    def resume(self, state):
        self.shuffle(state["epoch"])
        del self.deck[: self.n - state["left"]]
