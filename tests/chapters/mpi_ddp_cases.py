"""What test_mpi_ddp.py looks at: trainings on 1 to 4 ranks of MPI, all in one launch.

    mpiexec -n 4 python mpi_ddp_cases.py FILE CASE...

FILE gets {case: what each rank has returned, in rank order}.
"""

import pickle
import sys

import numpy as np

from ranklab.framework.world import (
    World,
    broadcast_optimizer_state,
    clip_grad_norm,
    synchronize_batch_norm,
)
from ranklab.taught import mpi_ddp as ddp
from ranklab.taught import own_framework as ndl

nn = ndl.nn
SEED = 3


class Examples:
    """Numbers for pictures of 3 x 8 x 8, in float64, and ten classes."""

    def __init__(self, n):
        numbers = np.random.default_rng(0)
        self.X = numbers.standard_normal((n, 3, 8, 8))
        self.y = numbers.integers(0, 10, n)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.X[i], self.y[i]


def network(seed=0, norm=nn.BatchNorm2d):
    """A small network; without norm, without batch norm."""
    np.random.seed(seed)
    first, second = (
        nn.Conv(n, m, 3, stride=2, padding=1, dtype="float64") for n, m in ((3, 6), (6, 8))
    )
    norms = [[norm(m, dtype="float64")] if norm else [] for m in (6, 8)]
    last = nn.Linear(32, 10, dtype="float64")
    return nn.Sequential(
        first, *norms[0], nn.ReLU(), second, *norms[1], nn.ReLU(), nn.Flatten(), last
    )


def adam(model, lr=0.01):
    return ndl.optim.Adam(model.parameters(), lr=lr, weight_decay=0.001)


def state(model):
    """All parameters and buffers in one array."""
    arrays = [*(p.array for p in model.parameters()), *model.buffers()]
    return np.concatenate([array.ravel() for array in arrays])


class Training:
    """A training on the ranks of `comm`, whose models start with other weights each."""

    def __init__(self, comm, n=37, batch_size=10, make=network, how=ddp.Flat):
        ddp.init(comm)
        self.loader, self.share = ddp.partition_dataset(
            Examples(n), batch_size, dtype="float64", seed=SEED
        )
        self.model = make(seed=comm.rank)
        ddp.broadcast_parameters(self.model)
        synchronize_batch_norm(self.model)
        self.opt = ddp.DistributedOptimizer(adam(self.model), how)
        self.loss = nn.SoftmaxLoss()

    def run(self, epochs=2, before_step=None):
        """Train; before_step(self) is called when the gradients of a batch are there."""
        for _ in range(epochs):
            for X, y in self.loader:
                self.opt.reset_grad()
                self.loss(self.output(X, y), y).backward()
                if before_step:
                    before_step(self)
                self.opt.step()
        return state(self.model)

    def output(self, X, y):
        return self.model(X)

    def gradients(self, backwards=1):
        """Those of the first batch, of all ranks' examples, in one array."""
        X, y = next(iter(self.loader))
        for _ in range(backwards):
            self.loss(self.output(X, y), y).backward()
        self.opt.synchronize()
        return np.concatenate([p.grad.ravel() for p in self.opt.params])

    def go_by_own_statistics(self):
        """Batch norm by each rank's own examples from now on."""
        for _, module in self.model.named_modules():
            module.synchronize = None


def on_first(comm, k, function, *args, **how):
    """What function(comm of the first k ranks, ...) returns there; None on the others."""
    part = comm.Split(comm.rank < k)
    return function(part, *args, **how) if comm.rank < k else None


def alone_and_on_all(comm, function, *args, **how):
    """For one rank and for all of them."""
    return {k: on_first(comm, k, function, *args, **how) for k in (1, comm.size)}


def trained(comm, before_step=None, epochs=2, **how):
    return Training(comm, **how).run(epochs, before_step)


# The cases


def equality(comm):
    """20 steps with batches of 10, and of 7 at the end of each epoch."""
    nets = {"off": without_norm, "synchronized": network}
    return {
        (k, name): on_first(comm, k, trained, make=make, epochs=5)
        for k in range(1, comm.size + 1)
        for name, make in nets.items()
    }


def without_norm(seed):
    return network(seed, norm=None)


def own_statistics(comm):
    """Batch norm by each rank's own examples; and the first rank's statistics."""
    training = Training(comm)
    training.go_by_own_statistics()
    return training.run(epochs=5)


def plain_mean(comm):
    """Gradients of unequal shards, each with the weight 1 / ranks."""

    def forget(training):
        World.share = 1, World.talk.size

    return trained(comm, forget, epochs=5, make=without_norm)


def ways(comm):
    """The three exchanges, with batch norm that is synchronized."""
    return {
        name: trained(comm, how=how)
        for name, how in {
            "each": ddp.EachTensor,
            "flat": ddp.Flat,
            "overlapped": lambda params: ddp.Overlapped(params, 1000),
        }.items()
    }


def few_examples(comm):
    """Batches of 4, 4 and 2: of the last, two ranks of four get nothing."""
    return alone_and_on_all(comm, trained, n=10, batch_size=4)


def clipped(comm):
    def clip(training):
        norms.append(clip_grad_norm(training.opt, 0.5))

    norms = []
    return {**alone_and_on_all(comm, trained, clip), "norms": norms}


