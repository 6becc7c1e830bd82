"""Cells that are not in the script: what they gave a value must not be read later."""

import ast

from bookmaker.script.analyse.lab import Lab
from bookmaker.script.analyse.operations import Finder
from bookmaker.script.analyse.sides import DEFINITIONS
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import changed_in, names_in


def check(cells: list[Cell], lab: Lab) -> None:
    """Refuse a read of a name whose last value is from a cell that is left out.

    cells: all, those that are left out included.
    """
    kernel, ranks = _Side(), _Side()
    for cell in cells:
        side = ranks if cell.on_ranks else kernel
        for node in cell.tree.body:
            pulls, pushes = ({}, {}) if cell.on_ranks else _moved(cell, node, lab)
            if "skip-execution" in cell.tags or cell.program:
                continue
            if cell.notebook_only:
                side.lost(cell, names_in(node).binds | changed_in(node))
                ranks.lost(cell, pushes)
                continue
            side.read(cell, node)
            for name in pulls:
                ranks.refuse(cell, name)
            side.bind(node)
            for name in pushes:
                ranks.missing.pop(name, None)


def _moved(cell: Cell, node: ast.stmt, lab: Lab) -> tuple[dict, dict]:
    """The names that a kernel's statement pulls and pushes."""
    if not lab.ranks:
        return {}, {}
    found: tuple[dict, dict] = {}, {}
    finder = Finder(cell, lab)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Subscript):
            operation = finder.operation(inner)
            if operation:
                found[operation.kind == "push"][operation.name] = True
    return found


def _given_first(node: ast.stmt) -> set[str]:
    """What a loop or a ``with`` gives a value before its body reads it."""
    match node:
        case ast.For(target=target, iter=head):
            targets, heads = [target], [head]
        case ast.With(items=items):
            targets = [item.optional_vars for item in items if item.optional_vars]
            heads = [item.context_expr for item in items]
        case _:
            return set()
    bound = names_in(ast.Assign(targets, ast.Constant(0), lineno=1)).binds if targets else set()
    return bound - names_in(*heads).all


class _Side:
    """The kernel's names, or the ranks'."""

    def __init__(self):
        self.missing: dict[str, Cell] = {}
        self.functions: dict[str, set[str]] = {}

    def lost(self, cell: Cell, names) -> None:
        self.missing.update(dict.fromkeys(names, cell))

    def read(self, cell: Cell, node: ast.stmt) -> None:
        names = names_in(node)
        todo = names.reads if isinstance(node, DEFINITIONS) else names.reads | names.later
        todo = todo - _given_first(node)
        if isinstance(node, DEFINITIONS):
            self.functions[node.name] = names.later
        seen: set[str] = set()
        todo = set(todo)
        while todo:
            name = todo.pop()
            seen.add(name)
            self.refuse(cell, name)
            todo |= self.functions.get(name, set()) - seen

    def refuse(self, cell: Cell, name: str) -> None:
        if name in self.missing:
            number = self.missing[name].place.number
            raise cell.refuse(
                f"`{name}` has its value from cell {number}, which is tagged `notebook-only` and "
                "not in the script. Tag this cell too, or take another name there."
            )

    def bind(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.With | ast.Import | ast.ImportFrom):
            sure = names_in(node).binds
        else:
            sure = {node.name} if isinstance(node, DEFINITIONS) else set()
        for name in sure:
            self.missing.pop(name, None)
