"""The page of ranklab's own names: their signatures and docstrings, as MyST."""

import importlib
import inspect
import re
import textwrap

from bookmaker.errors import BookError
from bookmaker.folders import Folders

PLACE = "<!-- The names of ranklab: made by `make book`. -->"
# Where a reader imports it from -> what; of a class also what one calls.
NAMES = {
    "ranklab": {
        "Ranks": ["run", "where", "reset", "restart", "close"],
        "result": [],
        "trace": [],
        "timeline": [],
        "messages": [],
        "traffic": [],
        "save": [],
    },
    "ranklab.gpu": {
        "sampled": [],
        "utilization_plot": [],
        "Recording": ["phase", "mean"],
        "save": [],
        "load": [],
        "recorded": [],
    },
    "ranklab.playable": {"playable": [], "line_chart": [], "bar_chart": [], "box_chart": []},
    "ranklab.plots": {"drawing": [], "holdings": [], "timetables": []},
    "ranklab.exercises": {"check": []},
}


def listed(text: str, folders: Folders) -> str:
    """The page's text with all names in the place that it has for them.

    Raises BookError if it has none.
    """
    if PLACE not in text:
        raise BookError(f"book/api.md has no line `{PLACE}`, where the names are to stand.")
    return text.replace(PLACE, "\n\n".join(_module(*each) for each in NAMES.items()))


def _module(module: str, names: dict[str, list[str]]) -> str:
    found, parts = importlib.import_module(module), [f"## From `{module}`"]
    for name, methods in names.items():
        thing = getattr(found, name)
        parts.append(_entry("###", name, thing))
        parts += [_entry("####", f"{name}.{one}", getattr(thing, one)) for one in methods]
    return "\n\n".join(parts)


def _entry(level: str, name: str, thing) -> str:
    signature = inspect.signature(thing)
    call = f"{name}{signature}".replace("(self, ", "(").replace("(self)", "()")
    said = _as_myst(inspect.getdoc(thing), set(signature.parameters))
    return f"{level} {name}\n\n```python\n{textwrap.fill(call, 78)}\n```\n\n{said}"


def _as_myst(doc: str, parameters: set[str]) -> str:
    """A docstring's paragraphs; code where indented, a list where parameters begin."""
    return "\n\n".join(_paragraph(text, parameters) for text in re.split(r"\n{2,}", doc))


def _paragraph(text: str, parameters: set[str]) -> str:
    lines = text.splitlines()
    if all(line.startswith("    ") for line in lines):
        return f"```python\n{textwrap.dedent(text)}\n```"
    items = []
    for line in lines:
        names = line.partition(": ")[0].replace("*", "").split(", ")
        if not items or parameters.issuperset(names):
            items.append(line)
        else:
            items[-1] += f" {line.strip()}"
    first = items[0].partition(": ")[0].replace("*", "").split(", ")
    if not parameters.issuperset(first):
        return _plain(" ".join(items))
    return "\n".join(f"- {_plain(item)}" for item in items)


def _plain(text: str) -> str:
    """What means something to MyST outside of code, said as it is."""
    parts = re.split(r"(``.*?``|`[^`]*`)", text)
    mark = re.compile(r"([<>$\[\]{}_]|(?<!\*)\*(?!\*))")
    return "".join(p if p[:1] == "`" else mark.sub(r"\\\1", p) for p in parts)
