"""What kernel code does with the ranks: pulls, pushes, runs, resets, wherever they stand."""

import ast
import keyword
from collections.abc import Iterator
from dataclasses import dataclass

from bookmaker.script.analyse.lab import Lab
from bookmaker.script.read.cells import Cell

_WITHOUT_TRANSLATION = {
    "restart": "it would lose the variables of the script's processes, which are the script; use "
    "ranks.reset(), or tag the cell `notebook-only`.",
    "view": "it is ipyparallel's own; use %%px, ranks[...] and ranks.run(...).",
    "client": "it is ipyparallel's own; use %%px, ranks[...] and ranks.run(...).",
    "cluster": "it is ipyparallel's own; use %%px, ranks[...] and ranks.run(...).",
}
COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.TryStar, ast.Match)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Operation:
    """kind: pull, push, run, reset, close, where, size. node: the expression it is.

    name: the name pulled or pushed. sometimes: what makes it run never or more than once
    ("a lambda", "the right side of `and`"), empty if it runs exactly once.
    """

    kind: str
    node: ast.expr
    name: str = ""
    sometimes: str = ""

    @property
    def collective(self) -> bool:
        return self.kind not in ("size", "where")


class Finder:
    """Finds the operations on the ranks in kernel code, in the order of evaluation."""

    def __init__(self, cell: Cell, lab: Lab):
        self.cell, self.lab = cell, lab

    def within(self, node: ast.AST, sometimes: str = "") -> list[Operation]:
        if self.lab.makes_ranks(node) or self.shows_ranks(node):
            return []
        return list(self._find(node, sometimes))

    def shows_ranks(self, node: ast.AST) -> bool:
        """Whether a statement is ``ranks`` alone, which shows what they are."""
        match node:
            case ast.Expr(value=ast.Name(id=name)):
                return self._is_ranks(name)
        return False

    def _find(self, node: ast.AST, sometimes: str) -> Iterator[Operation]:
        found = self.operation(node, sometimes)
        if found:
            for argument in _arguments(found):
                yield from self._find(argument, sometimes)
            yield found
            return
        if isinstance(node, ast.Name) and self.lab.ranks and node.id == self.lab.ranks:
            raise self._refuse_bare(node)
        for child, why in _in_order(node):
            yield from self._find(child, sometimes or why)

    def operation(self, node: ast.AST, sometimes: str = "") -> Operation | None:
        match node:
            case ast.Subscript(value=ast.Name(id=name)) if self._is_ranks(name):
                kind = "pull" if isinstance(node.ctx, ast.Load) else "push"
                return Operation(kind, node, self._subscript(node), sometimes)
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]) if self._is_ranks(
                name
            ):
                return Operation("size", node, sometimes=sometimes)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if self._is_ranks(
                name
            ):
                return self._method(node, attr, sometimes)
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if self._is_ranks(name):
                if attr == "world_size":
                    return Operation("size", node, sometimes=sometimes)
                raise self._refuse_attribute(attr)
        return None

    def _method(self, node: ast.Call, attr: str, sometimes: str) -> Operation:
        if attr == "run":
            if not node.args:
                raise self.cell.refuse("`ranks.run()` needs the function to call.")
            if isinstance(node.args[0], ast.Starred):
                raise self.cell.refuse(
                    f"`{ast.unparse(node)}`: write the function to call by itself, as in "
                    "ranks.run(f, *arguments)."
                )
            return Operation("run", node, sometimes=sometimes)
        if attr in ("reset", "close", "where"):
            if node.args or node.keywords:
                raise self.cell.refuse(f"`ranks.{attr}` takes no arguments in a script.")
            return Operation(attr, node, sometimes=sometimes)
        raise self._refuse_attribute(attr)

    def _is_ranks(self, name: str) -> bool:
        return bool(self.lab.ranks) and name == self.lab.ranks

    def _subscript(self, node: ast.Subscript) -> str:
        match node.slice:
            case ast.Constant(value=str(name)) if name.isidentifier():
                return self._checked(name)
        raise self.cell.refuse(
            f"`{ast.unparse(node)}`: a script must know the name; write it as a string, as in "
            'ranks["x"].'
        )

    def _checked(self, name: str) -> str:
        """The name of a variable of the ranks', if a script can have a variable of this name."""
        if keyword.iskeyword(name):
            raise self.cell.refuse(
                f"`{name}` is a word of Python's, and no variable can have this name; take another."
            )
        if name in self.lab.names:
            raise self.cell.refuse(
                f"`{name}` is also something that the script takes from ranklab; give the ranks' "
                "variable another name."
            )
        return name

    def _refuse_attribute(self, attr: str):
        why = _WITHOUT_TRANSLATION.get(
            attr, "use %%px, ranks[...], ranks.run(...), ranks.reset() and ranks.world_size."
        )
        return self.cell.refuse(f"`{self.lab.ranks}.{attr}` has no translation: {why}")

    def _refuse_bare(self, node: ast.Name):
        if isinstance(node.ctx, ast.Store | ast.Del):
            return self.cell.refuse(
                f"`{node.id}` holds the ranks; give the other value another name."
            )
        return self.cell.refuse(
            f"`{node.id}` itself goes into an expression or a call; a script has no such object. "
            'Pass the values instead, as in f(ranks["x"]).'
        )


