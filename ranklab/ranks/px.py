"""ipyparallel's `%%px`, with its own options, and with errors that a reader can use.

Three things differ. A failure is told once, with the ranks that it happened to, instead of once for
each rank. An interrupted cell is a failed cell. And no progress bar ends up in the page.

So `--progress-after`, `--verbose` and `--no-verbose` are accepted and change nothing; `--local` is
refused.
"""

import ast
import functools
from contextlib import nullcontext

from ipyparallel.client.magics import ParallelMagics
from IPython.core.magic_arguments import parse_argstring

from ranklab.doctor.places import LastCell
from ranklab.errors import ArgumentError, RankError
from ranklab.ranks import outcome
from ranklab.upstream import ipyparallel as replies


class RankMagics(ParallelMagics):
    """`%px` and `%%px` on the ranks of one `Ranks`.

    Without it: no chapter from 5 on runs.
    """

    def __init__(self, shell, ranks):
        self.ranks = ranks
        super().__init__(shell, ranks.view)

    @functools.wraps(ParallelMagics.cell_px)  # with it come the options that it knows
    def cell_px(self, line="", cell=None):
        if parse_argstring(self.cell_px, line).local:
            raise ArgumentError(
                "%%px --local would run the cell in this notebook, too, which is no rank. Put what "
                "both need into two cells, one with %%px and one without."
            )
        return super().cell_px(line, cell)

    def parallel_execute(self, cell, block=None, groupby="type", save_name=None, **options):
        """Run `cell` on the view's ranks; raise RankError where it fails."""
        self.ranks.check_alive(self.view and self.view.targets)
        is_cell = "stream_output" in options  # ipyparallel passes it for %%px alone
        # Line 1 of such a cell is `%%px`. IPython drops empty lines ahead.
        first_line = 2 + len(cell) - len(cell.lstrip("\n")) if is_cell else 1
        self.ranks.cell = LastCell(cell, first_line)
        result = self.view.execute(cell, silent=False, block=False)
        replies.call_it(result, "%px")
        self.ranks.earlier_result = self.ranks.last_result
        self.last_result = self.ranks.last_result = result
        if save_name:
            self.shell.user_ns[save_name] = result
        self.ranks.unwatched = None
        if not (self.view.block if block is None else block):
            self.ranks.unwatched = result
            return result
        stream = options.get("stream_output")
        stream = self.stream_output if stream is None else stream
        signal = options.get("signal_on_interrupt")
        signal = self.signal_on_interrupt if signal is None else signal
        with replies.streamed(result) if stream else nullcontext():
            try:
                outcome.values(self.ranks, result, first_line, signal=signal)
            finally:
                replies.wait_for_output(result)
                if not stream:
                    replies.display(result, groupby)
                if not save_name:
                    replies.forget(self.ranks, result)


def say_what_is_missing(shell):
    """Before there are ranks, let `%%px` say so, where a stock notebook has no such magic."""

    def px(line, cell=""):
        raise RankError("There are no ranks yet: first run the cell with `ranks = Ranks(4)`.")

    if shell and "px" not in shell.magics_manager.magics["cell"]:
        shell.register_magic_function(px, "line_cell", "px")
        shell.input_transformers_cleanup.append(_first_of_all)


def _first_of_all(lines):
    """Refuse a cell with something above its `%%px`, of which IPython would say too little."""
    first, *others = [line for line in lines if line.strip()] or [""]
    if first.startswith("%%") or not any(line.startswith("%%px") for line in others):
        return lines
    try:
        ast.parse("".join(lines))  # it is Python: the line is part of a text
    except SyntaxError:
        what = "the comment" if first.lstrip().startswith("#") else "what stands above it"
        raise ArgumentError(
            f"%%px must be the first line of its cell: move {what} below it, or into another cell."
        ) from None
    return lines
