"""Which names a piece of Python binds and reads in the module it stands in."""

import ast
import builtins
from dataclasses import dataclass, field

from ranklab.forms import symbols

BUILTINS = frozenset(dir(builtins)) | {"__name__", "__doc__", "__builtins__"}


@dataclass
class Names:
    """binds: bound when the code runs. reads: read when it runs. later: read only when a
    function that it defines is called; later_binds: bound then (``global``)."""

    binds: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)
    later_binds: set[str] = field(default_factory=set)

    def __or__(self, other: "Names") -> "Names":
        return Names(
            self.binds | other.binds,
            self.reads | other.reads,
            self.later | other.later,
            self.later_binds | other.later_binds,
        )

    @property
    def all(self) -> set[str]:
        return self.binds | self.reads | self.later | self.later_binds


def names_in(*nodes: ast.stmt | ast.expr) -> Names:
    """The module-level names that statements or expressions bind and read, builtins left out."""
    statements = [n if isinstance(n, ast.stmt) else ast.Expr(n) for n in nodes]
    text = ast.unparse(ast.Module(statements, []))
    names = Names()
    _collect(symbols.table(text), names, top=True, later=False)
    names.binds |= {n.target.id for n in _outer_nodes(statements) if _adds_to_a_name(n)}
    names.reads -= BUILTINS - names.binds
    names.later -= BUILTINS - names.binds
    return names


def _collect(table, names: Names, top: bool, later: bool) -> None:
    for symbol in table.get_symbols():
        if not (top or symbol.is_global()):
            continue
        bound = symbol.is_assigned() or symbol.is_imported()
        if bound:
            (names.later_binds if later else names.binds).add(symbol.get_name())
        if symbol.is_referenced():
            (names.later if later else names.reads).add(symbol.get_name())
    for child in table.get_children():
        delayed = child.get_type() == "function" and child.get_name() != "genexpr"
        _collect(child, names, top=False, later=later or delayed)


def _adds_to_a_name(node: ast.AST) -> bool:
    return isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)


def _outer_nodes(statements):
    """All nodes that run in the module's own scope."""
    todo = list(statements)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo.extend(ast.iter_child_nodes(node))


_MUTATORS = {"append", "extend", "insert", "pop", "remove", "clear", "update", "add", "discard"}
_MUTATORS |= {"sort", "reverse", "setdefault", "popitem", "load_state_dict", "step", "zero_grad"}


def changed_in(*nodes: ast.AST) -> set[str]:
    """Names whose value is changed in place, as far as one can see: ``x[0] = 1``, ``x.add_(y)``,
    ``x.append(1)``, ``dist.all_reduce(x)``."""
    found = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        match node:
            case (
                ast.Subscript(ctx=ast.Store() | ast.Del())
                | ast.Attribute(ctx=ast.Store() | ast.Del())
            ):
                found |= _root(node)
            case ast.AugAssign(target=target):
                found |= _root(target)
            case ast.Call(func=ast.Attribute(value=owner, attr=method), args=arguments):
                if method in _MUTATORS or (method.endswith("_") and not method.endswith("__")):
                    found |= _root(owner)
                if isinstance(owner, ast.Name) and owner.id == "dist":
                    found |= {a.id for a in arguments if isinstance(a, ast.Name)}
    return found


def _root(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()
