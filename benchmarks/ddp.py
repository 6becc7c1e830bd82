"""Chapter 12's data parallel wrapper beside PyTorch's: the time of a training step.

    python benchmarks/ddp.py [REPEATS]

One run; the MLP of chapter 3, a ResNet-9 and a small transformer, on 2 and on 4 ranks, Gloo, one
thread a rank. The two wrappers take turns, and which of them begins changes from turn to turn;
before each step there is a barrier. What counts is the median of the slowest rank. Both have their
defaults: buckets of 25 MB, after a first one of 1 MB. The code is what the chapter teaches.

Prints a table and exits with 1 where OwnDDP takes more than 1.05 of the time of PyTorch's.
"""

import os
import statistics
import sys

from ranklab import Ranks

RANKS = (2, 4)
MODELS = {"mlp": 1200, "resnet9": 150, "transformer": 600}  # and how many steps of each wrapper
BOUND = 1.05


def on_ranks(function):
    function.__module__ = "__main__"
    return function


@on_ranks
def prepare():
    """Define what makes a model and its inputs."""
    global models
    from torch import nn

    from ranklab.taught.training import MLP

    def convolution(n_in, n_out):
        layer = nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(n_out), nn.ReLU())

    class Residual(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.f = nn.Sequential(convolution(n, n), convolution(n, n))

        def forward(self, x):
            return x + self.f(x)

    def mlp():
        return MLP([1024, 256, 256, 256, 32]), torch.randn(64 // world_size, 1024)  # noqa: F821

    def resnet9(n=16):
        parts = [convolution(3, n), convolution(n, 2 * n), nn.MaxPool2d(2), Residual(2 * n)]
        parts += [convolution(2 * n, 4 * n), nn.MaxPool2d(2)]
        parts += [convolution(4 * n, 8 * n), nn.MaxPool2d(2), Residual(8 * n)]
        parts += [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8 * n, 10)]
        return nn.Sequential(*parts), torch.randn(8, 3, 32, 32)  # noqa: F821

    def transformer():
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        return model, torch.randn(4, 32, 128)  # noqa: F821

    models = {"mlp": mlp, "resnet9": resnet9, "transformer": transformer}


@on_ranks
def measure(which, repeats):
    """Return {wrapper: [seconds of a step]} of this rank."""
    import time

    from torch.nn.parallel import DistributedDataParallel

    from ranklab.taught.own_ddp import OwnDDP

    def step_of(wrapper):
        torch.manual_seed(0)  # noqa: F821
        model, x = models[which]()
        replica = wrapper(model)
        optimizer = torch.optim.SGD(replica.parameters(), lr=0.01)  # noqa: F821

        def step():
            optimizer.zero_grad()
            replica(x).square().mean().backward()
            optimizer.step()

        return step

    steps = {"PyTorch's": step_of(DistributedDataParallel), "own": step_of(OwnDDP)}
    seconds = {name: [] for name in steps}
    for repeat in range(repeats + 5):
        for name in sorted(steps, reverse=repeat % 2 == 1):
            dist.barrier()  # noqa: F821
            began = time.perf_counter()
            steps[name]()
            if repeat >= 5:  # the first ones warm up
                seconds[name].append(time.perf_counter() - began)
    return seconds


def slowest_median(of_ranks, name):
    return max(statistics.median(seconds[name]) for seconds in of_ranks)


def main(repeats=None):
    """Measure, print the table; return 1 if a ratio is above its bound, else 0."""
    print(f"{os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")
    held, lines = [], []
    for n in RANKS:
        with Ranks(n, backend="gloo", device="cpu", timeout=60) as ranks:
            ranks.run(prepare)
            for which, usual in MODELS.items():
                of_ranks = ranks.run(measure, which, repeats or usual)
                own, pytorchs = (slowest_median(of_ranks, name) for name in ("own", "PyTorch's"))
                held.append(own / pytorchs <= BOUND)
                lines.append(
                    f"{n:5} {which:>12} {1e3 * pytorchs:12.2f} {1e3 * own:8.2f} "
                    f"{own / pytorchs:7.3f}  {BOUND:.2f} {'holds' if held[-1] else 'FAILS'}"
                )
    print(f"\n{'ranks':>5} {'model':>12} {'PyTorch, ms':>12} {'own, ms':>8} {'ratio':>7}  bound")
    print("\n".join(lines))
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
