"""Wrong answers to the exercise on an all-reduce that sends half the bytes."""

import torch.distributed as dist

from wrong_answers import wrong


class _Handle:
    def __init__(self, work, wire, x):
        self.work, self.wire, self.x = work, wire, x

    def wait(self):
        self.work.wait()
        self.x.copy_(self.wire)


@wrong("bf16_all_reduce", says=["somebody must copy the sums back"])
def never_copied_back(x, group=None, async_op=True):
    return dist.all_reduce(x.bfloat16(), group=group, async_op=True)


@wrong("bf16_all_reduce", says=["copy the sums back"])
def copied_too_early(x, group=None, async_op=True):
    wire = x.bfloat16()
    before = wire.clone()
    work = dist.all_reduce(wire, group=group, async_op=True)
    x.copy_(x if len(x) < 2 else before.to(x.dtype) * 0 + x)
    return work


@wrong("bf16_all_reduce", says=["2 of torch.float32 were sent"])
def rounded_and_sent_in_full(x, group=None, async_op=True):
    wire = x.bfloat16().to(x.dtype)
    return _Handle(dist.all_reduce(wire, group=group, async_op=True), wire, x)


@wrong("bf16_all_reduce", says=["NoneType", "no wait()"])
def waits_at_once(x, group=None, async_op=True):
    wire = x.bfloat16()
    dist.all_reduce(wire, group=group)
    x.copy_(wire)


@wrong("bf16_all_reduce", says=["not started with async_op=True"])
def a_handle_of_nothing(x, group=None, async_op=True):
    class Done:
        def wait(self):
            pass

    wire = x.bfloat16()
    dist.all_reduce(wire, group=group)
    x.copy_(wire)
    return Done()


@wrong("bf16_all_reduce", says=["of torch.float16 were sent", "torch.bfloat16"])
def in_the_other_16_bits(x, group=None, async_op=True):
    wire = x.half()
    return _Handle(dist.all_reduce(wire, group=group, async_op=True), wire, x)


@wrong("bf16_all_reduce", says=["Nothing is sent before wait()"])
def begins_in_wait(x, group=None, async_op=True):
    class Later:
        def wait(self):
            wire = x.bfloat16()
            dist.all_reduce(wire, group=group, async_op=True).wait()
            x.copy_(wire)

    return Later()


@wrong("bf16_all_reduce", says=["before it returns its handle"])
def waits_before_it_returns(x, group=None, async_op=True):
    wire = x.bfloat16()
    work = dist.all_reduce(wire, group=group, async_op=True)
    work.wait()
    x.copy_(wire)
    return work


@wrong("bf16_all_reduce", says=["without one"])
def among_all_ranks(x, group=None, async_op=True):
    wire = x.bfloat16()
    return _Handle(dist.all_reduce(wire, async_op=True), wire, x)
