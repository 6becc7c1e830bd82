"""Where a rank computes, and through what it talks: one answer for notebooks and scripts.

A script takes the source of `choose_device` along, so it needs nothing but `os`.
"""

import os


def choose_device(local_rank, local_size, gpus, device=None, backend=None):
    """Return the name of a rank's device, and the backend that fits.

    The rank is one of local_size on its host, where torch can use so many gpus. Asked for no
    device, it is RANKLAB_DEVICE; else a GPU, where there is one, and NCCL, if each rank has its
    own. What cannot be is a ValueError, in one sentence.
    """
    wanted = device or os.environ.get("RANKLAB_DEVICE") or ("cuda" if gpus else "cpu")
    said = f"device={device!r}" if device else f"RANKLAB_DEVICE={wanted}"
    name, _, index = wanted.partition(":")
    if name not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ValueError(f"{said} is not known. There are: 'cpu' and 'cuda'.")
    if name == "cpu":
        return "cpu", backend or "gloo"
    if int(index or 0) >= gpus:
        found = f"{gpus} GPU(s) here, counted from 0" if gpus else "no GPU here: take 'cpu'"
        raise ValueError(f"{said}: torch finds {found}.")
    alone = local_size == 1 or (gpus >= local_size and not index)
    return f"cuda:{index or local_rank % gpus}", backend or ("nccl" if alone else "gloo")
