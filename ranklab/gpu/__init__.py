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

from ranklab.gpu.plot import utilization_plot
from ranklab.gpu.sampler import sampled
from ranklab.gpu.samples import Recording, load, recorded, save

__all__ = ["Recording", "load", "recorded", "sampled", "save", "utilization_plot"]
