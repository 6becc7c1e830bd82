"""What PyTorch's flight recorder knows of the last collectives: in which order, and how large.

Several collectives in flight at once are begun by several threads of the backend's, in an order
that the profiler cannot tell. The flight recorder, always on, has them in the order of the calls.
It keeps the last ones only (2000, or TORCH_FR_BUFFER_SIZE, which is 64 on the lab's ranks), and
2000 take 0.1 s to read: it is asked only where there is a doubt.
"""

from math import prod

from ranklab.upstream import torch as upstream


def entries():
    """Return (operation, bytes or None) for each, in order; [] if there are none."""
    return [(one["name"], _nbytes(one)) for one in upstream.recorded_collectives()]


def _nbytes(entry):
    import torch

    sizes, kinds = entry["sizes"], entry["dtypes"]
    if not sizes or len(set(kinds)) > 1:
        return None
    each = getattr(torch, upstream.type_name(kinds[0]), None)
    return each and each.itemsize * sum(map(prod, sizes))


def parts_of(usual, entries):
    """Return {id of a call: [(operation, bytes)]} for the calls of a trace that has just ended.

    usual: [(call, operations that the backend makes of it)], in the order of the calls. The last
    entries are those of the last calls. Calls of which no entry is kept are left out.
    """
    found, left = {}, list(entries)
    for call, operations in reversed(usual):
        many = len(operations)
        parts = left[-many:]
        if [operation for operation, _ in parts] != operations:
            break
        found[id(call)] = parts
        del left[-many:]
    return found
