"""Chapter 13's framework beside PyTorch and beside NumPy's BLAS, on one thread.

    python benchmarks/own_framework.py [REPEATS]

One run, float32; what is compared takes turns. Time is what the processor worked, and the fastest
counts, for whatever else the machine does can only make one slower. A training step is that of
ResNet-9 with Adam and 128 images. BLAS is what NumPy needs for the products alone, of arrays that
lie ready: one for the value and one for each gradient. Images lie in memory as a convolution before
leaves them.

Averaging the gradients of ResNet-9 is measured on 4 ranks of MPI, which sleep where they wait: with
one buffer, beside a message for each tensor.

Prints a table and exits with 1 where a ratio is above its bound.
"""

import os
import statistics
import subprocess
import sys
import time

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from ranklab.framework.torch_twin import torch_kit
from ranklab.framework.world import World
from ranklab.start.arguments import mpiexec
from ranklab.taught import mpi_ddp
from ranklab.taught.own_framework import Adam, ResNet9, SoftmaxLoss, Tensor, conv
from ranklab.upstream.mpich import RESTING

STEP, PRODUCTS, EXCHANGE = 2.0, 1.5, 0.5  # bounds
# Batch, channels, side, filters of convolutions 3 x 3 with padding.
CONVOLUTIONS = [(64, 32, 16, 64), (32, 64, 16, 64), (128, 128, 4, 128)]
MATRICES = [(1024, 512, 512), (256, 1024, 1024)]


def random(*shapes):
    draw = np.random.default_rng(0)
    return [draw.random(shape, "float32") for shape in shapes]


def steps():
    """A training step of ours, and of PyTorch's."""
    images, labels = *random((128, 3, 32, 32)), np.arange(128) % 10
    model, twin = ResNet9(), torch_kit().ResNet9()
    ours = Adam(model.parameters(), weight_decay=0.001)
    theirs = torch.optim.Adam(twin.parameters(), weight_decay=0.001)
    loss_of, X, y = torch.nn.functional.cross_entropy, torch.tensor(images), torch.tensor(labels)

    def own_step():
        ours.reset_grad()
        SoftmaxLoss()(model(Tensor(images)), Tensor(labels)).backward()
        ours.step()

    def torchs_step():
        theirs.zero_grad()
        loss_of(twin(X), y).backward()
        theirs.step()

    return own_step, torchs_step


def operation(function, inputs, products):
    """The value and all gradients of an operation; and the products behind these, alone."""
    tensors = [Tensor(array, requires_grad=True) for array in inputs]

    def own():
        value = function(*tensors)
        grad = np.ones_like(value.array)
        for rule in value.rules:
            rule(grad)

    pairs = [random(left, right) for left, right in products]
    return own, lambda: [left @ right for left, right in pairs]


def convolution(n, c, side, out):
    places, window = n * side * side, 9 * c
    inputs = random((n, side, side, c), (out, c, 3, 3), out)
    inputs[0] = inputs[0].transpose(0, 3, 1, 2)
    products = [
        ((places, window), (window, out)),
        ((places, out), (out, window)),
        ((out, places), (places, window)),
    ]
    return operation(lambda x, w, b: x.apply(conv, w, b, padding=1), inputs, products)


def matmul(m, k, n):
    inputs = random((m, k), (k, n))
    products = [((m, k), (k, n)), ((m, n), (n, k)), ((k, m), (m, n))]
    return operation(lambda a, b: a @ b, inputs, products)


def fastest(functions, repeats):
    """The fastest of each in milliseconds; they take turns."""
    times = [[] for _ in functions]
    for _ in range(repeats):
        for function, of_function in zip(functions, times):
            began = time.process_time()
            function()
            of_function.append(1e3 * (time.process_time() - began))
    return [min(of_function) for of_function in times]


def together(pairs):
    """Several operations one after the other, and their products."""
    ours, products = zip(*pairs)
    return [lambda each=each: [function() for function in each] for each in (ours, products)]


def exchange():
    """On a rank of MPI: print what averaging takes, with one buffer and with a message for each."""
    mpi_ddp.init()
    ways = []
    for how in (mpi_ddp.Flat, mpi_ddp.EachTensor):
        parameters = ResNet9().parameters()
        ways.append(how(parameters).average)
        for p in parameters:
            p.grad = np.zeros_like(p.array) if p.into is None else p.into
    comm, times = World.talk.comm, [[], []]
    for _ in range(40):  # they take turns
        for way, of_way in zip(ways, times):
            comm.Barrier()
            began = time.perf_counter()
            way()
            of_way.append(1e3 * (time.perf_counter() - began))
    of_ranks = comm.gather([statistics.median(of_way) for of_way in times])
    if comm.rank == 0:
        print(*map(max, zip(*of_ranks)))


def on_ranks():
    """What `exchange` prints, of 4 ranks."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", RESTING: "1"}
    command = [mpiexec(), "-n", "4", sys.executable, __file__, "exchange"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return map(float, done.stdout.split())


def rows():
    """What is compared: name, ours and the other, which bound, how many repeats."""
    yield "ResNet-9's step : PyTorch's", steps(), STEP, 60
    yield "matmul : BLAS", together([matmul(*sizes) for sizes in MATRICES]), PRODUCTS, 20
    convolutions = together([convolution(*sizes) for sizes in CONVOLUTIONS])
    yield "convolutions : BLAS", convolutions, PRODUCTS, 20


def main(repeats=None):
    """Measure, print the table; return 1 if a ratio is above its bound, else 0."""
    torch.set_num_threads(1)
    print(f"{os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")
    print(f"{'':28} {'ours, ms':>9} {'other, ms':>9} {'ratio':>6}  bound")
    held = []
    with threadpool_limits(1):
        for what, functions, bound, usual in rows():
            ours, other = fastest(functions, repeats or usual)
            held.append(ours / other <= bound)
            verdict = "holds" if held[-1] else "FAILS"
            print(f"{what:28} {ours:9.2f} {other:9.2f} {ours / other:6.2f}  {bound} {verdict}")
    flat, each = on_ranks()
    held.append(flat / each <= EXCHANGE)
    verdict = "holds" if held[-1] else "FAILS"
    what = "one buffer : 36 messages"
    print(f"{what:28} {flat:9.2f} {each:9.2f} {flat / each:6.2f}  {EXCHANGE} {verdict}")
    return int(not all(held))


if __name__ == "__main__":
    if sys.argv[1:] == ["exchange"]:
        sys.exit(exchange())
    sys.exit(main(*map(int, sys.argv[1:])))
