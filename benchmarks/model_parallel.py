"""The cut models of chapters 17 and 18 beside PyTorch's: the time of a training step.

    python benchmarks/model_parallel.py [PART] [REPEATS]

One run; Gloo, one thread a rank, chapter 16's GPT. Ours and PyTorch's take turns, and which of them
begins changes from turn to turn; before each step there is a barrier. What counts is the median of
the slowest rank. The code is what the chapters teach.

pipeline: chapter 17's schedules beside the same ones of `torch.distributed.pipelining`, on 2 and on
4 ranks: forward, backward and the optimizer's step. The losses of all micro-batches must agree.

tensor: chapter 18's split GPT beside the same split through DTensor's `parallelize_module`, a small
and a wider one, on 2 and on 4 ranks. Query, key, value and the first layer of the MLP by columns,
the other two by rows, embedding and cross-entropy over the vocabulary. Their losses must agree.

Prints a table for each part and exits with 1 where ours takes more than 1.1 of the time of
PyTorch's.
"""

import os
import statistics
import sys

from ranklab import Ranks

RANKS = (2, 4)
BOUND = 1.1


def on_ranks(function):
    function.__module__ = "__main__"
    return function


@on_ranks
def take_turns(steps, repeats):
    """{name: [seconds of a step]} of this rank. steps: {name: function}."""
    import time

    seconds = {name: [] for name in steps}
    for repeat in range(repeats + 5):
        for name in sorted(steps, reverse=repeat % 2 == 1):
            dist.barrier()  # noqa: F821
            began = time.perf_counter()
            steps[name]()
            if repeat >= 5:  # the first ones warm up
                seconds[name].append(time.perf_counter() - began)
    return seconds


# pipeline --------------------------------------------------------------------------------------


@on_ranks
def pipeline_seconds(which, repeats):
    """Seconds of the steps of one schedule, ours and PyTorch's, on this rank."""
    from torch import nn
    from torch.distributed import pipelining

    from ranklab.taught import pipeline
    from ranklab.taught.layers import Shape, encode, gpt, language_loss, prose, windows

    chunks, micro_batches = (2 if which == "interleaved" else 1), 2 * world_size  # noqa: F821
    shape = Shape(context=64, width=64, heads=4, blocks=2 * world_size - 2)  # noqa: F821
    inputs, targets = windows(encode(prose()), 4 * micro_batches, shape.context, seed=0)
    first, last = rank == 0, rank == world_size - 1  # noqa: F821

    def pieces():
        each = 2 // chunks  # layers
        starts = [(chunk * world_size + rank) * each for chunk in range(chunks)]  # noqa: F821
        return nn.ModuleList(gpt(shape, start, start + each) for start in starts)

    def with_optimizer(model, forward_backward):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # noqa: F821

        def step():
            optimizer.zero_grad()
            losses = forward_backward()
            optimizer.step()
            return losses

        return step

    def own():
        more = (chunks,) * (chunks > 1)
        schedule = getattr(pipeline, which)(world_size, micro_batches, *more)  # noqa: F821
        program = pipeline.with_messages(schedule)[rank]  # noqa: F821
        model = pieces()
        like = torch.empty(4, shape.context, shape.width)  # noqa: F821
        worker = pipeline.Worker(model, like, language_loss)
        parts = inputs.split(4), targets.split(4)
        return with_optimizer(model, lambda: pipeline.run(program, worker, *parts))

    def pytorchs():
        kind = {
            "gpipe": pipelining.ScheduleGPipe,
            "one_f_one_b": pipelining.Schedule1F1B,
            "interleaved": pipelining.ScheduleInterleaved1F1B,
        }[which]
        model = pieces()
        stages = [
            pipelining.PipelineStage(
                piece,
                chunk * world_size + rank,  # noqa: F821
                chunks * world_size,  # noqa: F821
                device,  # noqa: F821
            )
            for chunk, piece in enumerate(model)
        ]
        stages = stages if chunks > 1 else stages[0]
        schedule = kind(stages, n_microbatches=micro_batches, loss_fn=language_loss)

        def forward_backward():
            losses = []
            schedule.step(
                *[inputs] * first, **({"target": targets, "losses": losses} if last else {})
            )
            return [loss.item() for loss in losses]

        return with_optimizer(model, forward_backward)

    steps = {"own": own(), "PyTorch's": pytorchs()}
    losses = [step() for step in steps.values()]  # of the micro-batches, on the last rank
    assert [len(of_way) for of_way in losses] == [micro_batches * last] * 2, losses
    assert all(abs(a - b) < 1e-4 for a, b in zip(*losses)), losses
    return take_turns(steps, repeats)


