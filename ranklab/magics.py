"""ipyparallel's `%%px`, with its own options, and with errors that a reader can use.

Three things differ. A failure is told once, by rank, instead of once for each rank. An interrupted
cell is a failed cell. And no progress bars end up in the page.
"""

from contextlib import nullcontext

from ipyparallel.client.magics import ParallelMagics

from .failure import RankError, named


class RankMagics(ParallelMagics):
    """`%px` and `%%px` on all the ranks of one `Ranks`."""

    def __init__(self, shell, ranks):
        self.ranks = ranks
        super().__init__(shell, ranks.view)

    def parallel_execute(self, cell, block=None, groupby="type", save_name=None, **options):
        """Run `cell` on the view's ranks; raise RankError where it fails."""
        # Only the cell magic passes options. Its first line is `%%px`, the code begins on the second.
        first_line = 2 if options else 1
        self.ranks.check_alive(self.view.targets)
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
                self.ranks.collect(result, first_line)
            except KeyboardInterrupt:
                self._interrupt(result, first_line, options.get("signal_on_interrupt"))
            finally:
                result.wait_for_output(1)  # the end of the output may come after the result
                if not stream:
                    result.display_outputs(groupby)

    def _interrupt(self, result, first_line, signal):
        """Pass Ctrl-C on to the ranks, and fail."""
        signal = self.signal_on_interrupt if signal is None else signal
        ranks = self.ranks
        ranks.client.send_signal(signal, targets=self.view.targets, block=False)
        if result.wait(2):
            ranks.collect(result, first_line)
            raise KeyboardInterrupt
        stuck = [rank for rank, part in ranks.parts(result) if not part.ready()]
        raise RankError(
            f"Interrupted, but {named(stuck)} did not hear it: a rank that waits for a message "
            f"listens to nothing else, for up to {ranks.timeout:g} s. {ranks.name}.reset() waits for "
            f"it and keeps the variables; {ranks.name}.restart() starts anew."
        ) from None


def _streamed(result):
    """Show output as it comes, but leave the errors to the one message at the end."""
    show = result._iopub_streaming_output_callback

    def show_output(rank, future, message):
        if message["header"]["msg_type"] != "error":
            show(rank, future, message)

    result._iopub_streaming_output_callback = show_output
    return result.stream_output()
