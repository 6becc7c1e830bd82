"""Names of which the kernel and the ranks have one each: in the script, rank 0 has both.

In a notebook these are variables of two processes. The script's rank 0 plays both, so it keeps
two values of such a name and swaps them whenever it goes over to the other side (`play` in
`template.py`). Then a push is a copy, as in the notebook, and what one side does to its own value
does not show on the other.
"""

import ast

from bookmaker.script.analyse.imports import Imports
from bookmaker.script.analyse.lab import Lab
from bookmaker.script.analyse.sides import DEFINITIONS, Sides
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import is_import, names_in

GIVEN = {"rank", "world_size", "device", "torch", "dist"}
_OF_NUMBERS = {"int", "float", "str", "bool", "len", "round"}


def apart(found: Sides, imports: Imports, lab: Lab) -> set[str]:
    """The names that both sides use for values of their own."""
    beside = GIVEN | lab.names | set(imports.names) | imports.inlined_names
    bound = set(found.kernel.binds) | set(found.ranks.binds) | set(found.pushes)
    both = found.kernel.names & found.ranks.names & bound
    return {name for name in both - beside if not _is_one(name, found)}


def _is_one(name: str, found: Sides) -> bool:
    """Whether one variable does the work of two, whatever the notebook goes on to do."""
    if name not in found.kernel.binds or name not in {**found.ranks.binds, **found.pushes}:
        return False
    return _passing(name, found) or _one_definition(name, found) or _constant(name, found)


def _one_definition(name: str, found: Sides) -> bool:
    """The same function on both sides: defined twice, or pushed as it is."""
    bindings = [*found.kernel.binds[name], *found.ranks.binds.get(name, [])]
    defined = all(isinstance(b.node, DEFINITIONS) for b in bindings)
    same = len({binding.meaning for binding in bindings}) == 1
    return defined and same and _pushed_as_it_is(name, found)


def _constant(name: str, found: Sides) -> bool:
    """A number or text that the kernel gives a name once and for all, and pushes as it is."""
    bindings = found.kernel.binds[name]
    if len(bindings) > 1 or name in found.ranks.binds or not _pushed_as_it_is(name, found):
        return False
    match bindings[0].node:
        case ast.Assign(targets=[ast.Name()], value=value) as node:
            return node in bindings[0].cell.tree.body and _unchangeable(value)
    return False


def _pushed_as_it_is(name: str, found: Sides) -> bool:
    values = [binding.node.value for binding in found.pushes.get(name, [])]
    return all(isinstance(value, ast.Name) and value.id == name for value in values)


def _unchangeable(value: ast.expr) -> bool:
    match value:
        case ast.Constant() | ast.JoinedStr():
            return True
        case ast.UnaryOp(operand=part):
            return _unchangeable(part)
        case ast.BinOp(left=left, right=right):
            return _unchangeable(left) and _unchangeable(right)
        case ast.Tuple(elts=parts):
            return all(map(_unchangeable, parts))
        case ast.Call(func=ast.Name(id=name)):
            return name in _OF_NUMBERS
    return False


def _passing(name: str, found: Sides) -> bool:
    """Whether no cell reads what another cell gave this name: a loop's ``i``, say."""
    if name in {**found.pushes, **found.pulls, **found.kernel.called, **found.ranks.called}:
        return False
    cells = found.kernel.uses[name] + found.ranks.uses[name]
    return all(_stays_within(cell, name) for cell in cells)


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


def hidden_in_code(cells: list[Cell], names: set[str]) -> bool:
    """Whether code that runs later, and may run anywhere, uses one of these names: a function,
    a lambda, a generator."""
    for cell in cells:
        for node in cell.tree.body:
            used = names_in(node)
            late = used.later | used.later_binds
            lazy = any(isinstance(inner, ast.GeneratorExp) for inner in ast.walk(node))
            if (late | (used.all if lazy else frozenset())) & names:
                return True
    return False
