"""What the processor did while a block ran: NVIDIA's GPUs through NVML, the CPU through psutil.

    with sampled(hz=10) as s:  # the GPU where NVML finds one, else the CPU
        train()
    s.time_s, s["utilization_percent"]
    utilization_plot({"training": s})
    save({"training": s}, "training.json")

A script that is made of a notebook leaves out what needs this where ranklab is missing.
"""

from ranklab.gpu.plot import utilization_plot
from ranklab.gpu.sampler import sampled
from ranklab.gpu.samples import Recording, load, recorded, save

__all__ = ["Recording", "load", "recorded", "sampled", "save", "utilization_plot"]
