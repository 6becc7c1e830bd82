"""The lab of *Many Ranks, One Model*: real processes as the ranks of a notebook.

    from ranklab import Ranks, result
    from ranklab import messages, save, timeline, trace, traffic

Importing it in a notebook also gives figures the book's look (`ranklab.look`).
"""

import importlib

from ranklab import look

# Loaded at first use, so that importing one name does not import torch and ipyparallel for all.
_HOME = {
    "Ranks": "ranklab.ranks",
    "messages": "ranklab.traces.space_time",
    "result": "ranklab.results",
    "save": "ranklab.traces.perfetto",
    "timeline": "ranklab.traces.timeline",
    "trace": "ranklab.traces.recording",
    "traffic": "ranklab.traces.traffic",
}

__all__ = ["Ranks", "messages", "result", "save", "timeline", "trace", "traffic"]

look.apply_in_notebook()


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'ranklab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
