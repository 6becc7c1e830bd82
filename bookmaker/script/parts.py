"""The parts of `template.py`, of which a script's preamble is made, and the names in them."""

import ast
import inspect
import re
from pathlib import Path

from bookmaker.script.read.scopes import names_in
from ranklab.start.devices import choose_device, send_over_host

_TEMPLATE = Path(__file__).with_name("template.py").read_text()
FIXED = frozenset({"rank", "world_size", "device", "torch", "dist", "__file__"})


def _parts() -> dict[str, str]:
    pieces = re.split(r"^#: (\w+)\n", _TEMPLATE, flags=re.MULTILINE)[1:]
    pieces = dict(zip(pieces[::2], pieces[1::2], strict=True))
    for own in (choose_device, send_over_host):
        pieces[own.__name__] = inspect.getsource(own)
    return {name: text.strip("\n") for name, text in pieces.items()}


def _imports() -> dict[str, str]:
    found = {}
    for node in ast.parse(_TEMPLATE).body:
        if isinstance(node, ast.Import | ast.ImportFrom) and "ranklab" not in ast.unparse(node):
            for alias in node.names:
                single = type(node)(**{**vars(node), "names": [alias]})
                found[alias.asname or alias.name] = ast.unparse(single)
    return found


def kept(part: str, words: set[str]) -> str:
    """The text of a part without the lines that are for other scripts."""
    lines = [line.partition("  #: ") for line in PARTS[part].split("\n")]
    return "\n".join(line for line, _, wanted in lines if _hold(wanted.split(), words))


def _hold(wanted: list[str], words: set[str]) -> bool:
    return all(word[1:] not in words if word[0] == "!" else word in words for word in wanted)


PARTS = _parts()  # name -> text
IMPORTS = _imports()  # name -> the statement that imports it
NAMES = {part: names_in(*ast.parse(text).body) for part, text in PARTS.items()}  # all lines
# What the parts call their own functions and variables.
HELPERS = (
    frozenset(name for names in NAMES.values() for name in names.binds | names.later_binds) - FIXED
)
