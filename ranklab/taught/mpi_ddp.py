"""Data parallelism with Horovod's interface, over MPI: what chapter 13_own_framework teaches."""

import functools
import socket
import sys
import time
import traceback

import numpy as np

from ranklab.framework.batch_norm import BatchNorm
from ranklab.framework.loading import Batches
from ranklab.taught.own_framework import Tensor


class World:
    """What this process knows of the others: `init` and the loader say it."""

    talk = None  # how ranks talk: OverMPI or OverTorch
    share = 1, 1  # examples in this rank's batch, and in all ranks'

    @staticmethod
    def weight():
        """What this rank's gradient counts in that of all: m_k / n."""
        mine, everybodys = World.share
        return mine / everybodys


class OverMPI:
    """How ranks talk: NumPy arrays, through MPI."""

    def __init__(self, comm=None):
        from mpi4py import MPI  # not above: whoever imports it starts MPI

        self.comm, self.in_place = comm or MPI.COMM_WORLD, MPI.IN_PLACE
        self.rank, self.size = self.comm.rank, self.comm.size
        # Sums under way have a communicator that no other call uses.
        self.aside, self.device = self.comm.Dup(), "cpu"

    def add_up(self, array):
        """Replace the array by the sum of all ranks' arrays."""
        self.comm.Allreduce(self.in_place, array)

    def begin(self, array):
        """The same, but return at once, with a function that waits for it."""
        return self.aside.Iallreduce(self.in_place, array).Wait

    def copy(self, array, root):
        """Replace the array by that of rank root."""
        self.comm.Bcast(array, root)

    # How gradients and batches of the framework are got at

    tensor = Tensor

    def array(self, p):
        return p.array

    def zeros(self, n, like):
        return np.zeros(n, like.dtype)

    def lend(self, p, room):
        """From now on, backward writes the gradient of p there."""
        p.into = room

    def when_complete(self, p, function):
        p.hooks.append(function)

    def parameters(self, opt):
        return list(opt.params)


class OverTorch(OverMPI):
    """How ranks talk: torch tensors, through NCCL or Gloo; by MPI they meet."""

    def __init__(self, comm=None):
        import torch
        import torch.distributed as dist

        super().__init__(comm)
        self.torch, self.dist = torch, dist
        host = self.comm.Split_type(1)  # MPI.COMM_TYPE_SHARED: one machine
        gpus = torch.cuda.device_count() >= host.size
        self.device = torch.device("cuda", host.rank) if gpus else torch.device("cpu")
        if gpus:
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            here = "127.0.0.1" if host.size == self.size else socket.gethostname()
            self.meet(here, "nccl" if gpus else "gloo")

    def meet(self, name, backend):
        """Rank 0 opens a port, and says by MPI where it is."""
        store = None
        if self.rank == 0:
            store = self.dist.TCPStore(name, 0, is_master=True, wait_for_workers=False)
        name, port = self.comm.bcast((name, store and store.port))
        store = store or self.dist.TCPStore(name, port)
        self.dist.init_process_group(
            backend, store=store, rank=self.rank, world_size=self.size
        )

    def add_up(self, tensor):
        self.dist.all_reduce(tensor)

    def begin(self, tensor):
        return self.dist.all_reduce(tensor, async_op=True).wait

    def copy(self, tensor, root):
        self.dist.broadcast(tensor, root)

    def tensor(self, array):
        return self.torch.from_numpy(array).to(self.device)

    def array(self, p):
        return p.data

    def zeros(self, n, like):
        return like.data.new_zeros(n)

    def lend(self, p, room):
        """Torch makes gradients where it likes; they are copied."""

    def when_complete(self, p, function):
        p.register_post_accumulate_grad_hook(function)

    def parameters(self, opt):
        return [p for group in opt.param_groups for p in group["params"]]


def end_all(kind, error, trace):
    """What nobody has caught is shown, and ends all ranks: they would wait."""
    traceback.print_exception(kind, error, trace)
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(1)  # until mpiexec has shown it
    World.talk.comm.Abort(1)


def init(comm=None, over=OverMPI):
    """Find the other ranks. Returns the number of this one, and its device."""
    World.talk = over(comm)
    World.share = 1, World.talk.size
    if World.talk.size > 1:
        sys.excepthook = end_all
    return World.talk.rank, World.talk.device


class ShardedLoader(Batches):
    """Of each batch of the whole data, this rank's share."""

    def share(self, indices):
        """Two ranks' shares differ by one at most."""
        return indices[World.talk.rank :: World.talk.size]

    def batch(self, indices):
        mine = self.share(indices)
        World.share = len(mine), len(indices)
        # Who has no share gets an example that will count nothing.
        return super().batch(mine or indices[:1])

    def tensor(self, array):
        return World.talk.tensor(array)


def partition_dataset(
    dataset, batch_size, device=None, dtype="float32", shuffle=True, seed=0
):
    """Share out each batch of a data set: the loader, and the share's size."""
    loader = ShardedLoader(
        dataset, batch_size, shuffle=shuffle, seed=seed, dtype=dtype
    )
    whole, rest = divmod(len(dataset), batch_size)
    of_whole, of_rest = (len(loader.share(range(n))) for n in (batch_size, rest))
    print(f"partitioned dataset length: {whole * of_whole + of_rest}")
    return loader, of_whole


