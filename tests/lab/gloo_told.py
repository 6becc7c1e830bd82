"""Two ranks as threads of one process, to have torch say what a healthy one does not.

It prints what was said as JSON, and is aborted by Gloo in the end: borrowed.py.
"""

import contextlib
import json
import sys
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _ProcessGroupWrapper

from ranklab.upstream import cpython


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, i):
        raise KeyError(i)


def said_by(function, *args):
    try:
        function(*args)
    except Exception as error:
        return str(error)


def groups(wrapped=False):
    """The two ranks' own process groups."""
    store, made = dist.HashStore(), {}
    names = ("group", "checks")[: 1 + wrapped]

    def make(rank):  # none is dropped before the other rank is connected
        made[rank] = [
            dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, 2, timedelta(seconds=20))
            for name in names
        ]

    both(make)
    return [_ProcessGroupWrapper(*made[r]) if wrapped else made[r][0] for r in (0, 1)]


def both(function):
    threads = [threading.Thread(target=function, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    told, x = {}, torch.ones(3)
    told["worker"] = said_by(list, torch.utils.data.DataLoader(Broken(), num_workers=1))
    told["no world"] = said_by(dist.all_reduce, x)
    store = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **store)
    told["a world"] = said_by(lambda: dist.init_process_group("gloo", **store))
    group = dist.new_group([0])
    dist.destroy_process_group()
    told["outlived"] = said_by(dist.get_group_rank, group, 0), said_by(dist.get_backend, group)
    torch.optim.SGD([torch.nn.Parameter(x)], lr=1.0)
    told["modules"] = list(sys.modules)

    wrapped, checked = groups(wrapped=True), {}

    def reduce_some(rank):
        checked[rank] = said_by(lambda: wrapped[rank].allreduce([torch.ones(3 + rank)]).wait())

    both(reduce_some)
    told["checks"] = checked[1]

    first, second = groups()
    told["late"] = said_by(first.recv([x], 1, 0).wait, timedelta(seconds=0.1))
    first, second = groups()
    waits = first.recv([x], 1, 0)
    del second
    told["closed"] = said_by(waits.wait)
    print(json.dumps(told), flush=True)

    first, second = groups()
    kept = cpython.when_aborted(lambda: print("\nlast words", flush=True))
    waits = first.recv([torch.ones(1)], 1, 0)
    with contextlib.suppress(RuntimeError):
        sent = second.send([torch.ones(100)], 0, 0)  # dropped, it may take the message with it
        waits.wait()
    return kept, sent


if __name__ == "__main__":
    main()
