"""An all-reduce that sends half the bytes, and does not keep its caller waiting."""

from unittest import mock

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake

STARTED = "dist.all_reduce(wire, group=group, async_op=True)"
FINISHED = "work.wait()\n            x.copy_(wire)"


class Gate:
    """The last rank passes it when rank 0 has opened it: whoever waits before that, waits on."""

    def __init__(self):
        self.last, self.is_open = dist.get_world_size() - 1, False

    def pass_through(self):
        if dist.get_rank() == self.last > 0:
            dist.recv(torch.zeros(1), src=0)

    def open(self):
        if dist.get_rank() == 0 < self.last and not self.is_open:
            dist.send(torch.zeros(1), dst=self.last)
        self.is_open = True


def drive(answer, x):
    """The last rank begins when rank 0 has its handle, or has called what waits by itself."""
    group, original = dist.new_group(range(dist.get_world_size())), dist.all_reduce
    x, sent, asynchronous, in_group, gate = x.clone(), [], [], [], Gate()

    def noted(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        if not async_op:
            gate.open()
        sent.append(f"{tensor.numel()} of {tensor.dtype}")
        asynchronous.append(async_op)
        in_group.append(group is not None)
        return original(tensor, op=op, group=group, async_op=async_op)

    gate.pass_through()
    with mock.patch.object(dist, "all_reduce", noted):
        handle = answer(x, group=group, async_op=True)
        begun = len(sent)
        gate.open()
        if waits := hasattr(handle, "wait"):
            handle.wait()
    return {
        "is there a handle with wait()": waits,
        "x after wait()": x,
        "what was sent": sent,
        "was it begun before wait()": bool(begun),
        "was async_op=True": all(asynchronous),
        "was it sent in the group": all(in_group),
    }


def twin(inputs):
    total = sum(x for (x,) in inputs)
    right = {
        "is there a handle with wait()": True,
        "x after wait()": total,
        "what was sent": [f"{total.numel()} of torch.bfloat16"],
        "was it begun before wait()": True,
        "was async_op=True": True,
        "was it sent in the group": True,
    }
    return [right] * len(inputs)


def case(what, shape, dtype=torch.float32, ranks=4):
    def make(rank, world_size):
        generator = torch.Generator().manual_seed(rank)
        return (torch.randn(shape, generator=generator).to(dtype),)

    return Case(what, make, ranks=ranks)


def first(rank, world_size):
    return (torch.tensor([float(rank), 1.0]),)


class Flat:
    """Sends a flat copy, and gives back what else one asks of a handle."""

    def __init__(self, x, group=None, async_op=True):
        self.x, self.wire = x, x.detach().reshape(-1).bfloat16()
        self.work = dist.all_reduce(self.wire, group=group, async_op=True)

    def __getattr__(self, name):
        return getattr(self.work, name)

    def wait(self, *timeout):
        done = self.work.wait(*timeout)
        self.x[...] = self.wire.view(self.x.shape)
        return done


exercise = Exercise(
    cases=[
        Case("[r, 1] on rank r", first),
        case("1000 numbers", (1000,)),
        case("float64", (17,), torch.float64, ranks=3),
        case("a matrix", (5, 3), ranks=2),
        case("one number", (1,), ranks=1),
    ],
    twin=twin,
    drive=drive,
    tolerance=(0.02, 0.05),  # bfloat16 has three digits, and what is added up may cancel
    hint="Which part of it can be done at once, and what only when the sums are there?",
    also_right=[Flat],
    mistakes=[
        Mistake(
            "It waits for the sum before it returns its handle; and here the last rank begins when "
            "rank 0 has its own. All the waiting belongs into wait().",
            {STARTED: STARTED + "\n    work.wait()"},
            happened="stuck",
        ),
        Mistake(
            "Whoever calls an all-reduce with async_op=True is given a handle, something with a "
            "wait().",
            {STARTED: "dist.all_reduce(wire, group=group)", "return Handle()": "x.copy_(wire)"},
            test=lambda seen: not seen.results[0]["is there a handle with wait()"],
        ),
        Mistake(
            "x is what it was. What was sent is a copy, and somebody must copy the sums back: when "
            "they are there, so in wait(), after the wait() of what was sent.",
            {"return Handle()": "return work"},
        ),
        Mistake(
            "As many numbers as x has should be sent, once, and as torch.bfloat16.",
            {"x.to(torch.bfloat16)": "x.to(torch.bfloat16).to(x.dtype)"},
            {"x.to(torch.bfloat16)": "x.to(torch.float16)"},
            {STARTED: STARTED + "\n    dist.all_reduce(wire.clone())"},
            test=lambda seen: seen.results[0]["what was sent"] != seen.expected[0]["what was sent"],
        ),
        Mistake(
            "Its all-reduce was not started with async_op=True: nothing can overlap.",
            {STARTED: STARTED.replace(", async_op=True", ""), FINISHED: "x.copy_(wire)"},
        ),
        Mistake(
            "Nothing is sent before wait() is called: nothing can overlap.",
            {
                f"    work = {STARTED}\n": "",
                FINISHED: f"{STARTED}.wait()\n            x.copy_(wire)",
            },
        ),
        Mistake(
            "It was given a group, and called dist.all_reduce without one.",
            {STARTED: STARTED.replace("group=group, ", "")},
        ),
    ],
)
