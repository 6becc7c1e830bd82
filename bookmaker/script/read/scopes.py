"""Which names a piece of Python binds and reads in the module it stands in."""

import ast
import builtins
from dataclasses import dataclass
from functools import lru_cache

from bookmaker.taught import symbols

BUILTINS = frozenset(dir(builtins)) | {"__name__", "__doc__", "__builtins__"}


@dataclass(frozen=True)
class Names:
    """binds: bound when the code runs. reads: read when it runs. later: read only when a
    function that it defines is called; later_binds: bound then (``global``)."""

    binds: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()
    later_binds: frozenset[str] = frozenset()

    def __or__(self, other: "Names") -> "Names":
        return Names(
            self.binds | other.binds,
            self.reads | other.reads,
            self.later | other.later,
            self.later_binds | other.later_binds,
        )

    @property
    def all(self) -> frozenset[str]:
        return self.binds | self.reads | self.later | self.later_binds


def names_in(*nodes: ast.stmt | ast.expr) -> Names:
    """The module-level names that statements or expressions bind and read, builtins left out."""
    statements = [n if isinstance(n, ast.stmt) else ast.Expr(n) for n in nodes]
    return _names_in(ast.unparse(ast.Module(statements, [])))


@lru_cache(maxsize=8192)  # each check of a script asks for the same statements again
def _names_in(source: str) -> Names:
    names = _names_of(symbols.table(source), top=True, later=False)
    tree = ast.parse(source)
    outer = list(outer_nodes(tree.body))
    added = {n.target.id for n in outer if _adds_to_a_name(n)}
    binds = names.binds | added
    inside = {n.target.id for n in ast.walk(tree) if _adds_to_a_name(n)} & names.later_binds
    builtin = BUILTINS - binds
    reads, later = names.reads | added, names.later | inside
    return Names(binds, reads - builtin, later - builtin, names.later_binds)


def _names_of(table, top: bool, later: bool) -> Names:
    own = [symbol for symbol in table.get_symbols() if top or symbol.is_global()]
    bound = frozenset(s.get_name() for s in own if s.is_assigned() or s.is_imported())
    read = frozenset(s.get_name() for s in own if s.is_referenced())
    names = Names(later=read, later_binds=bound) if later else Names(bound, read)
    for child in table.get_children():
        delayed = child.get_type() == "function" and child.get_name() != "genexpr"
        names |= _names_of(child, top=False, later=later or delayed)
    return names


def _adds_to_a_name(node: ast.AST) -> bool:
    return isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)


def outer_nodes(statements):
    """All nodes that run in the module's own scope."""
    todo = list(statements)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo.extend(ast.iter_child_nodes(node))


def is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def origin(node) -> str:
    """What the one name of an import stands for: "math", "math.pi"."""
    alias = node.names[0]
    if isinstance(node, ast.Import):
        return alias.name if alias.asname else alias.name.split(".")[0]
    return f"{'.' * node.level}{node.module or ''}.{alias.name}"


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
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[target, *_]):
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
