"""The exercise of chapter 12 on an all-reduce that sends half the bytes."""

import torch
import torch.distributed as dist

from ranklab.old_checks._model import Case, Exercise, Hint


def _drive_bf16(answer, x):
    """Start the answer's all-reduce and wait for it; note what it sends, and when it waits.

    The last rank begins when rank 0 has its handle: whoever waits before that waits forever.
    """
    group, original = dist.new_group(range(dist.get_world_size())), dist.all_reduce
    x, sent, gate = x.clone(), [], _Gate()

    def noted(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        if not async_op:  # the judge says so
            gate.open()
        sent.append((str(tensor.dtype), tensor.numel(), async_op, group is not None))
        return original(tensor, op=op, group=group, async_op=async_op)

    gate.pass_through()
    dist.all_reduce = noted
    try:
        handle = answer(x, group=group, async_op=True)
        begun = len(sent)
        gate.open()
        if not hasattr(handle, "wait"):
            return {"x": x, "sent": sent, "handle": type(handle).__name__}
        handle.wait()
    finally:
        dist.all_reduce = original
    return {"x": x, "sent": sent, "begun": begun, "handle": ""}


class _Gate:
    """The last rank passes it when rank 0 has opened it."""

    def __init__(self):
        self.last, self.is_open = dist.get_world_size() - 1, False

    def pass_through(self):
        if dist.get_rank() == self.last > 0:
            dist.recv(torch.zeros(1), src=0)

    def open(self):
        if dist.get_rank() == 0 < self.last and not self.is_open:
            dist.send(torch.zeros(1), dst=self.last)
        self.is_open = True


def _judge_bf16(seen):
    (x,) = seen.inputs[0]
    total = sum(one.double() for (one,) in seen.inputs)
    for rank, result in enumerate(seen.results):
        if result["handle"]:
            return (
                f"On rank {rank} it returned something of type {result['handle']}, which has no "
                "wait(). Whoever calls an all-reduce with async_op=True is given a handle."
            )
        got = result["x"]
        if got.dtype != x.dtype:
            return f"x was {x.dtype}, and on rank {rank} it is {got.dtype} now."
        far = (got.double() - total).abs() > 0.05 * sum(
            one.double().abs() for (one,) in seen.inputs
        )
        if far.any():
            k = int(far.flatten().nonzero()[0])
            return (
                f"After wait(), number {k} of x is {got.flatten()[k]:g} on rank {rank}. The sum "
                f"over the ranks is {total.flatten()[k]:g}."
            )
        if len(result["sent"]) != 1:
            return f"It called dist.all_reduce {len(result['sent'])} times. Once is enough."
        dtype, n, asynchronous, in_group = result["sent"][0]
        if (dtype, n) != ("torch.bfloat16", x.numel()):
            return (
                f"x has {x.numel()} numbers. {n} of {dtype} were sent; it should be as many of "
                "torch.bfloat16."
            )
        if not asynchronous:
            return "Its all-reduce was not started with async_op=True: nothing can overlap."
        if not result["begun"]:
            return "Nothing is sent before wait() is called: nothing can overlap."
        if not in_group:
            return "It was given a group, and called dist.all_reduce without one."
    return None


def _random(what, shape, dtype=torch.float32, ranks=4):
    def make(rank, world_size):
        generator = torch.Generator().manual_seed(rank)
        return (torch.randn(shape, generator=generator).to(dtype),)

    return Case(what, make, ranks=ranks)


bf16_all_reduce = Exercise(
    "bf16_all_reduce",
    cases=[
        Case(
            "[r, 1] on rank r",
            lambda rank, world_size: (torch.tensor([float(rank), 1.0]),),
            ranks=4,
        ),
        _random("1000 numbers", (1000,)),
        _random("float64", (17,), torch.float64, ranks=3),
        _random("a matrix", (5, 3), ranks=2),
        _random("one number", (1,), ranks=1),
    ],
    expected=None,
    drive=_drive_bf16,
    judge=_judge_bf16,
    in_place=False,
    hints=[
        Hint(
            lambda seen: True,
            "It waits for the sum before it returns its handle; and here the last rank begins when "
            "rank 0 has its own. All the waiting belongs into wait().",
            when=("stuck",),
        ),
        Hint(
            lambda seen: (
                seen.results
                and not any(result["handle"] for result in seen.results)
                and len(seen.results) > 1
                and all(
                    torch.equal(result["x"], x) for result, (x,) in zip(seen.results, seen.inputs)
                )
            ),
            "x is what it was. What was sent is a copy, and somebody must copy the sums back: "
            "when they are there, so in wait(), after the wait() of what was sent.",
        ),
    ],
    hint="Which part of it can be done at once, and what only when the sums are there?",
)
