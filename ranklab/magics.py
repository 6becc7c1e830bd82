"""ipyparallel's `%%px`, with its own options, and with errors that a reader can use.

Three things differ. A failure is told once, with the ranks that it happened to, instead of once for
each rank. An interrupted cell is a failed cell. And no progress bar ends up in the page.
"""

from contextlib import nullcontext

from ipyparallel.client.magics import ParallelMagics

from . import answers


class RankMagics(ParallelMagics):
    """`%px` and `%%px` on the ranks of one `Ranks`."""

    def __init__(self, shell, ranks):
        self.ranks = ranks
        super().__init__(shell, ranks.view)

    def parallel_execute(self, cell, block=None, groupby="type", save_name=None, **options):
        """Run `cell` on the view's ranks; raise RankError where it fails."""
        self.ranks.check_alive(self.view and self.view.targets)
        # Only the cell magic passes options. Its line 1 is `%%px`. IPython drops empty lines ahead.
        first_line = 2 + len(cell) - len(cell.lstrip("\n")) if options else 1
        result = self.view.execute(cell, silent=False, block=False)
        result._fname = "%px"
        self.last_result = result
        if save_name:
            self.shell.user_ns[save_name] = result
        if not (self.view.block if block is None else block):
            return result
        stream = options.get("stream_output")
        stream = self.stream_output if stream is None else stream
        with _streamed(result) if stream else nullcontext():
            try:
                answers.values(self.ranks, result, first_line)
            finally:
                result.wait_for_output(1)  # the end of the output may come after the result
                if not stream:
                    answers.display(result, groupby)


def _streamed(result):
    """Show output as it comes, but leave the errors to the one message at the end."""
    show = result._iopub_streaming_output_callback

    def show_output(rank, future, message):
        if message["header"]["msg_type"] != "error":
            show(rank, future, message)

    result._iopub_streaming_output_callback = show_output
    return result.stream_output()
