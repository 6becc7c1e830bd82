"""The two sides of a notebook: which names its kernel and which its ranks use, and bind."""

import ast
from copy import deepcopy
from dataclasses import dataclass, field

from bookmaker.script.analyse.lab import Lab
from bookmaker.script.analyse.operations import Finder, Operation
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import BUILTINS, Names, is_import, names_in, origin, outer_nodes

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Binding:
    """One statement that binds a name. meaning: equal for two that mean the same (the origin
    of an import, the code of a definition), else empty."""

    cell: Cell
    node: ast.stmt
    meaning: str = ""


@dataclass
class Side:
    """binds: name -> the statements that bind it. uses: name -> the cells whose code has to do
    with it. called: names that only functions use, which this side calls -> those functions.
    functions: its functions and classes -> the names in them."""

    binds: dict[str, list[Binding]] = field(default_factory=dict)
    uses: dict[str, list[Cell]] = field(default_factory=dict)
    called: dict[str, str] = field(default_factory=dict)
    functions: dict[str, Names] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return set(self.uses) | set(self.called)


@dataclass
class Sides:
    """pushes: name -> the statements. pulls: name -> a cell. sent: functions of the kernel's that
    the ranks call -> the cell that sends them."""

    kernel: Side = field(default_factory=Side)
    ranks: Side = field(default_factory=Side)
    pushes: dict[str, list[Binding]] = field(default_factory=dict)
    pulls: dict[str, Cell] = field(default_factory=dict)
    sent: dict[str, Cell] = field(default_factory=dict)


def sides(cells: list[Cell], lab: Lab) -> Sides:
    """What the cells of a script say about the names of the two sides."""
    found = Sides()
    for cell in cells:
        side = found.ranks if cell.on_ranks else found.kernel
        for node in cell.tree.body:
            if not lab.makes_ranks(node):
                theirs = frozenset() if cell.on_ranks else _in_lambdas(node, Finder(cell, lab))
                _add(side, cell, node, lab, theirs)
    passed = _passed_on(cells, lab)
    for cell in cells:
        if not cell.on_ranks:
            _add_moves(found, cell, lab, passed)
    _add_calls(found, cells, lab)
    return found


def _in_lambdas(node: ast.stmt, finder: Finder) -> frozenset[str]:
    """What lambdas that run on the ranks read there, in a statement of the kernel's."""
    called = [op.node.args[0] for op in finder.within(node) if op.kind == "run"]
    lambdas = [callee for callee in called if isinstance(callee, ast.Lambda)]
    return frozenset().union(*(names_in(each).later for each in lambdas))


def _add(side: Side, cell: Cell, node: ast.stmt, lab: Lab, theirs: frozenset[str]) -> None:
    """theirs: names that the statement has to do with on the other side alone."""
    names = names_in(node)
    for name in sorted((names.binds | names.later_binds) - lab.names):
        side.binds.setdefault(name, []).append(Binding(cell, node, _meaning(node, name)))
    for inner in outer_nodes([node]):
        if isinstance(inner, DEFINITIONS):
            used = names_in(inner) | Names(later=frozenset(_builtins(inner)))
            side.functions[inner.name] = side.functions.get(inner.name, Names()) | used
    if isinstance(node, DEFINITIONS):
        _use(side, cell, names.binds | names.reads)
    elif not is_import(node):
        _use(side, cell, (names.all | _builtins(node)) - (theirs - names.reads - names.binds))


def _use(side: Side, cell: Cell, names) -> None:
    for name in names:
        side.uses.setdefault(name, []).append(cell)


