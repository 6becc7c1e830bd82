"""Right answers to the exercise on an all-reduce that sends half the bytes."""

import functools

import torch
import torch.distributed as dist

from right_answers import right


class _Finish:
    def __init__(self, wait):
        self.wait = wait


@right("bf16_all_reduce")
def what_is_left_to_do(x, group=None, async_op=True):
    """The handle's wait is a function that is ready to be called."""
    wire = x.to(torch.bfloat16, copy=True)
    begun = dist.all_reduce(wire, op=dist.ReduceOp.SUM, group=group, async_op=async_op)

    def finish(work):
        work.wait()
        with torch.no_grad():
            x.copy_(wire.to(x.dtype))
        return True

    return _Finish(functools.partial(finish, begun))


class _Flat:
    """Sends a flat copy, and gives back what else one asks of a handle."""

    def __init__(self, x, group):
        self.x, self.wire = x, x.detach().reshape(-1).bfloat16()
        self.work = dist.all_reduce(self.wire, group=group, async_op=True)

    def __getattr__(self, name):
        return getattr(self.work, name)

    def wait(self, *timeout):
        done = self.work.wait(*timeout)
        self.x[...] = self.wire.view(self.x.shape)
        return done


@right("bf16_all_reduce")
def the_handle_itself(x, group=None, async_op=True):
    return _Flat(x, group)
