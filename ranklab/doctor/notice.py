"""What stands below a cell while its ranks wait, and is replaced as they go on, or fail."""

import sys

from IPython import get_ipython
from IPython.display import display

OTHERS_RUN = "Some ranks failed; others still run. Interrupt to end it."
NOT_BEGUN = "This cell has not begun: an earlier one still runs."
WENT_ON = "The ranks waited for a while, and went on."


class Notice:
    """Text below the cell that runs. Outside of a kernel, what comes first goes to stderr."""

    def __init__(self):
        self._shown = self._display = None

    def say(self, headline, diagnosis):
        """Show a sentence, and where the ranks are."""
        if not any(report.place for report in diagnosis.reports.values()):
            return  # it is none of the reader's lines that they are busy with
        text = f"{headline}\n\n{diagnosis}"
        if self._shown is not None:
            self._put(text)
        elif hasattr(get_ipython(), "kernel"):
            self._display = display(_plain(text), raw=True, display_id=True)
        else:
            print(text, file=sys.stderr)
        self._shown = text

    def went_on(self):
        """Say that what stands below the cell is over."""
        if self._shown is not None:
            self._put(WENT_ON)

    def clear(self):
        """Clear what stands below the cell: there is an error, which says it all."""
        if self._shown is not None:
            self._put("")

    def _put(self, text):
        if self._display:
            self._display.update(_plain(text), raw=True)


def waiting(diagnosis, timeout):
    """Say that ranks wait, and what the reader can do. timeout: seconds until they give up."""
    if diagnosis.stuck:
        what = "No progress."
    elif len(diagnosis.waiting) == len(diagnosis.reports):
        what = "All are in a communication that takes long; it may just be large."
    else:
        what = "Ranks wait for others that still run."
    return (
        f"{what} A rank that waits gives up after {timeout:g} s; to end this at "
        "once, press the stop button (interrupt the kernel)."
    )


def _plain(text):
    return {"text/plain": text}
