"""Builtins that a notebook gives another meaning."""

import ast

from bookmaker.script.bindings import DEFINITIONS
from bookmaker.script.cells import Cell
from bookmaker.script.lab import Lab
from bookmaker.script.operations import Finder
from bookmaker.script.scopes import BUILTINS, names_in

_OF_INTERACTION = {"_", "display", "get_ipython"}


def check(cells: list[Cell], lab: Lab, read: set[str]) -> None:
    """Refuse a variable with the name of a builtin that other code of the script reads.

    cells: those of the script. read: the builtins that the script's own code reads. With ranks,
    the kernel and the ranks have builtins of their own each.
    """
    functions = [n for c in cells if not c.on_ranks for n in c.tree.body if _defines(n)]
    by_ranks = _read([c.tree for c in cells if c.on_ranks])
    by_kernel = _read([c.tree for c in cells if not c.on_ranks])
    sent = _read(functions)
    for cell in cells:
        others = by_kernel if cell.on_ranks else by_ranks | sent
        taken = (read | (others if lab.has_ranks else set())) - _OF_INTERACTION
        for node in cell.tree.body:
            names = names_in(node)
            bound = names.binds | names.later_binds | _pushed(cell, node, lab)
            for name in sorted(bound & taken):
                kind = "function" if _defines(node) else "value"
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
    return _read([ast.parse(text) for text in texts])


def _read(trees: list[ast.AST]) -> set[str]:
    nodes = (node for tree in trees for node in ast.walk(tree))
    loads = (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return {node.id for node in loads} & BUILTINS


def _defines(node: ast.stmt) -> bool:
    return isinstance(node, DEFINITIONS)
