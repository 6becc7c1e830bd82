"""Ranks for the tests of taught code: they find the tests' own functions, and make groups once.

The ranks import this, too, as they import the modules of the tests.
"""

import contextlib
from functools import cache
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from ranklab import Ranks
from ranklab.start import cluster

HERE = Path(__file__).parent
# The first optimizer imports it, and DDP does: a second on every rank, or once for all of them.
PRELOAD = [*cluster.PRELOAD, "torch._dynamo"]
_last = {}  # (n, timeout): the ranks that were started last


@contextlib.contextmanager
def started(n=4, timeout=60):
    """n ranks that find the functions of the tests; one thread here, too, as on each of them.

    The twins of what they train are small: several threads would wait for each other. The ranks
    stay for the next file that wants as many, if they still answer; else until the next ones come,
    which are forked from the process that has imported for these.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ranks = _last.get((n, timeout))
        if not (ranks and _answer(ranks)):
            with mock.patch.object(cluster, "PRELOAD", PRELOAD):
                ranks = Ranks(n, backend="gloo", device="cpu", timeout=timeout)
            ranks.run(_look_for_modules_in, [str(HERE), str(HERE / "chapters")])
            _last.clear()
            _last[n, timeout] = ranks
        yield ranks
    finally:
        torch.set_num_threads(before)


def _answer(ranks):
    """Can these ranks still talk to each other?"""
    try:
        ranks.run(_meet)
    except Exception:  # they are closed, one of them died, or a message was left over
        return False
    return True


def _meet():
    import torch.distributed as dist

    dist.barrier()


_meet.__module__ = "__main__"  # so that this one is sent as it is


def end():
    """End the ranks that were started last, if they are still there."""
    for ranks in _last.values():
        ranks.close()
    _last.clear()


def _look_for_modules_in(folders):
    import sys

    sys.path.extend(folders)


_look_for_modules_in.__module__ = "__main__"  # so that this one is sent as it is


@cache
def group_of(*members):
    """The group of these ranks; every rank makes each group once, and all in the same order."""
    return dist.new_group(members)


def make_groups():
    """Make those of the first ranks; here, so that later only the members need ask for one."""
    for size in range(1, dist.get_world_size() + 1):
        group_of(*range(size))


def on(ranks, members, function, *args, **how):
    """What function(group, *args, **how) returns on these ranks, whose group it gets."""
    found = ranks.run(_if_member, tuple(members), function, *args, **how)
    return [found[r] for r in members]


def _if_member(members, function, *args, **how):
    group = group_of(*members)
    return function(group, *args, **how) if dist.get_rank() in members else None
