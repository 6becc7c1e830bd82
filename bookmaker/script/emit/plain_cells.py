"""Plain cells: what runs on rank 0 alone, and what all ranks take part in."""

import ast

from bookmaker.script.analyse.operations import (
    COMPOUND,
    SCOPES,
    Finder,
    Operation,
    refuse_inside,
    refuse_sometimes,
)
from bookmaker.script.emit import layout
from bookmaker.script.emit.branches import Branches
from bookmaker.script.emit.display import Display
from bookmaker.script.emit.gather_and_broadcast import Expressions
from bookmaker.script.emit.layout import Piece
from bookmaker.script.emit.step import Step
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.comments import comments_around
from bookmaker.script.read.scopes import is_import, names_in
from bookmaker.script.read.source import Edit, Source, edits_for


class Kernel:
    """Translates the statements of one plain cell."""

    def __init__(self, cell: Cell, step: Step):
        self.cell, self.step, self.lab = cell, step, step.lab
        self.source = Source(cell.body)
        self.finder = Finder(cell, step.lab)
        self.display = Display(step, self.source)
        self.write = Expressions(step, self.source, self.finder)
        self.branches = Branches(self)

    def pieces(self) -> list[Piece]:
        body = self.cell.tree.body
        if self.cell.may_fail:
            return self._failing(body)
        return self.statements(body, top=True) + self.display.after(self.cell)

    # ---- statements -------------------------------------------------------------------

    def statements(self, body: list[ast.stmt], top: bool = False) -> list[Piece]:
        """The pieces of a body; ``top``: it is the whole cell."""
        pieces, pending = [], []
        for index, node in enumerate(body):
            above, behind = comments_around(self.source, body, index)
            pending += above
            if top and is_import(node):
                continue
            last = top and index == len(body) - 1
            new = self._statement(node, last)
            if new:
                while not pieces and pending and not pending[0]:
                    pending.pop(0)
                new[-1].behind = new[-1].behind or behind
                new[0].above = pending + new[0].above
                pending = []
            pieces += new
        if top and pending:
            tail = [layout.line("", everywhere=True, above=pending)]
            pieces += tail if any(pending) else []
        return pieces

    def _statement(self, node: ast.stmt, last: bool) -> list[Piece]:
        if self.lab.makes_ranks(node):
            return []
        self._refuse_after_close(node)
        if self.finder.shows_ranks(node):
            if not last or self.cell.silent:
                return []
            return [layout.line('print(f"{world_size} ranks")', everywhere=False)]
        if isinstance(node, ast.Break | ast.Continue):
            return [Piece(self._copy(node, []), everywhere=True)]
        operations = self.finder.within(node)
        if not any(op.collective for op in operations) and not self.branches.leaves_loop(node):
            return self._alone(node, operations, last)
        if isinstance(node, (*COMPOUND, *SCOPES)):
            return self.branches.compound(node, operations)
        for op in operations:
            refuse_sometimes(self.cell, op)
        return self.simple(node, operations, last)

    def _alone(self, node: ast.stmt, operations: list[Operation], last: bool) -> list[Piece]:
        """A statement for rank 0; a definition that needs nothing of the kernel's for all."""
        if id(node) in self.step.plan.inherited:
            return self._for_all(node)
        view = self.display.view(self.cell, node, operations)
        if view:
            return [*self.step.before_kernel(node), view]
        edits = self._edits(node, operations)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            everywhere = node.name in self.step.plan.defined_everywhere
            piece = Piece(self._copy(node, edits), everywhere, defines=True)
            return [piece] if everywhere else [*self.step.before_kernel(node), piece]
        wait = self.step.before_kernel(node)
        if last and isinstance(node, ast.Expr):
            return [*wait, self.display.last(self.cell, node, edits, everywhere=False)]
        return [*wait, Piece(self._copy(node, edits), everywhere=False)]

    def _for_all(self, node: ast.stmt) -> list[Piece]:
        """A setting that the notebook's ranks inherit from the kernel."""
        wait = []
        if isinstance(node, ast.Expr):  # rank 0 may first have to make the folder
            wait = [layout.line(f"{self.step.use('everyone')}()", everywhere=True)]
        return [*wait, Piece(self._copy(node, []), everywhere=True)]

    def _copy(self, node: ast.stmt, edits: list[Edit]):
        if not edits:
            self.step.copied.append((self.cell, node))
        return lambda indent: self.source.statement(node, indent, edits)

    def _edits(self, node: ast.AST, operations: list[Operation]) -> list[Edit]:
        sizes = [(op.node, "world_size") for op in operations if op.kind == "size"]
        return edits_for(node, self.source, sizes + self.display.replaced(self.cell, node))

    # ---- statements that all ranks take part in -------------------------------------------

    def simple(self, node: ast.stmt, operations: list[Operation], last: bool) -> list[Piece]:
        """A statement whose operations on the ranks can be done before it, or are all of it."""
        push = next((op for op in operations if op.kind == "push"), None)
        if push:
            return self._push(node, push, operations)
        value = getattr(node, "value", None)
        direct = operations[-1] if operations[-1].node is value else None
        if direct and direct.kind in ("reset", "close"):
            return self._group(node, direct)
        refuse_inside(self.cell, operations)
        self._refuse_late_arguments(node, operations)
        whole = direct if self._takes_whole(node, direct, last) else None
        pieces, replaced = self.hoisted(operations, whole)
        if whole:
            text = self.write.call(whole, replaced)
            edits = edits_for(node, self.source, [(whole.node, text)])
            return [*pieces, Piece(self._copy(node, edits), everywhere=True)]
        edits = edits_for(node, self.source, replaced + self.display.replaced(self.cell, node))
        view = self.display.view(self.cell, node, operations, edits)
        pieces += self.step.before_kernel(node)
        if view:
            return [*pieces, view]
        if last and isinstance(node, ast.Expr):
            return [*pieces, self.display.last(self.cell, node, edits, everywhere=False)]
        return [*pieces, Piece(self._copy(node, edits), everywhere=False)]

    def _takes_whole(self, node: ast.stmt, direct: Operation | None, last: bool) -> bool:
        """Whether ``xs = ranks["x"]`` can stay one statement that all ranks run."""
        if direct is None or direct.kind not in ("pull", "run"):
            return False
        if isinstance(node, ast.Expr):
            return not last or self.cell.silent
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        hint = getattr(node, "annotation", None)
        if hint and not names_in(hint).reads <= self.step.plan.known_everywhere:
            return False
        return isinstance(node, ast.Assign | ast.AnnAssign) and all(
            isinstance(target, ast.Name) and target.id not in self.step.plan.apart
            for target in targets
        )

    def hoisted(self, operations: list[Operation], whole=None):
        """A statement for each operation, which keeps its value; and what stands in its place."""
        pieces, replaced, counts = [], [], {}
        for op in operations:
            if op.kind == "size":
                replaced.append((op.node, "world_size"))
                continue
            pieces += self._wait_before(op)
            if op is whole:
                continue
            name = self.write.temporary(op, counts)
            pieces.append(layout.line(f"{name} = {self.write.call(op, replaced)}", everywhere=True))
            replaced.append((op.node, name))
        return pieces, replaced

    def _wait_before(self, op: Operation) -> list[Piece]:
        if op.kind == "pull":
            self.step.pulled()
            return (
                self.step.play("ranks", ast.Name(op.name))
                if op.name in self.step.plan.apart
                else []
            )
        pushed = self.write.sends_arguments(op)
        wait = self.step.before_run(pushed, op.node)
        self.step.pulled()
        return wait

    def _push(self, node: ast.stmt, push: Operation, operations) -> list[Piece]:
        if not isinstance(node, ast.Assign) or node.targets != [push.node]:
            raise self.cell.refuse(
                f'write `ranks["{push.name}"] = value` as a statement of its own: one name, `=`, '
                "and one value."
            )
        others = [op for op in operations if op is not push]
        refuse_inside(self.cell, others)
        self._refuse_late_arguments(node, others)
        name, value = push.name, node.value
        everywhere = self.step.plan.known_everywhere
        if isinstance(value, ast.Name) and value.id == name and name in everywhere:
            return []  # all ranks have it already
        pieces, replaced = self.hoisted(others)
        if self.write.is_plain(value) and name not in self.step.plan.apart:
            text = self.write.standing(value, replaced)
            return [*pieces, layout.line(f"{name} = {text}", everywhere=True)]
        pieces += self.step.before_kernel(value)
        text = self.write.argument(value, replaced)
        self.step.pushed()
        if name in self.step.plan.apart or self.step.plan.apart_code:
            give = f'{self.step.use("push")}("{name}", lambda: {text})'
        else:
            give = f"{name} = {self.step.use('from_rank_0')}(lambda: {text})"
        return [*pieces, layout.line(give, everywhere=True)]

    def _group(self, node: ast.stmt, op: Operation) -> list[Piece]:
        if not isinstance(node, ast.Expr):
            raise self.cell.refuse(f"`ranks.{op.kind}()` is a statement of its own.")
        if op.kind == "close":
            if self.step.closed:
                return []  # a second time does nothing
            self.step.close(self.cell)
            leave = self.step.use("leave_group")
            return [layout.line(f"{leave}()", everywhere=True)]
        self.step.reset()
        return [layout.line(f"{self.step.use('fresh_group')}()", everywhere=True)]

    # ---- cells that are made to fail -------------------------------------------------------

    def _failing(self, body: list[ast.stmt]) -> list[Piece]:
        for node in body:
            for op in self.finder.within(node):
                if op.collective:
                    raise self.cell.refuse(
                        "a cell that may fail cannot also pull, push or run: where rank 0 "
                        "stopped, the others would wait for ever. Fail in a %%px cell, or tag "
                        "this cell `notebook-only`."
                    )
        pieces = self.step.before_kernel(*body)
        inner = []
        for index, node in enumerate(body):
            above, behind = comments_around(self.source, body, index)
            edits = self._edits(node, self.finder.within(node))
            last = index == len(body) - 1
            if last and isinstance(node, ast.Expr):
                piece = self.display.last(self.cell, node, edits, everywhere=False)
            else:
                piece = Piece(self._copy(node, edits), everywhere=False)
            piece.above, piece.behind, piece.everywhere = above, behind, True
            inner.append(piece)
        head = layout.block(f"with {self.step.use('may_fail')}():", inner)
        head.everywhere = False
        return [*pieces, head, *self.display.after(self.cell)]

    # ---- refusals -----------------------------------------------------------------------

    def _refuse_after_close(self, node: ast.stmt) -> None:
        operations = self.finder.within(node)
        if isinstance(node, ast.Expr) and [op.kind for op in operations] == ["close"]:
            return
        if self.step.closed and any(op.kind != "size" for op in operations):
            raise self.cell.refuse(
                "the ranks were closed in an earlier cell; ranks.close() is the end of them."
            )

    def _refuse_late_arguments(self, node: ast.stmt, operations: list[Operation]) -> None:
        """Hoisting a run before a call to its left would give it other arguments."""
        for op in operations:
            if op.kind != "run" or not self.write.sends_arguments(op):
                continue
            own = {id(n) for o in operations for n in ast.walk(o.node)}
            start, _ = self.source.span(op.node)
            for other in ast.walk(node):
                early = isinstance(other, ast.Call | ast.NamedExpr) and id(other) not in own
                if early and self.source.span(other)[1] <= start:
                    raise self.cell.refuse(
                        f"`{ast.unparse(op.node)}` stands behind another call in one statement, "
                        "which may change its arguments; put it on a line of its own."
                    )
