"""What the ranks of chapter 13 have beside what its page shows: one world, and help for programs.

The page fills it in: `init` says how ranks talk, and the loader how large each rank's share is.
"""

import functools
import sys
import time
import traceback

import numpy as np

from ranklab.framework.batch_norm import BatchNorm


class World:
    """What a rank knows: how to talk to the others, and how large its share of the batch is."""

    talk = None
    share = 1, 1  # m_k and n: the examples in its batch, and in all ranks'

    @staticmethod
    def weight():
        """What this rank's gradient counts in that of all."""
        mine, everybodys = World.share
        return mine / everybodys


class Arrays:
    """What those who talk over MPI have in common: NumPy's arrays, and sums that are under way."""

    device = "cpu"

    @functools.cached_property
    def aside(self):
        """A communicator for sums that are under way: no other call comes in between."""
        return self.comm.Dup()

    def begin(self, array):
        """Begin to add up, and return at once, with a function that waits for the sum."""
        return self.aside.Iallreduce(self.in_place, array).Wait

    def numbers(self, tensor):
        return tensor.array

    def zeros(self, n, dtype):
        return np.zeros(n, dtype)

    def parameters(self, opt):
        return opt.params


class Shares:
    """What a loader of shares has beside them: tensors of any framework; how many examples."""

    def tensor(self, array):
        return World.talk.tensor(array)

    def examples(self):
        """How many examples of an epoch are this rank's."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole * len(self.share(range(self.batch_size))) + len(self.share(range(rest)))


class Wrapped:
    """An optimizer around another one, `self.opt`, to which it hands on all else."""

    def reset_grad(self):
        """Forget the gradients, averaged or not: also where all ranks leave out a step."""
        if hasattr(self.exchange, "finish"):
            self.exchange.finish()
        self.averaged = False
        self.opt.zero_grad()

    zero_grad = reset_grad

    def __getattr__(self, name):
        if name == "opt":  # not yet there
            raise AttributeError(name)
        return getattr(self.opt, name)

    def __setattr__(self, name, value):
        theirs = "opt" in vars(self) and hasattr(self.opt, name)  # such as another lr
        object.__setattr__(self.opt if theirs else self, name, value)


def end_all(kind, error, trace):
    """Show an exception that nobody has caught, and end all ranks: they would wait for this one."""
    traceback.print_exception(kind, error, trace, file=sys.__stderr__)
    sys.stdout.flush()
    sys.__stderr__.flush()
    time.sleep(0.2)  # until mpiexec has shown it
    World.talk.comm.Abort(1)


def broadcast_optimizer_state(opt, root=0):
    """Give all ranks the state of rank root's optimizer."""
    opt.load_state_dict(World.talk.comm.bcast(opt.state_dict(), root))


def clip_grad_norm(opt, longest):
    """Scale the gradient of all examples down to this norm; return what it was."""
    opt.synchronize()  # only then all ranks have the same
    gradients = [p.grad for p in opt.params if p.grad is not None]
    norm = sum(float((grad * grad).sum()) for grad in gradients) ** 0.5
    for grad in gradients:
        grad *= min(1.0, longest / (norm + 1e-6))
    return norm


def mean_over_ranks(number):
    """Of a mean over each rank's share, that over the whole batch."""
    return World.talk.comm.allreduce(World.weight() * float(number))


def accuracy(logits, labels):
    """The share of right answers, over all ranks' examples."""
    answers = World.talk.numbers(logits).argmax(axis=1)
    return mean_over_ranks((answers == World.talk.numbers(labels)).mean())


def sums_of_all(sums, gradients=False):
    """The sums over all ranks, for batch norm.

    A rank's loss is a mean over its share. So its gradients count m_k / n here, and what it gets
    for its own will be multiplied by m_k / n later.
    """
    weight = World.weight()
    total = sums * (weight if gradients else weight > 0)
    World.talk.add_up(total)
    return total / weight if gradients and weight else total


def synchronize_batch_norm(model):
    """From now on, batch norm goes by the examples of all ranks."""
    for _, module in model.named_modules():
        if isinstance(module, BatchNorm):
            module.synchronize = sums_of_all
