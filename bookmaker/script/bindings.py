"""Where a notebook binds its names: in the kernel, on the ranks, by a push."""

import ast
from copy import deepcopy
from dataclasses import dataclass, field

from bookmaker.script.cells import Cell
from bookmaker.script.imports import is_import, origin
from bookmaker.script.lab import Lab
from bookmaker.script.operations import Finder, Operation
from bookmaker.script.scopes import names_in

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Binding:
    """One statement that binds a name. meaning: equal for two that mean the same (the origin
    of an import, the code of a definition), else empty."""

    cell: Cell
    node: ast.stmt
    meaning: str = ""


@dataclass
class Bindings:
    """Name -> its bindings, on either side. hidden: names bound in left-out cells alone."""

    kernel: dict[str, list[Binding]] = field(default_factory=dict)
    ranks: dict[str, list[Binding]] = field(default_factory=dict)
    pushes: dict[str, list[Binding]] = field(default_factory=dict)
    pulls: dict[str, Cell] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    hidden: dict[str, Cell] = field(default_factory=dict)
    unknowable: bool = False

    @property
    def shared(self) -> set[str]:
        """Names that the kernel pushes under their own name."""
        return set(self.kernel) & set(self.pushes)

    def passing(self, name: str) -> bool:
        """Whether no cell reads what another cell gave this name: a loop's ``i``, say."""
        return all(_stays_within(cell, name) for cell in self.cells)


def bindings(cells: list[Cell], lab: Lab) -> Bindings:
    """All bindings of a notebook, in its order."""
    found = Bindings(cells=[cell for cell in cells if not cell.notebook_only])
    for cell in cells:
        if cell.notebook_only:
            continue
        side = found.ranks if cell.on_ranks else found.kernel
        for node in cell.tree.body:
            _add(side, cell, node, lab)
            found.unknowable |= _hides_names(node)
        if not cell.on_ranks:
            _add_pushes(found.pushes, cell, lab)
            pulls = [op for op in _operations(cell, lab) if op.kind == "pull"]
            found.pulls.update((op.name, cell) for op in pulls)
    for cell in cells:
        if cell.notebook_only and cell.tree.body:
            for name in names_in(*cell.tree.body).binds - lab.names:
                if name not in {**found.kernel, **found.ranks, **found.pushes}:
                    found.hidden.setdefault(name, cell)
    return found


def _operations(cell: Cell, lab: Lab) -> list[Operation]:
    finder = Finder(cell, lab)
    return [op for node in cell.tree.body for op in finder.within(node)]


def _add(side: dict, cell: Cell, node: ast.stmt, lab: Lab) -> None:
    names = names_in(node)
    for name in sorted((names.binds | names.later_binds) - lab.names):
        side.setdefault(name, []).append(Binding(cell, node, _meaning(node, name)))


def _meaning(node: ast.stmt, name: str) -> str:
    if is_import(node):
        for alias in node.names:
            if (alias.asname or alias.name.split(".")[0]) == name:
                return origin(type(node)(**{**vars(node), "names": [alias]}))
    if isinstance(node, DEFINITIONS):
        return ast.dump(node)
    return "except ... as" if name not in _outlives_handlers(node) else ""


def _outlives_handlers(node: ast.stmt) -> set[str]:
    """What a statement binds for longer than an ``except ... as name:`` block."""
    node = deepcopy(node)
    for inner in ast.walk(node):
        if isinstance(inner, ast.ExceptHandler):
            inner.name = None
    names = names_in(node)
    return names.binds | names.later_binds


def _add_pushes(side: dict, cell: Cell, lab: Lab) -> None:
    finder = Finder(cell, lab)
    for node in ast.walk(cell.tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found = finder.operation(target)
                if found and found.kind == "push":
                    side.setdefault(found.name, []).append(Binding(cell, node))


def _stays_within(cell: Cell, name: str) -> bool:
    """Whether the cell gives the name a value of its own before it reads it."""
    bound = False
    for node in cell.tree.body:
        names = names_in(node)
        if name in names.later | names.later_binds:
            return False
        if name in names.reads and not bound and not _own_loop(node, name):
            return False
        sure = isinstance(node, ast.Assign | ast.AnnAssign | ast.With) or is_import(node)
        bound = bound or (sure and name in names.binds)
    return True


def _own_loop(node: ast.stmt, name: str) -> bool:
    """Whether a statement is a loop over this name, which reads it in its body alone."""
    if not isinstance(node, ast.For) or node.orelse:
        return False
    target = names_in(ast.Assign([node.target], ast.Constant(0), lineno=1))
    return name in target.binds and name not in names_in(node.iter).all


def _hides_names(node: ast.stmt) -> bool:
    """Whether a statement may bind names that nobody can see: a star, exec(), globals()."""
    for inner in ast.walk(node):
        match inner:
            case ast.alias(name="*"):
                return True
            case ast.Call(func=ast.Name(id="exec" | "eval" | "globals" | "locals" | "vars")):
                return True
    return False