def _arguments(found: Operation) -> list[ast.expr]:
    if found.kind == "run":
        return [*found.node.args, *(keyword.value for keyword in found.node.keywords)]
    return []


def _in_order(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The children of a node in order of evaluation, each with why it may not run just once."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _each(ast.iter_child_nodes(node), f"the function `{node.name}`")
        case ast.ClassDef():
            yield from _each(ast.iter_child_nodes(node), f"the class `{node.name}`")
        case ast.Lambda():
            yield from _each(ast.iter_child_nodes(node), "a lambda")
        case ast.BoolOp():
            word = "and" if isinstance(node.op, ast.And) else "or"
            yield node.values[0], ""
            yield from _each(node.values[1:], f"the right side of `{word}`")
        case ast.IfExp():
            yield node.test, ""
            yield from _each([node.body, node.orelse], "one arm of `... if ... else ...`")
        case ast.Compare():
            yield from _each([node.left, node.comparators[0]], "")
            yield from _each(node.comparators[1:], "the end of a chain of comparisons")
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            yield from _in_comprehension(node)
        case ast.Assert():
            yield node.test, ""
            if node.msg:
                yield node.msg, "the message of an assert"
        case ast.Assign():
            yield node.value, ""
            yield from _each(node.targets, "")
        case ast.AnnAssign():
            yield from _each(filter(None, [node.value, node.target]), "")
            yield node.annotation, "an annotation"
        case ast.Dict():
            for key, value in zip(node.keys, node.values, strict=True):
                yield from _each(filter(None, [key, value]), "")
        case ast.For():
            yield node.iter, ""
            yield node.target, ""
            yield from _each(node.body + node.orelse, "")
        case ast.While():
            yield node.test, "the test of a `while`"
            yield from _each(node.body + node.orelse, "")
        case ast.With():
            yield from _each(node.items + node.body, "a `with` block")
        case ast.Try() | ast.TryStar():
            yield from _each(ast.iter_child_nodes(node), "a `try` block")
        case ast.Match():
            yield node.subject, "a `match`"
            yield from _each(node.cases, "a `match`")
        case _:
            yield from _each(ast.iter_child_nodes(node), "")


def _in_comprehension(node) -> Iterator[tuple[ast.AST, str]]:
    first, *others = node.generators
    yield first.iter, ""
    inside = "the body of a comprehension"
    yield from _each([first.target, *first.ifs, *others], inside)
    parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    yield from _each(parts, inside)


def _each(nodes, why: str) -> Iterator[tuple[ast.AST, str]]:
    return ((node, why) for node in nodes)


def refuse_sometimes(cell: Cell, op: Operation) -> None:
    """Refuse an operation that may run never or more than once."""
    if op.collective and op.sometimes:
        raise cell.refuse(sometimes([op], op.sometimes))


def refuse_inside(cell: Cell, operations: list[Operation]) -> None:
    """Refuse, inside of another statement, what must be one by itself."""
    for op in operations:
        if op.kind in ("reset", "close", "push", "where"):
            raise cell.refuse(f"`ranks.{op.kind}` is a statement of its own.")


def sometimes(operations: list[Operation], what: str) -> str:
    """The sentence that refuses an operation inside of ``what``."""
    op = next(op for op in operations if op.collective)
    text = ast.unparse(op.node)
    return (
        f"`{text}` stands in {what}, where it may run never or many times, and not on all ranks "
        'alike. Put it on a line before, as in `xs = ranks["x"]`, and use the name here.'
    )
