"""Wrong answers to the exercises on a file that is whole, and on a dealer that remembers."""

import functools
import io
import os
import tempfile
import types
from os import replace
from pathlib import Path

import torch

from wrong_answers import wrong

# save_whole


@wrong("save_whole", says=["neither the old nor the new", "rename it"])
def straight_into_it(path, data):
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@wrong("save_whole", says=["no fsync before it"])
def without_fsync(path, data):
    with open(f"{path}.draft", "wb") as file:
        file.write(data)
    os.replace(f"{path}.draft", path)


@wrong("save_whole", says=["no fsync before it"])
def fsync_without_flush(path, data):
    with open(f"{path}.draft", "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    os.replace(f"{path}.draft", path)


@wrong("save_whole", says=["no file", "neither the old nor the new"])
def old_one_removed_first(path, data):
    with open(f"{path}.draft", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if os.path.exists(path):
        os.remove(path)
    os.rename(f"{path}.draft", path)


@wrong("save_whole", says=["other files beside it"])
def a_new_draft_each_time(path, data):
    folder = os.path.dirname(path)
    with tempfile.NamedTemporaryFile("wb", dir=folder, delete=False) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


@wrong("save_whole", says=["The next call after a kill fails", "in the way"])
def draft_must_be_new(path, data):
    with open(f"{path}.draft", "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.draft", path)


@wrong("save_whole", says=["leaves 0 bytes", "rename it"])
def straight_by_its_number(path, data):
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(number, data)
    os.fsync(number)
    os.close(number)


@wrong("save_whole", says=["Killed at point", "neither the old nor the new"])
def over_the_old_bytes(path, data):
    number = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(number, data)
    os.ftruncate(number, len(data))
    os.fsync(number)
    os.close(number)


@wrong("save_whole", says=["writes into the file itself", "rename it when it is whole"])
def past_all_buffers(path, data):
    with io.FileIO(path, "w") as file:
        file.write(data)
        os.fsync(file.fileno())


@wrong("save_whole", says=["no fsync before it"])
def by_its_number_without_fsync(path, data):
    number = os.open(f"{path}.draft", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(number, data)
    os.close(number)
    os.replace(f"{path}.draft", path)


@wrong("save_whole", says=["no fsync before it"])
def fsync_after_the_renaming(path, data):
    with open(f"{path}.draft", "wb") as file:
        file.write(data)
        file.flush()
        os.replace(f"{path}.draft", path)
        os.fsync(file.fileno())


@wrong("save_whole", says=["in another folder", "put the draft beside it"])
def draft_among_temporary_files(path, data):
    draft = os.path.join(tempfile.gettempdir(), f"draft-of-{os.getpid()}")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


@wrong("save_whole", says=["not killed does not leave the new content"])
def only_the_beginning(path, data):
    with open(f"{path}.draft", "wb") as file:
        file.write(data[:100])
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.draft", path)


@wrong("save_whole", says=["TypeError", "in as_text"])
def as_text(path, data):
    with open(f"{path}.draft", "w") as file:
        file.write(data)
    os.replace(f"{path}.draft", path)


_real_open = io.open


@functools.wraps(io.open)
def _open_of_a_notebook(file, *args, **kwargs):
    """IPython gives its notebooks an `open` of this kind."""
    return _real_open(file, *args, **kwargs)


def _in_a_notebook(answer, **names):
    """Let a function find other things under some of its global names."""
    return types.FunctionType(answer.__code__, {**answer.__globals__, **names}, answer.__name__)


@wrong("save_whole", says=["leaves 0 bytes", "rename it"], several=True)
def straight_into_it_with_the_open_of_a_notebook():
    return (_in_a_notebook(straight_into_it, open=_open_of_a_notebook),)


@wrong("save_whole", says=["no fsync before it"], several=True)
def without_fsync_with_the_open_of_a_notebook():
    return (_in_a_notebook(without_fsync, open=_open_of_a_notebook),)


@wrong("save_whole", says=["no fsync before it"])
def without_fsync_and_with_a_name_of_its_own(path, data):
    Path(f"{path}.draft").write_bytes(data)
    replace(f"{path}.draft", path)


# dealer


class _Dealer:
    """The solution, in parts that can be replaced."""

    def __init__(self, n, seed, rank, world_size):
        self.n, self.seed, self.rank, self.world_size = n, seed, rank, world_size
        self.epoch, self.dealt = 0, 0

    def order(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self.n, generator=generator).tolist()

    def next(self, batch):
        if self.dealt + batch > self.n:
            self.epoch, self.dealt = self.epoch + 1, 0
        whole = self.order()[self.dealt : self.dealt + batch]
        self.dealt += batch
        return whole[self.rank :: self.world_size]

    def state(self):
        return {"epoch": self.epoch, "dealt": self.dealt}

    def resume(self, state):
        self.epoch, self.dealt = state["epoch"], state["dealt"]


@wrong("dealer", says=["after the stop", "begins anew"])
class RemembersNothing(_Dealer):
    def resume(self, state):
        pass


@wrong("dealer", says=["a stop in the middle of epoch 1", "epoch is part of it"])
class ForgetsTheEpoch(_Dealer):
    def resume(self, state):
        self.dealt = state["dealt"]


@wrong("dealer", says=["go on", "count the samples of all"])
class CountsItsOwn(_Dealer):
    def state(self):
        return {"epoch": self.epoch, "dealt": self.dealt // self.world_size}

    def resume(self, state):
        self.epoch, self.dealt = state["epoch"], state["dealt"] * self.world_size


@wrong("dealer", says=["another batch after the stop", "of another size"])
class CountsBatches(_Dealer):
    def next(self, batch):
        self.batch = batch
        return super().next(batch)

    def state(self):
        return {"epoch": self.epoch, "batches": self.dealt // self.batch}

    def resume(self, state):
        self.epoch, self.batches = state["epoch"], state["batches"]
        plain = type(self).next

        def first(batch):
            self.dealt = self.batches * batch
            del self.next
            return plain(self, batch)

        self.next = first


@wrong("dealer", says=["Batch 3, before the stop"])
class TakesWhatIsLeft(_Dealer):
    def next(self, batch):
        if self.dealt >= self.n:
            self.epoch, self.dealt = self.epoch + 1, 0
        whole = self.order()[self.dealt : self.dealt + batch]
        self.dealt += batch
        return whole[self.rank :: self.world_size]


@wrong("dealer", says=["Batch 3, before the stop"])
class OneOrder(_Dealer):
    def order(self):
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randperm(self.n, generator=generator).tolist()


@wrong("dealer", says=["a smaller batch at the end", "what is left"])
class EndsTheEpochEarly(_Dealer):
    """Asks whether another batch like this one is left."""

    def next(self, batch):
        whole = self.order()[self.dealt : self.dealt + batch]
        self.dealt += batch
        if self.dealt + batch > self.n:
            self.epoch, self.dealt = self.epoch + 1, 0
        return whole[self.rank :: self.world_size]


@wrong("dealer", says=["a smaller batch at the end", "larger than what is left"])
class LeavesOutTheLastBatch(_Dealer):
    def next(self, batch):
        if self.dealt + batch >= self.n:
            self.epoch, self.dealt = self.epoch + 1, 0
        whole = self.order()[self.dealt : self.dealt + batch]
        self.dealt += batch
        return whole[self.rank :: self.world_size]


@wrong("dealer", says=["These are pieces of the batch"])
class DealsPieces(_Dealer):
    def next(self, batch):
        self.rank, rank, self.world_size, n = 0, self.rank, 1, self.world_size
        whole, self.rank, self.world_size = super().next(batch), rank, n
        return whole[rank * batch // n : (rank + 1) * batch // n]


@wrong("dealer", says=["not a dict of plain numbers", "no tensors"])
class KeepsTheWholeDeck(_Dealer):
    def state(self):
        return {**super().state(), "order": torch.tensor(self.order())}


@wrong("dealer", says=["next() should return a list, and returned None"])
class ReturnsNothing(_Dealer):
    def next(self, batch):
        super().next(batch)
