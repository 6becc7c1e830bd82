"""`result()`: one place for every number that the text of a chapter quotes."""

from IPython.display import display

# What a result may be: these print the same in the page, the notebook and the script.
SIMPLE = (bool, int, float, str)
HIDDEN = "application/papermill.record/"


def result(name, value, varies=False):
    """Show `name = value` below the cell, and let the chapter's sentences quote it.

    Floats are shown, and quoted, with four digits; all of them are recorded.

    In the manuscript, ``{glue:text}`name` `` stands for the value, and
    ``{glue:text}`name:.2f` `` for the value in that format.

    name: a Python name, unique in the chapter.
    value: a bool, int, float or str, or a list or tuple of those (NumPy's and torch's
        numbers are converted).
    varies: whether the value depends on the machine or the run (a time, say). All other
        results must be the same in the page, the notebook and the script.

    Raises TypeError for any other value, ValueError for a name that is not one.
    """
    if not str(name).isidentifier():
        raise ValueError(f"result: {name!r} cannot be quoted; use a name such as 'bytes_sent'.")
    value = _simple(name, value)
    record = {"name": name, "value": value, "varies": varies}
    print(f"{name} = {_text(value)}")
    # The record for the text is not shown: a type that no notebook displays, under the
    # key where myst-nb looks for it.
    metadata = {"scrapbook": {"name": name, "mime_prefix": HIDDEN}, "ranklab": record}
    quoted = repr(value) if isinstance(value, str) else _text(value)  # myst-nb takes off the quotes
    display({HIDDEN + "text/plain": quoted}, metadata=metadata, raw=True)


def _text(value):
    """Write a value as a reader wants to see it."""
    if isinstance(value, list):
        return f"[{', '.join(repr(v) if isinstance(v, str) else _text(v) for v in value)}]"
    if isinstance(value, float):
        short = f"{value:.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"
        return repr(value) if float(short) == value else short
    return str(value)


def _simple(name, value):
    if isinstance(value, (list, tuple)):
        return [_simple(name, item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if not isinstance(value, SIMPLE):
        kind = type(value).__name__
        raise TypeError(f"result: {name} is a {kind}; give a number, a string, or a list of those.")
    return value
