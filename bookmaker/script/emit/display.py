"""What a notebook shows by itself: last expressions, figures, the lab's views."""

import ast

from bookmaker.script.analyse.imports import DRAWING
from bookmaker.script.analyse.lab import called_in_head
from bookmaker.script.analyse.operations import Operation
from bookmaker.script.emit import layout
from bookmaker.script.emit.layout import Piece
from bookmaker.script.emit.step import Step
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import names_in
from bookmaker.script.read.source import Edit, Source, edits_for

_DRAWING_METHODS = {"plot", "hist", "scatter", "imshow", "bar", "barh", "boxplot", "pie", "step"}
_DRAWING_METHODS |= {"errorbar", "fill_between", "matshow"}
# Of torch.distributed, in their blocking form.
_RETURN_NOTHING = {"all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "barrier"}
_RETURN_NOTHING |= {"broadcast", "gather", "reduce", "reduce_scatter", "scatter", "send"}


class Display:
    """Puts the script's own way of showing in place of the notebook's."""

    def __init__(self, step: Step, source: Source):
        self.step, self.lab, self.source = step, step.lab, source

    def last(self, cell: Cell, node: ast.Expr, edits: list[Edit], everywhere: bool) -> Piece:
        """The last expression of a cell, which a notebook displays."""
        copied = lambda indent: self.source.statement(node, indent, edits)  # noqa: E731
        if cell.silent or self._gives_nothing(node.value):
            return Piece(copied, everywhere)
        show = self.step.use("show")
        more = ", rank" if cell.on_ranks else ""
        left, right = ("", "") if _is_one_argument(copied(0), more) else ("(", ")")

        def render(indent: int) -> str:
            return f"{show}({left}{copied(indent)}{right}{more})"

        return Piece(render, everywhere)

    def _gives_nothing(self, value: ast.expr) -> bool:
        match value:
            case ast.Call(func=ast.Name(id=name)):
                return name in {"print", "display"} | self.lab.results
            case ast.Call(func=ast.Attribute(value=ast.Name(id="dist"), attr=call), keywords=more):
                return call in _RETURN_NOTHING and "async_op" not in {k.arg for k in more}
        return self._shows_figures(value)

    def _shows_figures(self, node: ast.AST) -> bool:
        """Whether this is ``plt.show()``."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="show")):
                return self.step.plan.imports.names.get(owner) == "matplotlib.pyplot"
        return False

    def replaced(self, cell: Cell, node: ast.AST) -> list[tuple[ast.expr, str]]:
        """``plt.show()`` and ``display(...)``, with what the script calls instead."""
        found = []
        for inner in ast.walk(node):
            match inner:
                case ast.Call() if self._shows_figures(inner):
                    found.append((inner, f"{self.step.use('save_figures')}()"))
                case ast.Name(id="display") if "display" not in self.step.plan.imports.names:
                    found.append((inner, self.step.use("display")))
        return found

    def after(self, cell: Cell) -> list[Piece]:
        """At the end of a cell that draws: its figures go to files."""
        drawing, body = draws(cell, self.step), cell.tree.body
        saved = body and isinstance(body[-1], ast.Expr) and self._shows_figures(body[-1].value)
        if not drawing or saved:
            return []
        return [layout.line(f"{self.step.use('save_figures')}()", everywhere=False)]

    def view(self, cell: Cell, node: ast.stmt, operations: list[Operation], edits=None):
        """A statement that shows one of the lab's views, or None."""
        views = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & self.lab.shown
        where = [op for op in operations if op.kind == "where"]
        if isinstance(node, ast.With) and not where:
            traced = called_in_head(node) & views
            self.step.traced |= traced
            views -= traced
        if not views and not where:
            return None
        if where and isinstance(node, ast.Expr) and node.value is where[0].node:
            return layout.line(f'{self.step.use("left_out")}("ranks.where()")()', everywhere=False)
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name in self.lab.shown:
                if not where and len(views) == 1:
                    edits = (
                        edits
                        if edits is not None
                        else edits_for(node, self.source, self.replaced(cell, node))
                    )
                    return self.last(cell, node, edits, everywhere=False)
        name = "ranks.where()" if where else sorted(views)[0]
        raise cell.refuse(
            f"`{name}` is one of the lab's views, which a script may have to leave out: show it "
            "on a line of its own, and use its value nowhere else."
        )


def _is_one_argument(text: str, more: str) -> bool:
    """Whether a text, put before ``more`` in a call, is one argument and all of the value."""
    try:
        call = ast.parse(f"f({text}{more})", mode="eval").body
        value = ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        return False
    first, *others = call.args
    return ast.dump(first) == ast.dump(value) and len(others) == bool(more) and not call.keywords


def draws(cell: Cell, step: Step) -> bool:
    """Whether a plain cell may draw with matplotlib; remembers the names that do."""
    drawing = False
    for node in cell.tree.body:
        names = names_in(node)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if (names.later | names.reads) & step.draws:
                step.draws.add(node.name)
            continue
        if names.reads & step.draws or (step.draws and _calls_a_drawing_method(node)):
            drawing = True
            step.draws |= names.binds
    return drawing


def names_that_draw(names: dict[str, str]) -> set[str]:
    """The imported names that draw."""
    return {name for name, source in names.items() if source.startswith(DRAWING)}


def _calls_a_drawing_method(node: ast.AST) -> bool:
    return any(
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr in _DRAWING_METHODS
        for inner in ast.walk(node)
    )
