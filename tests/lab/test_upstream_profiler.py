"""What the lab borrows of PyTorch's profiler, tried on what is installed."""

import torch
import torch.distributed as dist
from borrowed import Borrowed, ranks
from traced import on_ranks

from ranklab.upstream import profiler

__all__ = ["ranks"]
HERE = Borrowed(profiler)


@HERE.each
def test_what_is_borrowed_is_there(borrowed, ranks):
    HERE.is_there(borrowed, ranks)


@HERE.tries(profiler.runs)
def _(_):
    before = profiler.runs()
    with torch.autograd.profiler.profile():
        assert (before, profiler.runs()) == (False, True)


@on_ranks
def profiled():
    """What the profiler saw of a message, of a broadcast, and of a step of training."""
    from ranklab.traces.settling import settle
    from ranklab.upstream import profiler

    layer = torch.nn.Linear(2, 2)
    optimizer, x = torch.optim.SGD(layer.parameters()), torch.ones(2, dtype=torch.half)
    settle()
    with profiler.of_all_threads() as profile:
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0, tag=0)  # noqa: F821
        dist.broadcast(x, 1)
        layer(torch.ones(2)).sum().backward()
        optimizer.step()
        settle()
    names = (
        "name is_call message collective is_region optimizer is_backward evaluated computes inputs"
    )
    names += " inputs backend nbytes dtype ended start end"
    found = profiler.events(profile)
    return [{name: getattr(one, name) for name in names.split()} for one in found]


@HERE.tries(profiler.of_all_threads, profiler.events)
def _(ranks):
    sender, receiver = ranks.run(profiled)

    def only(events, **wanted):
        (one,) = (e for e in events if all(e[key] == value for key, value in wanted.items()))
        return one

    send, recv = only(sender, message="send"), only(receiver, message="recv")
    assert (send["inputs"][2], send["inputs"][-1], recv["inputs"][2]) == (1, 0, 0)
    sent = only(sender, backend="send")
    assert (sent["nbytes"], sent["dtype"], sent["ended"]) == (4, "float16", True)
    assert send["start"] <= sent["start"]
    call = only(sender, collective=("broadcast", 2))
    assert call["is_call"] and call["inputs"][2] == 1
    assert only(sender, backend="broadcast")["nbytes"] == 4
    assert [e["optimizer"] for e in sender if e["is_region"]] == ["SGD.step"]
    assert any(e["is_backward"] for e in sender)
    assert any(e["evaluated"] == "SumBackward0" for e in sender)
    assert any(e["name"] == "aten::addmm" and e["computes"] for e in sender)
