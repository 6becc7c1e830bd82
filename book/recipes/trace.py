"""What does a step send, and when? Trace it on two ranks."""

from ranklab import Ranks, save, traffic


def my_step():  # yours: import it from your own module
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from ranklab import trace

    model = DistributedDataParallel(torch.nn.Linear(1000, 1000))
    x = torch.ones(8, 1000)
    for _ in range(2):  # DDP makes its final buckets after the first step
        model(x).sum().backward()
    with trace() as t:
        model(x).sum().backward()
    return t


if __name__ == "__main__":
    with Ranks(2, backend="gloo", device="cpu") as ranks:
        traces = ranks.run(my_step)
    print(traffic(traces))
    save(traces, "step.json")  # open it in https://ui.perfetto.dev
    print("in a notebook, timeline(traces) draws it")
