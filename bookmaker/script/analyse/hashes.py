"""Do ranks use hashes of strings, or the order of a set? They differ from process to process.

The ranks of a notebook are forked and share the seed of Python's hashes, so it shows in the script
alone: ranks that number the same words differently, or look for a word on another rank.
"""

import ast
from collections.abc import Container, Iterator

from bookmaker.script.read.cells import Cell

_IN_ORDER = {"enumerate", "list", "tuple", "iter", "zip", "map", "filter", "dict", "join", "array"}
_IN_ORDER |= {"tensor", "fromkeys", "extend", "deque", "chain", "fromiter"}
_ANY_ORDER = {"sorted", "len", "min", "max", "sum", "any", "all", "set", "frozenset"}
_MAKE_SETS = {"union", "intersection", "difference", "symmetric_difference", "copy"}
_WHY = (
    "the ranks go through a set, `{}`. The order of strings in a set differs from process to "
    "process, so the ranks of the script would disagree, though those of the notebook agree. Sort "
    "it first, with `sorted(...)`."
)
_COMPREHENSIONS = (ast.ListComp, ast.DictComp, ast.GeneratorExp)


def check(cells: list[Cell], sent: Container[str]) -> None:
    """Refuse code of the ranks that hashes, or goes through a set, unless no order can come of it.

    sent: functions of the kernel's that the ranks call.
    """
    known = _variables([cell for cell in cells if cell.on_ranks])
    for cell in cells:
        for tree in [cell.tree] if cell.on_ranks else _sent_from(cell, sent):
            any_order = set(_of_any_order(tree))
            for node in ast.walk(tree):
                _refuse_hash(cell, node)
                for used in [] if id(node) in any_order else _gone_through(node):
                    if _is_set(used, known):
                        raise cell.refuse(_WHY.format(ast.unparse(used)))


def _sent_from(cell: Cell, sent: Container[str]) -> list[ast.stmt]:
    return [node for node in cell.tree.body if getattr(node, "name", None) in sent]


def _refuse_hash(cell: Cell, node: ast.AST) -> None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash":
        raise cell.refuse(
            f"the ranks use `{ast.unparse(node)}`. The hash of a string differs from process to "
            "process, so the ranks of the script would disagree, though those of the notebook "
            "agree. Take one that does not, as `zlib.crc32(text.encode())`."
        )


def _variables(cells: list[Cell]) -> set[str]:
    """The names that are given a set somewhere."""
    known: set[str] = set()
    assigned = [n for cell in cells for n in ast.walk(cell.tree) if isinstance(n, ast.Assign)]
    for _ in range(2):  # also a set that is made from another
        for node in assigned:
            if _is_set(node.value, known):
                known |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return known


def _of_any_order(tree: ast.AST) -> Iterator[int]:
    """The generators that stand alone in `sorted(...)` and the like: their ids."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in _ANY_ORDER:
            yield from (id(arg) for arg in node.args)


def _gone_through(node: ast.AST) -> list[ast.expr]:
    """What a node takes element by element, in order."""
    match node:
        case ast.For() | ast.AsyncFor():
            return [node.iter]
        case ast.Call() if _called(node) in _IN_ORDER:
            return node.args
        case ast.Starred():
            return [node.value]
        case ast.Assign(targets=[ast.Tuple() | ast.List()]):
            return [node.value]
    return [part.iter for part in node.generators] if isinstance(node, _COMPREHENSIONS) else []


def _is_set(node: ast.expr, known: set[str]) -> bool:
    """Whether it is a set, of more than plain numbers. known: names that hold one."""
    match node:
        case ast.Name(id=name):
            return name in known
        case ast.Set(elts=elements):
            return not all(isinstance(one, ast.Constant) and _is_number(one) for one in elements)
        case ast.SetComp() | ast.Call(func=ast.Name("set" | "frozenset")):
            return True
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
            return _is_set(node.left, known) or _is_set(node.right, known)
        case ast.Call(func=ast.Attribute(value=owner, attr=method)):
            return method in _MAKE_SETS and _is_set(owner, known)
    return False


def _is_number(constant: ast.Constant) -> bool:
    return isinstance(constant.value, int | float | complex)


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