def _builtins(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & BUILTINS


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
    if any(isinstance(inner, ast.ExceptHandler) for inner in ast.walk(node)):
        node = deepcopy(node)
        for inner in ast.walk(node):
            if isinstance(inner, ast.ExceptHandler):
                inner.name = None
    names = names_in(node)
    return names.binds | names.later_binds


# ---- what goes from one side to the other --------------------------------------------------


def _add_moves(found: Sides, cell: Cell, lab: Lab, passed: set[str]) -> None:
    finder = Finder(cell, lab)
    for node in ast.walk(cell.tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                push = finder.operation(target)
                if push and push.kind == "push":
                    found.pushes.setdefault(push.name, []).append(Binding(cell, node))
                    _use(found.ranks, cell, {push.name})
                    _send(found, cell, functions_given(node.value, found.kernel))
    for node in cell.tree.body:
        for op in finder.within(node):
            if op.kind == "pull":
                found.pulls.setdefault(op.name, cell)
                _use(found.ranks, cell, {op.name})
            elif op.kind == "run":
                _add_run(found, cell, op, passed)


def _add_run(found: Sides, cell: Cell, op: Operation, passed: set[str]) -> None:
    """A call on the ranks: of a function of the kernel's, or of what a variable holds."""
    callee, *arguments = op.node.args
    if isinstance(callee, ast.Lambda):
        names = names_in(callee)
        _use(found.ranks, cell, names.later | _builtins(callee))
        _send(found, cell, names.later & set(found.kernel.functions) - set(found.ranks.binds))
    else:
        root = root_name(callee)
        known = root in found.kernel.functions
        _send(found, cell, {root} if known else passed & set(found.kernel.functions))
    for value in [*arguments, *(keyword.value for keyword in op.node.keywords)]:
        _send(found, cell, functions_given(value, found.kernel))


def _send(found: Sides, cell: Cell, names) -> None:
    for name in names:
        found.sent.setdefault(name, cell)


def root_name(node: ast.expr) -> str:
    """``a`` of ``a.b.c``; empty if it is no name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def functions_given(value: ast.AST, side: Side) -> set[str]:
    """The functions and classes of a side that a value is, or holds: named and not called."""
    called = {id(n.func) for n in ast.walk(value) if isinstance(n, ast.Call)}
    names = (n for n in ast.walk(value) if isinstance(n, ast.Name) and id(n) not in called)
    return {n.id for n in names if isinstance(n.ctx, ast.Load)} & set(side.functions)


def _passed_on(cells: list[Cell], lab: Lab) -> set[str]:
    """Names that plain cells use other than to call them: what a variable may then hold."""
    found: set[str] = set()
    for cell in cells:
        if not cell.on_ranks:
            called = {id(n.func) for n in ast.walk(cell.tree) if isinstance(n, ast.Call)}
            names = (n for n in ast.walk(cell.tree) if isinstance(n, ast.Name))
            found |= {n.id for n in names if id(n) not in called and isinstance(n.ctx, ast.Load)}
    return found


# ---- what is used through functions ---------------------------------------------------------


def _add_calls(found: Sides, cells: list[Cell], lab: Lab) -> None:
    kernel, ranks = found.kernel, found.ranks
    _follow(kernel, kernel.functions, _in_the_kernel(cells, lab) & set(kernel.functions))
    _follow(ranks, ranks.functions, set(ranks.uses) & set(ranks.functions))
    _follow(ranks, kernel.functions, set(found.sent))


def _in_the_kernel(cells: list[Cell], lab: Lab) -> set[str]:
    """What plain cells' statements call, or hand to what they call, but not to the ranks."""
    found: set[str] = set()
    for cell in cells:
        if cell.on_ranks:
            continue
        finder = Finder(cell, lab)
        for node in cell.tree.body:
            if isinstance(node, DEFINITIONS):
                continue
            there = {id(inner) for part in _handed_over(node, finder) for inner in ast.walk(part)}
            for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
                parts = [call.func, *call.args, *(keyword.value for keyword in call.keywords)]
                used = [part for part in parts if id(part) not in there]
                found |= {part.id for part in used if isinstance(part, ast.Name)}
    return found


def _handed_over(node: ast.stmt, finder: Finder) -> list[ast.AST]:
    """What a kernel's statement hands to the ranks as a function: callees, values pushed."""
    found = [part for op in finder.within(node) if op.kind == "run" for part in op.node.args]
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign) and any(map(finder.operation, inner.targets)):
            found += [inner.value] if isinstance(inner.value, ast.Name) else []
    return found


def _follow(side: Side, functions: dict[str, Names], first: set[str]) -> None:
    """Note what these functions, and those that they call, use when they run."""
    todo, seen = list(first), set()
    while todo:
        function = todo.pop()
        if function in seen:
            continue
        seen.add(function)
        inner = functions[function]
        for name in inner.later | inner.later_binds:
            side.called.setdefault(name, function)
        todo += inner.later & set(functions)