def scheduled(comm):
    """A rate that falls, told to the wrapper, or to the optimizer in it; and one that stays."""

    def outside(training):
        training.opt.lr *= 0.8

    def inside(training):
        training.opt.opt.lr *= 0.8
        assert training.opt.lr == training.opt.opt.lr

    constant = trained(comm)
    return {
        "outside": alone_and_on_all(comm, trained, outside),
        "inside": trained(comm, inside),
        "constant": constant,
    }


class Forked(nn.Module):
    """A part is used for examples of even classes only, and one part never."""

    def __init__(self, seed):
        self.trunk, self.branch, self.idle = (without_norm(seed) for _ in range(3))


class ForkedTraining(Training):
    def output(self, X, y):
        even, out = y.numpy() % 2 == 0, self.model.trunk(X)
        if even.any():
            out = out + self.model.branch(X) * even[:, None].astype("float64")
        self.lacking.append(not even.any())
        return out

    lacking = ()


def lacking(comm):
    """Small shares, of which some have no example of an even class."""

    def forked(part, how):
        training = ForkedTraining(part, make=Forked, how=how, batch_size=6)
        training.lacking, idle = [], state(training.model.idle)
        return (
            training.run(),
            sum(training.lacking),
            np.array_equal(idle, state(training.model.idle)),
        )

    flat = alone_and_on_all(comm, forked, ddp.Flat)
    return {**flat, "overlapped": forked(comm, lambda params: ddp.Overlapped(params, 1000))}


def resumed(comm):
    """Two epochs without a break; and one, saved by rank 0, who alone reads it, and one more."""
    whole = Training(comm).run()
    before = Training(comm)
    before.run(epochs=1)
    saved = pickle.dumps(
        (before.model.state_dict(), before.opt.state_dict(), before.loader.sampler.epoch)
    )
    after = Training(comm)
    weights, optimizer, epoch = pickle.loads(saved)
    if comm.rank == 0:
        after.model.load_state_dict(weights)
        after.opt.load_state_dict(optimizer)
    ddp.broadcast_parameters(after.model)
    broadcast_optimizer_state(after.opt)
    after.loader.sampler.epoch = epoch
    return whole, after.run(epochs=1)


def broadcast(comm):
    """A model whose parameters and statistics differ from rank to rank, from rank 2."""
    ddp.init(comm)
    model = network(seed=comm.rank)
    for buffer in model.buffers():
        buffer += comm.rank
    before = state(model)
    ddp.broadcast_parameters(model, root=2)
    return before, state(model)


class Numbers:
    """The example i is the number i."""

    def __len__(self):
        return 50

    def __getitem__(self, i):
        return np.array([i], "float32"), i


def dealt(comm):
    """Two epochs: the numbers in each batch, and the share m / n that the loader tells."""

    def epochs(part):
        ddp.init(part)
        loader, share = ddp.partition_dataset(Numbers(), 12)
        found = [
            [(X.numpy().ravel().tolist(), y.numpy().tolist(), World.share) for X, y in loader]
            for _ in range(2)
        ]
        return found, share, len(loader)

    return {k: on_first(comm, k, epochs) for k in (1, 3, 4)}


def twice(comm):
    """Two backwards before a step: with one buffer their sum, else an error."""
    ddp.init(comm)
    found = []
    for how in (ddp.Flat, ddp.Overlapped):
        training = Training(comm, how=how, make=without_norm)
        try:
            found.append(training.gradients(backwards=2))
        except RuntimeError as error:
            training.opt.exchange.average()  # as the others do
            found.append(str(error))
    return *found, Training(comm, make=without_norm).gradients()


def skipped(comm):
    """A backward without a step, whose gradients are forgotten, and another one."""
    training = Training(comm, how=lambda params: ddp.Overlapped(params, 1000), make=without_norm)
    X, y = next(iter(training.loader))
    training.loss(training.output(X, y) * 7, y).backward()
    training.opt.reset_grad()
    training.loader.sampler.epoch = 0
    return training.gradients(), Training(comm, make=without_norm).gradients()


def beside_torch(comm):
    """Equal shards, each rank with statistics of its own: as torch's DDP does it."""
    training = Training(comm, n=36, batch_size=12)
    training.go_by_own_statistics()
    start = state(training.model)
    return start, training.run(epochs=5)


def whole_resnet9(comm):
    """ResNet-9 itself, on small batches of unequal shards."""

    class Pictures(Examples):
        def __init__(self, n):
            super().__init__(n)
            self.X = np.random.default_rng(1).standard_normal((n, 3, 32, 32))

    def train(part):
        ddp.init(part)
        loader, _ = ddp.partition_dataset(Pictures(37), 10, dtype="float64")
        np.random.seed(part.rank)
        model = ndl.ResNet9(dtype="float64")
        ddp.broadcast_parameters(model)
        synchronize_batch_norm(model)
        opt = ddp.DistributedOptimizer(adam(model, lr=0.001))
        for _ in range(5):
            for X, y in loader:
                opt.reset_grad()
                nn.SoftmaxLoss()(model(X), y).backward()
                opt.step()
        return state(model)

    return {k: on_first(comm, k, train) for k in range(1, comm.size + 1)}


def main(file, *cases):
    from mpi4py import MPI  # not above: the ranks of other tests import this file, too

    comm = MPI.COMM_WORLD
    ddp.init(comm)  # who fails ends all
    found = {case: comm.gather(globals()[case](comm)) for case in cases}
    if comm.rank == 0:
        with open(file, "wb") as results:
            pickle.dump(found, results)


if __name__ == "__main__":
    main(*sys.argv[1:])
