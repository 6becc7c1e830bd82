"""``%%px`` cells: the same code on every rank, unguarded."""

import ast
from collections.abc import Iterator

from bookmaker.script.analyse.lab import called_in_head
from bookmaker.script.emit import layout
from bookmaker.script.emit.display import Display
from bookmaker.script.emit.layout import Piece
from bookmaker.script.emit.step import Step
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.comments import comments_around
from bookmaker.script.read.scopes import is_import, names_in
from bookmaker.script.read.source import Source, edits_for

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def pieces(cell: Cell, step: Step) -> list[Piece]:
    """The translation of a ``%%px`` cell."""
    if not step.lab.has_ranks or step.closed:
        why = "were closed in an earlier cell" if step.closed else "do not exist yet"
        raise cell.refuse(f"a `%%px` cell needs ranks, which {why}; make them with Ranks(4).")
    _refuse_kernel_only(cell, step)
    body = _body(cell, step)
    chosen = cell.targets.chosen is not None
    if not body:
        return []
    if not chosen and not cell.may_fail:
        first = _definitions(body)
        wait = step.before_cell_on_ranks(cell.tree) if first < len(body) else []
        return [*body[:first], *wait, *body[first:]]
    wait = step.before_cell_on_ranks(cell.tree)
    if cell.may_fail:
        body = [layout.block(f"with {step.use('may_fail')}():", body)]
    if chosen:
        body = [layout.block(f"if {cell.targets.condition()}:", body)]
    return [*wait, *body]


def _definitions(body: list[Piece]) -> int:
    """How many definitions a cell begins with: nobody needs to wait before them."""
    return next((i for i, piece in enumerate(body) if not piece.defines), len(body))


def _body(cell: Cell, step: Step) -> list[Piece]:
    source = Source(cell.body)
    display = Display(step, source)
    out, pending, body = [], [], cell.tree.body
    for index, node in enumerate(body):
        above, behind = comments_around(source, body, index)
        pending += above
        if is_import(node) and not cell.may_fail:
            continue
        edits = edits_for(node, source, display.replaced(cell, node))
        if index == len(body) - 1 and isinstance(node, ast.Expr):
            piece = display.last(cell, node, edits, everywhere=True)
        else:
            step.copied += [] if edits else [(cell, node)]
            piece = Piece(_copy(source, node, edits), True, defines=_only_defines(node, step))
        piece.above, piece.behind, pending = pending, behind, []
        out.append(piece)
    return out


def _only_defines(node: ast.stmt, step: Step) -> bool:
    """Whether a statement is a definition that has to do with no other code, now."""
    if not isinstance(node, _DEFINITIONS) or node.decorator_list:
        return False
    names, at_once = names_in(node), node.body if isinstance(node, ast.ClassDef) else [node.args]
    calls = any(isinstance(n, ast.Call) for part in at_once for n in _run_now(part))
    return not calls and not (names.binds | names.reads) & step.plan.apart


def _run_now(node: ast.AST) -> Iterator[ast.AST]:
    """What of a part of a definition runs when it is made: not the bodies of functions."""
    yield node
    inner = [node.args] if isinstance(node, _DEFINITIONS[:2]) else ast.iter_child_nodes(node)
    for child in inner:
        yield from _run_now(child)


def _copy(source: Source, node: ast.stmt, edits):
    return lambda indent: source.statement(node, indent, edits)


def _refuse_kernel_only(cell: Cell, step: Step) -> None:
    lab = step.lab
    heads = [called_in_head(n) for n in ast.walk(cell.tree) if isinstance(n, ast.With)]
    in_with = set().union(*heads)
    step.traced |= in_with & set(lab.views)
    for node in ast.walk(cell.tree):
        if not isinstance(node, ast.Name):
            continue
        if node.id == lab.ranks or node.id in lab.classes:
            raise cell.refuse(f"`{node.id}` lives in the kernel; a `%%px` cell cannot use it.")
        if node.id in lab.results:
            raise cell.refuse(
                f"`{node.id}` works in the kernel: pull the value, then write the result in a "
                "plain cell."
            )
        if node.id in lab.views and node.id not in in_with:
            raise cell.refuse(
                f"`{node.id}` is one of the lab's views; in a `%%px` cell it can only stand in "
                f"`with {node.id}() as t:`."
            )
        if step.plan.imports.names.get(node.id, "").split(".")[0] == "matplotlib":
            raise cell.refuse("draw in the kernel: pull what the ranks computed, and plot that.")
    for node in ast.walk(cell.tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="destroy_process_group"), args=[], keywords=[]):
                raise cell.refuse(
                    "`dist.destroy_process_group()` would also take the connections away that "
                    "the script pulls and pushes over; use ranks.reset() in a plain cell."
                )