def pipeline(repeats):
    """Rows of the table: (ranks, what, {wrapper: seconds})."""
    for n in RANKS:
        with Ranks(n, backend="gloo", device="cpu", timeout=60) as ranks:
            ranks["take_turns"] = take_turns
            for which in ("gpipe", "one_f_one_b", "interleaved"):
                yield n, which, slowest(ranks.run(pipeline_seconds, which, repeats or 60))


# tensor ----------------------------------------------------------------------------------------

SHAPES = {  # and how many steps of each
    "small": ({"width": 64, "heads": 8, "context": 32, "blocks": 2}, 60),
    "wide": ({"width": 256, "heads": 8, "context": 64, "blocks": 4}, 20),
}


@on_ranks
def plan_of(blocks):
    """The split of chapter 18 as a plan for `parallelize_module`."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
    )

    plan = {
        "embed.tokens": RowwiseParallel(input_layouts=Replicate()),
        "head.logits": ColwiseParallel(use_local_output=False),
    }
    for i in range(blocks):
        # Query, key and value get their input once: one all-reduce in backward, and not three.
        plan[f"block{i}.attention"] = PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Replicate()
        )
        for name in ("attention.query", "attention.key", "attention.value", "mlp.up"):
            plan[f"block{i}.{name}"] = ColwiseParallel()
        for name in ("attention.out", "mlp.down"):
            plan[f"block{i}.{name}"] = RowwiseParallel()
    return plan


@on_ranks
def tensor_seconds(sizes, repeats):
    """Seconds of the steps of a split GPT, ours and PyTorch's, on this rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

    from ranklab.taught.layers import Shape, encode, gpt, language_loss, prose, windows
    from ranklab.taught.tensor import split_cross_entropy, tensor_gpt

    shape = Shape(**sizes)
    inputs, targets = windows(encode(prose()[:20_000]), 8, shape.context, seed=0)
    mesh = init_device_mesh("cpu", (world_size,))  # noqa: F821
    split = tensor_gpt(shape)
    dtensors = parallelize_module(gpt(shape), mesh, plan_of(shape.blocks))

    def own():
        loss = split_cross_entropy(split(inputs), targets, shape.vocabulary)
        loss.backward()
        return loss.item()

    def pytorchs():
        with loss_parallel():
            loss = language_loss(dtensors(inputs), targets)
            loss.backward()
        return loss.full_tensor().item()

    def with_optimizer(model, forward_backward):
        # One parameter after the other: DTensors and plain ones do not go into one call.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)  # noqa: F821

        def step():
            optimizer.zero_grad()
            loss = forward_backward()
            optimizer.step()
            return loss

        return step

    steps = {"own": with_optimizer(split, own), "PyTorch's": with_optimizer(dtensors, pytorchs)}
    losses = [step() for step in steps.values()]
    assert abs(losses[0] - losses[1]) < 1e-4, losses
    return take_turns(steps, repeats)


def tensor(repeats):
    """Rows of the table: (ranks, what, {wrapper: seconds})."""
    for n in RANKS:
        with Ranks(n, backend="gloo", device="cpu", timeout=60) as ranks:
            ranks["take_turns"], ranks["plan_of"] = take_turns, plan_of
            for what, (sizes, usual) in SHAPES.items():
                yield n, what, slowest(ranks.run(tensor_seconds, sizes, repeats or usual))


# all of them -----------------------------------------------------------------------------------

PARTS = {"pipeline": pipeline, "tensor": tensor}


def slowest(of_ranks):
    """{name: median seconds of the slowest rank}."""
    return {name: max(statistics.median(s[name]) for s in of_ranks) for name in of_ranks[0]}


def main(part=None, repeats=0):
    """Measure, print the tables; return 1 if a ratio is above the bound, else 0."""
    print(f"{os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")
    held = []
    for name in [part] if part else PARTS:
        lines = []
        for n, what, seconds in PARTS[name](int(repeats)):
            own, pytorchs = seconds["own"], seconds["PyTorch's"]
            held.append(own / pytorchs <= BOUND)
            lines.append(
                f"{n:5} {what:>14} {1e3 * pytorchs:12.2f} {1e3 * own:8.2f} "
                f"{own / pytorchs:7.3f}  {BOUND:.2f} {'holds' if held[-1] else 'FAILS'}"
            )
        print(f"\n{'ranks':>5} {name:>14} {'PyTorch, ms':>12} {'own, ms':>8} {'ratio':>7}  bound")
        print("\n".join(lines))
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
