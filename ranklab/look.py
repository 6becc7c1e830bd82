"""The book's look in a notebook: figures as SVG, with the colors and sizes of `ranklab.plots`."""

import sys


def apply_in_notebook():
    """Set up the figures of the running notebook kernel; outside of one, do nothing.

    The setting goes through matplotlib's inline backend, whichever of the two is
    imported first, so that a reader can still change any of it in a cell.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return
    import matplotlib
    from matplotlib_inline.config import InlineBackend

    from ranklab.plots import STYLE

    matplotlib.rcParams.update(STYLE)
    inline = InlineBackend.instance(parent=shell)
    inline.rc = STYLE
    inline.figure_formats = {"svg"}
