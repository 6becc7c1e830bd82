"""The parts of `template.py`, of which a script's preamble is made, and the names in them."""

import ast
import re
from pathlib import Path

from bookmaker.script.read.scopes import names_in

_TEMPLATE = Path(__file__).with_name("template.py").read_text()
FIXED = frozenset({"rank", "world_size", "device", "torch", "dist", "__file__"})


def _parts() -> dict[str, str]:
    pieces = re.split(r"^#: (\w+)\n", _TEMPLATE, flags=re.MULTILINE)[1:]
    return {name: text.strip("\n") for name, text in zip(pieces[::2], pieces[1::2], strict=True)}


def _imports() -> dict[str, str]:
    found = {}
    for node in ast.parse(_TEMPLATE).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                single = type(node)(**{**vars(node), "names": [alias]})
                found[alias.asname or alias.name] = ast.unparse(single)
    return found


PARTS = _parts()  # name -> text
IMPORTS = _imports()  # name -> the statement that imports it
NAMES = {part: names_in(*ast.parse(text).body) for part, text in PARTS.items()}
# What the parts call their own functions and variables.
HELPERS = (
    frozenset(name for names in NAMES.values() for name in names.binds | names.later_binds) - FIXED
)
