"""The other side of chapter 13's interface: torch's tensors over NCCL or Gloo, which meet by MPI.

Nothing here imports torch before it is asked for: who trains with NumPy need not have it.
"""

import atexit
import socket


class OverTorch:
    """How ranks talk: torch's tensors, over NCCL with a GPU for each rank, else over Gloo."""

    def __init__(self, comm=None):
        import torch
        from mpi4py import MPI

        self.comm, self.torch = comm or MPI.COMM_WORLD, torch
        self.rank, self.size = self.comm.rank, self.comm.size
        host = self.comm.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks of this machine
        gpus = torch.cuda.device_count() >= host.size
        self.device = torch.device("cuda", host.rank) if gpus else torch.device("cpu")
        if gpus:
            torch.cuda.set_device(self.device)
        if not torch.distributed.is_initialized():
            here = "127.0.0.1" if host.size == self.size else socket.gethostname()
            self.meet(here, "nccl" if gpus else "gloo")

    def meet(self, name, backend):
        """Rank 0 opens a port; where it is, and so NCCL's id, the others learn by MPI."""
        dist, store = self.torch.distributed, None
        if self.rank == 0:
            store = dist.TCPStore(name, 0, is_master=True, wait_for_workers=False)
        name, port = self.comm.bcast((name, store and store.port))
        store = store or dist.TCPStore(name, port)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size)
        atexit.register(self.leave)

    def leave(self):
        """At the end of a program, as NCCL wants; who has left already need not."""
        if self.torch.distributed.is_initialized():
            self.torch.distributed.destroy_process_group()

    def add_up(self, tensor):
        self.torch.distributed.all_reduce(tensor)

    def begin(self, tensor):
        return self.torch.distributed.all_reduce(tensor, async_op=True).wait

    def copy(self, tensor, root):
        self.torch.distributed.broadcast(tensor, root)

    def zeros(self, n, dtype):
        return self.torch.zeros(n, dtype=dtype, device=self.device)

    def tensor(self, array):
        tensor = self.torch.from_numpy(array).to(self.device)
        return tensor if tensor.is_floating_point() else tensor.long()  # as losses want labels

    def numbers(self, tensor):
        return tensor.detach().cpu().numpy()

    def parameters(self, opt):
        return [Leaf(p) for group in opt.param_groups for p in group["params"]]


class Leaf:
    """One of torch's parameters, with the names of chapter 13's framework."""

    into = None  # torch makes gradients where it likes: they are copied

    def __init__(self, p):
        self.p, self.hooks, self.shape, self.dtype = p, Hooks(self), p.shape, p.dtype

    array = property(lambda self: self.p.data)
    size = property(lambda self: self.p.numel())
    grad = property(lambda self: self.p.grad, lambda self, grad: setattr(self.p, "grad", grad))


class Hooks:
    """What shall be called when the gradient of a leaf is complete."""

    def __init__(self, leaf):
        self.leaf = leaf

    def append(self, function):
        self.leaf.p.register_post_accumulate_grad_hook(lambda _: function(self.leaf))
