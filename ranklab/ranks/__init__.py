"""Engines as ranks: start, run, pull, push, reset, restart, close, and `%%px`.

- ranks.py: `Ranks`, what a reader has in hand
- current.py: one `Ranks` at a time in a kernel, and what the next one takes over
- world_order.py: what is checked where the ranks are those of an MPI world
- process_group.py: what runs on the ranks to make a process group of them
- variables.py: theirs, pulled and pushed
- outcome.py: what came of a request to the ranks, their values or one error
- px.py: ipyparallel's `%%px`, with errors that a reader can use

What starts the processes is in ranklab/start, what finds out where they are in ranklab/doctor.
"""

from ranklab.ranks.ranks import Ranks

__all__ = ["Ranks"]
