"""What the lab borrows of PyTorch, tried on what is installed."""

import inspect
import sys
import tempfile
import threading
import time
from pathlib import Path

import ipyparallel as ipp
import pytest
import torch
import torch.distributed as dist
from borrowed import TIMEOUT, Borrowed, cell, ranks
from traced import on_ranks

from ranklab.doctor import rounds
from ranklab.upstream import torch as ours

__all__ = ["ranks"]
HERE = Borrowed(ours)


@HERE.each
def test_what_is_borrowed_is_there(borrowed, ranks):
    HERE.is_there(borrowed, ranks)


def test_chapter_12_is_told_of_the_end_of_a_backward_pass():
    """It uses a private name of torch's in front of the reader, as PyTorch's own DDP does."""
    ended, x = [], torch.ones(1, requires_grad=True)
    engine = torch.autograd.Variable._execution_engine
    x.register_hook(lambda _: engine.queue_callback(lambda: ended.append(x.grad)))
    (2 * x).backward()
    assert ended == [2.0]


@on_ranks
def call_each():
    """[(what the reader calls, what the doctor takes its handle for, calls it counts)]"""
    from ranklab.doctor import calls

    a, two, wide = torch.ones(2), [torch.ones(2), torch.ones(2)], torch.ones(4)
    here = {"async_op": True}
    made = [
        ("all_reduce", lambda: dist.all_reduce(a, **here)),
        ("broadcast", lambda: dist.broadcast(a, 1, **here)),
        ("reduce", lambda: dist.reduce(a, 0, **here)),
        ("all_gather", lambda: dist.all_gather(two, a, **here)),
        ("all_gather_into_tensor", lambda: dist.all_gather_into_tensor(wide, a, **here)),
        ("gather", lambda: dist.gather(a, two if rank == 0 else None, 0, **here)),  # noqa: F821
        ("scatter", lambda: dist.scatter(a, two if rank == 0 else None, 0, **here)),  # noqa: F821
        ("reduce_scatter", lambda: dist.reduce_scatter(a, two, **here)),
        ("reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(a, wide, **here)),
        ("all_to_all_single", lambda: dist.all_to_all_single(wide, wide.clone(), **here)),
        ("barrier", lambda: dist.barrier(**here)),
        ("isend", lambda: dist.isend(a, 1 - rank)),  # noqa: F821
        ("irecv", lambda: dist.irecv(a, 1 - rank)),  # noqa: F821
    ]
    found, handles = [], []
    for name, call in made:
        before = calls.count()
        handles.append(call())
        found.append((name, calls._made_by[handles[-1]][0], calls.count() - before))
    for handle in handles:
        handle.wait()
    return found


@HERE.tries(ours.wrap_handles)
def _(ranks):
    for name, taken_for, counted in ranks.run(call_each)[0]:
        assert (taken_for, counted) == (name, 1)


@HERE.tries(ours.file_of_dist)
def _(ranks):
    waits = cell(ranks, "dist.recv(torch.ones(1), 1)")
    while not (call := rounds.where(ranks).reports[0].call):
        time.sleep(0.05)
    ranks.client[1].execute("dist.send(torch.ones(1), 0)")
    waits.wait(5)
    assert (call["name"], call["peer"], call["payload"]) == ("recv", 1, "float32[1]")


@HERE.tries(ours.is_of_torch, ours.is_of_distributed)
def _(_):
    file = inspect.getsourcefile(dist.all_reduce)
    assert ours.is_of_torch(file) and ours.is_of_distributed(file)
    assert ours.is_of_torch(inspect.getsourcefile(torch.nn.Linear))
    assert not ours.is_of_torch(inspect.getsourcefile(ipp.Client))


@on_ranks
def reduce_and_record():
    """(the last two of the flight recorder, op and root of each, calls begun in the world)"""
    from ranklab.doctor import calls
    from ranklab.upstream import torch as upstream

    (world,) = upstream.groups()
    before = upstream.calls_begun(world)
    dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX)
    dist.broadcast(torch.ones(2, dtype=torch.long), 1)
    made = upstream.recorded_collectives()[-2:]
    said = [calls.op_and_root(one["began"]) for one in made]
    return made, said, upstream.calls_begun(world) - before


@HERE.tries(
    ours.op_and_root, ours.op_name, ours.recorded_collectives, ours.type_name, ours.calls_begun
)
def _(ranks):
    (reduced, sent), said, begun = ranks.run(reduce_and_record)[0]
    assert said == [{"op": "MAX", "root": None}, {"op": None, "root": 1}]
    assert begun == 2
    assert (reduced["name"], reduced["sizes"], reduced["over"]) == ("all_reduce", [[3]], True)
    assert (sent["name"], sent["sizes"], sent["group"]) == ("broadcast", [[2]], reduced["group"])
    assert sent["number"] == reduced["number"] + 1
    assert abs(time.time() - sent["began"] / 1e9) < 10
    assert [ours.type_name(*one["dtypes"]) for one in (reduced, sent)] == ["float32", "int64"]


@on_ranks
def make_a_group():
    """(the names of all groups, that of a new one, its timeout)"""
    from ranklab.upstream import torch as upstream

    group = dist.new_group([0, 1])
    names = list(upstream.groups().values())
    timeout = group._get_backend(torch.device("cpu")).options._timeout
    own = group.group_name
    dist.barrier(group)  # the other rank may still be connecting
    dist.destroy_process_group(group)
    return names, own, timeout.total_seconds()


@HERE.tries(ours.groups, ours.limit_new_groups)
def _(ranks):
    names, own, timeout = ranks.run(make_a_group)[0]
    assert len(names) == 2 and own in names
    assert timeout == TIMEOUT


@HERE.tries(ours.interrupt_meeting)
def _(_):
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/meeting"
        store, failed = dist.FileStore(file, 2), []

        def wait():
            try:
                store.wait(["never"])
            except Exception:
                failed.append(True)

        thread = threading.Thread(target=wait, daemon=True)
        store.set("here", "")
        thread.start()
        time.sleep(0.05)
        ours.interrupt_meeting(file)
        thread.join(60)
        assert failed and store.get("here") == b""


@on_ranks
def watched():
    from ranklab.upstream import torch as upstream

    seen = []
    with upstream.watcher(lambda operation, group: seen.append((operation, group.group_name))):
        dist.all_reduce(torch.ones(1))
    return seen, dist.group.WORLD.group_name


@HERE.tries(ours.watcher)
def _(ranks):
    seen, world = ranks.run(watched)[0]
    assert seen == [("c10d::allreduce_", world)]


@HERE.tries(ours.is_thread_of_gloo)
def _(ranks):
    if sys.platform != "linux":
        pytest.skip("only Linux tells what a thread does")
    names = [file.read_text() for file in Path(f"/proc/{ranks.pids[0]}/task").glob("*/comm")]
    assert any(map(ours.is_thread_of_gloo, names))