def broadcast_parameters(model, root=0):
    """Give every rank, in place, the parameters and buffers of rank root."""
    for values in [*map(World.talk.array, model.parameters()), *model.buffers()]:
        World.talk.copy(values, root)


def broadcast_optimizer_state(opt, root=0):
    """Give every rank the state of rank root's optimizer."""
    opt.load_state_dict(World.talk.comm.bcast(opt.state_dict(), root))


def sum_over_ranks(number):
    return World.talk.comm.allreduce(number)


class EachTensor:
    """One all-reduce for each tensor, after backward."""

    def __init__(self, parameters):
        self.parameters = parameters

    def average(self):
        for p in self.parameters:
            if p.grad is None:
                p.grad = 0 * World.talk.array(p)
            p.grad *= World.weight()
            World.talk.add_up(p.grad)


class Flat:
    """One buffer, into which backward writes all gradients; one all-reduce."""

    def __init__(self, parameters):
        self.parameters = parameters
        ends = np.cumsum([0, *(np.prod(p.shape, dtype=int) for p in parameters)])
        # Behind the gradients, a number for each: has any rank got it?
        n = ends[-1] + len(parameters)
        self.buffer = World.talk.zeros(int(n), parameters[0])
        self.there = self.buffer[ends[-1] :]
        self.rooms = [
            self.buffer[a:b].reshape(p.shape)
            for a, b, p in zip(ends, ends[1:], parameters)
        ]
        for p, room in zip(parameters, self.rooms):
            World.talk.lend(p, room)

    def put(self):
        """Put in what is not there yet, zeros for what is missing; weight it."""
        for i, (p, room) in enumerate(zip(self.parameters, self.rooms)):
            self.there[i] = p.grad is not None
            if p.grad is not room:
                room[...] = 0 if p.grad is None else p.grad
        self.buffer *= World.weight()

    def take(self):
        """Each gradient is now the sum, or none where no rank had it."""
        there = self.there.tolist()
        for p, room, anywhere in zip(self.parameters, self.rooms, there):
            p.grad = room if anywhere else None

    def average(self):
        self.put()
        World.talk.add_up(self.buffer)
        self.take()


class Overlapped:
    """Several buffers, each sent as soon as backward has filled it."""

    def __init__(self, parameters, nbytes=512 << 10):
        self.buckets, filling = [], []
        for p in reversed(parameters):  # the order in which backward comes
            filling.append(p)
            full = sum(World.talk.array(q).nbytes for q in filling) >= nbytes
            if full or p is parameters[0]:
                self.buckets.append(Flat(filling))
                filling = []
        for bucket in self.buckets:
            arrived = functools.partial(self.arrived, bucket)
            for p in bucket.parameters:
                World.talk.when_complete(p, arrived)
        self.reset()

    def reset(self):
        self.waits = []  # a function for each buffer that is under way
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def arrived(self, bucket, p):
        """Called in the midst of backward: p's gradient is complete."""
        if not bucket.missing:
            raise RuntimeError(
                "A second backward before `step`, and the gradients of the first are "
                "under way. To add up those of several, take `Flat`."
            )
        bucket.missing -= 1
        self.send(full_ones=True)

    def send(self, full_ones):
        """Send buffers, on all ranks in this order."""
        for bucket in self.buckets[len(self.waits) :]:
            if bucket.missing and full_ones:
                break
            bucket.put()
            self.waits.append(World.talk.begin(bucket.buffer))

    def average(self):
        self.send(full_ones=False)
        for bucket, wait in zip(self.buckets, self.waits):
            wait()
            bucket.take()
        self.reset()


class DistributedOptimizer:
    """An optimizer whose step goes by the gradient of all ranks' examples."""

    def __init__(self, opt, how=Flat):
        self.opt, self.averaged = opt, False
        self.params = World.talk.parameters(opt)
        self.exchange = how(self.params)
        broadcast_optimizer_state(opt)

    def synchronize(self):
        """Average the gradients, once a step: `step` does, and who clips."""
        if not self.averaged:
            self.exchange.average()
        self.averaged = True

    def step(self):
        self.synchronize()
        self.opt.step()
        self.averaged = False

    def reset_grad(self):
        self.averaged = False
        for p in self.params:
            p.grad = None

    zero_grad = reset_grad

    def clip_grad_norm(self, longest):
        """Scale the gradient of all examples, if its norm is larger than that."""
        self.synchronize()
        gradients = [p.grad for p in self.params if p.grad is not None]
        norm = sum(float((g * g).sum()) for g in gradients) ** 0.5
        for g in gradients:
            g *= min(1.0, longest / (norm + 1e-6))
        return norm

    def __getattr__(self, name):  # whatever else it is asked for
        return getattr(self.opt, name)

    def __setattr__(self, name, value):  # or told, such as another lr
        own = name in ("opt", "params", "exchange", "averaged")
        object.__setattr__(self if own else self.opt, name, value)


def sums_of_all(sums, gradients=False):
    """The sums over all ranks, for batch norm.

    A rank's loss is the mean over its own share, so its gradients count m_k / n among all;
    and what it gets back will be multiplied by its own m_k / n.
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
