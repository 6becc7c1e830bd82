"""What a process's card did while a block ran: a GPU through NVML, the CPU through psutil.

    with sampled() as s:  # this process's GPU where there is one, else the CPU
        with s.phase("forward"):
            loss = model(x)
    s.time_s, s["utilization_percent"], s.notes
    utilization_plot({"training": s})
    save({"training": s}, "training.json")

On ranks, each samples its own, and the plot has a row for each card:

    %%px
    with sampled(device=device) as s:
        train()

    utilization_plot(ranks["s"])  # in the kernel

`sampled(device="all")` samples all cards of a host in one process. A script that is made of a
notebook leaves out what needs this where ranklab is missing.
"""

import importlib

# Loaded at first use: ranks only sample, and do not need what draws.
_HOME = {
    "Recording": "ranklab.gpu.samples",
    "load": "ranklab.gpu.samples",
    "recorded": "ranklab.gpu.samples",
    "sampled": "ranklab.gpu.sampler",
    "save": "ranklab.gpu.samples",
    "utilization_plot": "ranklab.gpu.plot",
}

__all__ = ["Recording", "load", "recorded", "sampled", "save", "utilization_plot"]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'ranklab.gpu' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
