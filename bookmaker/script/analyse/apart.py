"""Names of which the kernel and the ranks have one each: in the script, rank 0 has both.

In a notebook these are variables of two processes. The script's rank 0 plays both, so it keeps
two values of such a name and swaps them whenever it goes over to the other side (`play` in
`template.py`). Then a push is a copy, as in the notebook, and what one side does to its own value
does not show on the other.
"""

import ast

from bookmaker.script.analyse.imports import Imports
from bookmaker.script.analyse.lab import Lab
from bookmaker.script.analyse.sides import DEFINITIONS, Side, Sides
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import is_import, names_in

GIVEN = {"rank", "world_size", "device", "torch", "dist"}
_MAKE_CLASSES = {"namedtuple", "NamedTuple", "TypedDict", "Enum", "make_dataclass", "type"}
_OF_NUMBERS = {"int", "float", "str", "bool", "len", "round"}


def apart(found: Sides, imports: Imports, lab: Lab, own: set[str]) -> set[str]:
    """The names that both sides use for values of their own. own: of which each rank has its own,
    that the chapter's taught code gives."""
    beside = GIVEN | lab.names | set(imports.names) | imports.inlined_names | own
    bound = set(found.kernel.binds) | set(found.ranks.binds) | set(found.pushes)
    both = found.kernel.names & found.ranks.names & bound
    return {name for name in both - beside if not _is_one(name, found)}


def _is_one(name: str, found: Sides) -> bool:
    """Whether one variable does the work of two, whatever the notebook goes on to do."""
    if name not in found.kernel.binds or name not in {**found.ranks.binds, **found.pushes}:
        return False
    return _passing(name, found) or _one_definition(name, found) or _constant(name, found)


def _one_definition(name: str, found: Sides) -> bool:
    """The same function on both sides, defined twice or pushed as it is, which keeps nothing.

    A class does: what is counted in it, and whose instances are its own.
    """
    theirs = found.ranks.binds.get(name, [])
    bindings = [*found.kernel.binds[name], *theirs]
    defined = all(isinstance(b.node, DEFINITIONS) for b in bindings)
    if not defined or len({b.meaning for b in bindings}) > 1 or not _pushed_as_it_is(name, found):
        return False
    kept = isinstance(bindings[0].node, ast.ClassDef) or names_in(bindings[0].node).reads
    return not (theirs and kept)


def _constant(name: str, found: Sides) -> bool:
    """A number or text that the kernel gives a name once and for all, and pushes as it is before
    the ranks use it."""
    bindings = found.kernel.binds[name]
    if len(bindings) > 1 or name in found.ranks.binds or not _pushed_as_it_is(name, found):
        return False
    first = min(cell.place.number for cell in found.ranks.uses[name])
    if found.pushes[name][0].cell.place.number > first:
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
    functions = [*found.kernel.functions.values(), *found.ranks.functions.values()]
    late = {name for names in functions for name in names.later | names.later_binds}
    if name in late or name in {**found.pushes, **found.pulls}:
        return False
    cells = found.kernel.uses[name] + found.ranks.uses[name]
    if not any(name in names_in(*cell.tree.body).reads for cell in cells):
        return True  # nobody looks at it
    return all(_stays_within(cell, name) for cell in cells)


def _stays_within(cell: Cell, name: str) -> bool:
    """Whether the cell gives the name a value of its own before it reads it."""
    bound = False
    for node in cell.tree.body:
        names = names_in(node)
        if name in names.later | names.later_binds or (name in names.all and _is_lazy(node)):
            return False
        if name in names.reads and not bound and not _own_loop(node, name):
            return False
        sure = isinstance(node, ast.Assign | ast.With) or is_import(node)
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
            if (late | (used.all if _is_lazy(node) else frozenset())) & names:
                return True
    return False


def code(found: Sides) -> set[str]:
    """The names of functions and classes, on either side."""
    made = {name for side in (found.kernel, found.ranks) for name in _made_classes(side)}
    return made | {*found.kernel.functions, *found.ranks.functions}


def _made_classes(side: Side) -> set[str]:
    """Names that are given a class by a call: ``Point = namedtuple(...)``."""
    found = set()
    for name, bindings in side.binds.items():
        for binding in bindings:
            match getattr(binding.node, "value", None):
                case ast.Call(func=ast.Name(id=made) | ast.Attribute(attr=made)):
                    found |= {name} if made in _MAKE_CLASSES else set()
    return found


def _is_lazy(node: ast.AST) -> bool:
    """Whether a statement makes a generator, which reads its names when it is gone through."""
    return any(isinstance(inner, ast.GeneratorExp) for inner in ast.walk(node))
