"""Builtins that a notebook gives another meaning."""

import ast

from ranklab.forms.script.bindings import DEFINITIONS
from ranklab.forms.script.cells import Cell
from ranklab.forms.script.lab import Lab
from ranklab.forms.script.operations import Finder
from ranklab.forms.script.scopes import BUILTINS, names_in

_OF_INTERACTION = {"_", "display", "get_ipython"}


def check(cells: list[Cell], lab: Lab, read: set[str]) -> None:
    """Refuse a variable with the name of a builtin that other code of the script reads.

    cells: those of the script. read: the builtins that the preamble reads. With ranks, all are
    refused: the kernel and the ranks have builtins of their own each.
    """
    taken = (BUILTINS - _OF_INTERACTION) if lab.has_ranks else BUILTINS & read
    for cell in cells:
        for node in cell.tree.body:
            names = names_in(node)
            bound = names.binds | names.later_binds | _pushed(cell, node, lab)
            for name in sorted(bound & taken):
                kind = "function" if isinstance(node, DEFINITIONS) else "value"
                raise cell.refuse(
                    f"`{name}` is a builtin, which other code of the script means by this name. "
                    f"Give the {kind} another name."
                )


def _pushed(cell: Cell, node: ast.stmt, lab: Lab) -> set[str]:
    if cell.on_ranks or not lab.ranks:
        return set()
    return {op.name for op in Finder(cell, lab).within(node) if op.kind == "push"}


def read_in(texts: list[str]) -> set[str]:
    """The builtins that these pieces of code read."""
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    return {node.id for node in nodes if isinstance(node, ast.Name)} & BUILTINS
