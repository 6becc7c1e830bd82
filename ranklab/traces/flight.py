"""What PyTorch's flight recorder knows of the last collectives: in which order, and how large.

Several collectives in flight at once are begun by several threads of the backend's, in an order
that the profiler cannot tell. The flight recorder, always on, has them in the order of the calls.
It keeps the last ones only (2000, or TORCH_FR_BUFFER_SIZE, which is 64 on the lab's ranks), and
2000 take 0.1 s to read: it is asked only where there is a doubt.
"""

import json
from math import prod

SIZES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Short": 2, "Half": 2, "BFloat16": 2}
SIZES |= {"Char": 1, "Byte": 1, "Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16}


def entries():
    """Return (operation, bytes or None) for each, in order; [] if there are none."""
    try:
        from torch._C._distributed_c10d import _dump_fr_trace_json
    except ImportError:  # another version of torch
        return []
    found = json.loads(_dump_fr_trace_json(includeCollectives=True, onlyActive=False))
    return [
        (entry["profiling_name"].partition(":")[2], _nbytes(entry))
        for entry in found.get("entries", [])
        if not entry["is_p2p"]
    ]


def _nbytes(entry):
    sizes, kinds = entry["input_sizes"], entry["input_dtypes"]
    if sizes and len(set(kinds)) == 1 and kinds[0] in SIZES:
        return SIZES[kinds[0]] * sum(map(prod, sizes))
    return None


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
