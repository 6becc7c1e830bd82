"""Plain cells: what runs on rank 0 alone, and what all ranks take part in."""

import ast

from ranklab.forms.script import layout
from ranklab.forms.script.cells import Cell
from ranklab.forms.script.display import Display
from ranklab.forms.script.imports import edits_for, is_import
from ranklab.forms.script.layout import Piece
from ranklab.forms.script.operations import COMPOUND, SCOPES, Finder, Operation
from ranklab.forms.script.source import Edit, Source
from ranklab.forms.script.statements import comments_around
from ranklab.forms.script.step import Step


class Kernel:
    """Translates the statements of one plain cell."""

    def __init__(self, cell: Cell, step: Step):
        self.cell, self.step, self.lab = cell, step, step.lab
        self.source = Source(cell.body)
        self.finder = Finder(cell, step.lab)
        self.display = Display(step, self.source)
        self.temporaries: dict[str, int] = {}

    def pieces(self) -> list[Piece]:
        body = self.cell.tree.body
        if self.cell.may_fail:
            return self._failing(body)
        pieces = self._statements(body, top=True)
        return pieces + self.display.after(self.cell)

    # ---- statements -------------------------------------------------------------------

    def _statements(self, body: list[ast.stmt], top: bool = False) -> list[Piece]:
        pieces, pending = [], []
        for index, node in enumerate(body):
            above, behind = comments_around(self.source, body, index)
            pending += above
            if top and is_import(node):
                continue
            last = top and index == len(body) - 1
            new = self._statement(node, last, pending)
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

    def _statement(self, node: ast.stmt, last: bool, above: list[str]) -> list[Piece]:
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
        if not any(op.collective for op in operations) and not self._leaves_loop(node):
            return self._alone(node, operations, last)
        if isinstance(node, (*COMPOUND, *SCOPES)):
            return self._compound(node, operations)
        for op in operations:
            self._refuse_sometimes(op)
        return self._simple(node, operations, last)

    def _alone(self, node: ast.stmt, operations: list[Operation], last: bool) -> list[Piece]:
        """A statement for rank 0; a definition that needs nothing of the kernel's for all."""
        view = self.display.view(self.cell, node, operations)
        if view:
            return [*self.step.before_kernel(), view]
        edits = self._edits(node, operations)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            everywhere = node.name in self.step.defined_everywhere
            piece = Piece(self._copy(node, edits), everywhere, defines=True)
            return [piece] if everywhere else [*self.step.before_kernel(), piece]
        wait = self.step.before_kernel()
        if last and isinstance(node, ast.Expr):
            return [*wait, self.display.last(self.cell, node, edits, everywhere=False)]
        return [*wait, Piece(self._copy(node, edits), everywhere=False)]

    def _copy(self, node: ast.stmt, edits: list[Edit]):
        if not edits:
            self.step.copied.append((self.cell, node))
        return lambda indent: self.source.statement(node, indent, edits)

    def _edits(self, node: ast.AST, operations: list[Operation]) -> list[Edit]:
        sizes = [(op.node, "world_size") for op in operations if op.kind == "size"]
        return edits_for(node, self.source, sizes + self.display.replaced(self.cell, node))

    # ---- statements that all ranks take part in -------------------------------------------

    def _simple(self, node: ast.stmt, operations: list[Operation], last: bool) -> list[Piece]:
        push = next((op for op in operations if op.kind == "push"), None)
        if push:
            return self._push(node, push, operations)
        value = getattr(node, "value", None)
        direct = operations[-1] if operations[-1].node is value else None
        if direct and direct.kind in ("reset", "close"):
            return self._group(node, direct)
        self._refuse_inside(operations)
        self._refuse_late_arguments(node, operations)
        whole = direct if self._takes_whole(node, direct, last) else None
        pieces, replaced = self._hoisted(operations, whole)
        if whole:
            text = self._call(whole, replaced)
            edits = edits_for(node, self.source, [(whole.node, text)])
            return [*pieces, Piece(self._copy(node, edits), everywhere=True)]
        edits = edits_for(node, self.source, replaced + self.display.replaced(self.cell, node))
        view = self.display.view(self.cell, node, operations, edits)
        pieces += self.step.before_kernel()
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
        return isinstance(node, ast.Assign | ast.AnnAssign) and all(
            isinstance(target, ast.Name) for target in targets
        )

    def _hoisted(self, operations: list[Operation], whole=None):
        """A statement for each operation, which keeps its value; and what stands in its place."""
        pieces, replaced = [], []
        self.temporaries = {}
        for op in operations:
            if op.kind == "size":
                replaced.append((op.node, "world_size"))
                continue
            pieces += self._wait_before(op)
            if op is whole:
                continue
            name = self._temporary(op)
            pieces.append(layout.line(f"{name} = {self._call(op, replaced)}", everywhere=True))
            replaced.append((op.node, name))
        return pieces, replaced

    def _wait_before(self, op: Operation) -> list[Piece]:
        if op.kind == "pull":
            self.step.pulled()
            return []
        pushed = self._sends_arguments(op)
        wait = self.step.before_run(pushed)
        self.step.pulled()
        return wait

    def _call(self, op: Operation, replaced) -> str:
        gather = self.step.use("to_rank_0")
        if op.kind == "pull":
            return f"{gather}({op.name})"
        return f"{gather}({self._run(op, replaced)})"

    def _run(self, op: Operation, replaced) -> str:
        """The call that every rank makes, its arguments rank 0's."""
        callee, *arguments = op.node.args
        text = self._text(callee, replaced)
        if not self._callable_everywhere(callee):
            text = f"{self.step.use('from_rank_0')}(lambda: {text})"
        elif isinstance(callee, ast.Lambda):
            text = f"({text})"
        keywords = op.node.keywords
        plain = all(self.is_plain(a) for a in [*arguments, *(k.value for k in keywords)])
        if plain:
            given = [self._text(a, replaced) for a in arguments]
            given += [f"{k.arg}={self._text(k.value, replaced)}" for k in keywords]
            return f"{text}({', '.join(given)})"
        share, given = self.step.use("from_rank_0"), []
        if len(arguments) == 1 and not isinstance(arguments[0], ast.Starred):
            given.append(f"{share}(lambda: {self._text(arguments[0], replaced)})")
        elif arguments:
            inner = ", ".join(self._text(a, replaced) for a in arguments)
            inner += "," if len(arguments) == 1 else ""
            given.append(f"*{share}(lambda: ({inner}))")
        if keywords:
            inner = ", ".join(
                (f"{k.arg}=" if k.arg else "**") + self._text(k.value, replaced) for k in keywords
            )
            given.append(f"**{share}(lambda: dict({inner}))")
        return f"{text}({', '.join(given)})"

    def _sends_arguments(self, op: Operation) -> bool:
        callee, *arguments = op.node.args
        values = [*arguments, *(k.value for k in op.node.keywords)]
        return not self._callable_everywhere(callee) or not all(map(self.is_plain, values))

    def _callable_everywhere(self, callee: ast.expr) -> bool:
        if isinstance(callee, ast.Lambda):
            return True
        root = callee
        while isinstance(root, ast.Attribute):
            root = root.value
        return isinstance(root, ast.Name) and root.id in self.step.known_everywhere

    def _push(self, node: ast.stmt, push: Operation, operations) -> list[Piece]:
        if not isinstance(node, ast.Assign) or node.targets != [push.node]:
            raise self.cell.refuse(
                f'write `ranks["{push.name}"] = value` as a statement of its own: one name, `=`, '
                "and one value."
            )
        others = [op for op in operations if op is not push]
        self._refuse_inside(others)
        self._refuse_late_arguments(node, others)
        name, value = push.name, node.value
        everywhere = self.step.known_everywhere
        if isinstance(value, ast.Name) and value.id == name and name in everywhere:
            return []  # all ranks have it already
        pieces, replaced = self._hoisted(others)
        if self.is_plain(value):
            text = self._text(value, replaced)
            return [*pieces, layout.line(f"{name} = {text}", everywhere=True)]
        pieces += self.step.before_kernel()
        share = self.step.use("from_rank_0")
        if any(isinstance(n, ast.NamedExpr) for n in ast.walk(value)):
            own = layout.line(f"{name} = {self._argument(value, replaced)}", everywhere=False)
            pieces, value_text = [*pieces, own], name
        else:
            value_text = self._argument(value, replaced)
        self.step.pushed()
        return [*pieces, layout.line(f"{name} = {share}(lambda: {value_text})", everywhere=True)]

    def _argument(self, value: ast.expr, replaced) -> str:
        """The text of a value that may stand after ``lambda:`` in a call."""
        text = self._text(value, replaced)
        try:
            inner = ast.parse(f"f(lambda: {text})", mode="eval").body
            bare = isinstance(value, ast.Tuple | ast.NamedExpr)
            if len(inner.args) == 1 and not bare:
                return text
        except SyntaxError:
            pass
        return text if text.startswith("(") and isinstance(value, ast.Tuple) else f"({text})"

    def _group(self, node: ast.stmt, op: Operation) -> list[Piece]:
        if not isinstance(node, ast.Expr):
            raise self.cell.refuse(f"`ranks.{op.kind}()` is a statement of its own.")
        if op.kind == "close":
            self.step.close(self.cell)
            leave = self.step.use("leave_group")
            return [layout.line(f"{leave}()", everywhere=True)]
        self.step.reset()
        return [layout.line(f"{self.step.use('fresh_group')}()", everywhere=True)]

    def _temporary(self, op: Operation) -> str:
        base = op.name if op.kind == "pull" else _function_name(op.node.args[0])
        name = f"{base}_by_rank"
        while name in self.step.all_names:
            name += "_"
        count = self.temporaries[name] = self.temporaries.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def _text(self, node: ast.expr, replaced) -> str:
        inside = {id(n) for n in ast.walk(node)}
        mine = [(n, text) for n, text in replaced if id(n) in inside]
        sizes = [(op.node, "world_size") for op in self.finder.within(node) if op.kind == "size"]
        known = {id(n) for n, _ in mine}
        mine += [(n, text) for n, text in sizes if id(n) not in known]
        return self.source.text(node, edits_for(node, self.source, mine))

    def is_plain(self, node: ast.expr) -> bool:
        """Whether every rank can work the value out by itself: literals and the world size."""
        return is_plain(node, self.finder)

    # ---- loops and conditions ----------------------------------------------------------

    def _compound(self, node: ast.stmt, operations: list[Operation]) -> list[Piece]:
        if self._only_head_pulls(node):
            for op in self.finder.within(node.iter if isinstance(node, ast.For) else node.test):
                self._refuse_sometimes(op)
            return self._simple(node, operations, last=False)
        if isinstance(node, ast.For):
            return self._for(node)
        if isinstance(node, ast.While):
            return self._while(node)
        if isinstance(node, ast.If):
            return self._if(node)
        what = next((op.sometimes for op in operations if op.collective and op.sometimes), "")
        if not what:  # a break that belongs to a loop all ranks are in
            raise self.cell.refuse(
                "`break` or `continue` inside `with`, `try` or `match`, in a loop that all ranks "
                "take part in: set a flag there, and leave the loop in an `if` after it."
            )
        raise self.cell.refuse(_sometimes(operations, what))

    def _only_head_pulls(self, node: ast.stmt) -> bool:
        """Whether rank 0 can do the loop or condition alone, once its head's values are there."""
        if not isinstance(node, ast.For | ast.If):
            return False
        inside = [*node.body, *node.orelse]
        collective = (op.collective for part in inside for op in self.finder.within(part))
        return not any(collective) and not self._leaves_loop(node)

    def _for(self, node: ast.For) -> list[Piece]:
        head = self.finder.within(node.iter) + self.finder.within(node.target)
        for op in head:
            self._refuse_sometimes(op)
        if self.finder.within(node.target):
            raise self.cell.refuse("a `for` loop cannot push; push inside of its body.")
        self._refuse_inside(head)
        pieces, replaced = self._hoisted(head)
        target = self.source.text(node.target)
        if self.is_plain(node.iter):
            text = self._text(node.iter, replaced)
            return pieces + self._loop(f"for {target} in {text}:", [], node)
        share, text = self.step.use("in_step"), self._argument(node.iter, replaced)
        pieces += self.step.before_kernel()
        if isinstance(node.target, ast.Name):
            return pieces + self._loop(f"for {target} in {share}(lambda: {text}):", [], node)
        item = "item"
        while item in self.step.all_names:
            item += "_"
        unpack = layout.line(f"{target} = {item}", everywhere=False)
        return pieces + self._loop(f"for {item} in {share}(lambda: {text}):", [unpack], node)

    def _while(self, node: ast.While) -> list[Piece]:
        for op in self.finder.within(node.test):
            if op.collective:
                raise self.cell.refuse(_sometimes([op], "the test of a `while`"))
        return self._loop(f"while {self._test(node.test, [])}:", [], node)

    def _loop(self, head: str, first: list[Piece], node) -> list[Piece]:
        self.step.unknown()
        self.step.loops += 1
        body = first + self._statements(node.body)
        self.step.loops -= 1
        self.step.unknown()
        pieces = [layout.block(head, body)]
        if node.orelse:
            pieces.append(layout.block("else:", self._statements(node.orelse), joined=True))
            self.step.unknown()
        return pieces

    def _if(self, node: ast.If, word: str = "if") -> list[Piece]:
        head = self.finder.within(node.test)
        for op in head:
            self._refuse_sometimes(op)
        self._refuse_inside(head)
        pieces, replaced = self._hoisted(head)
        if not self.is_plain(node.test):
            pieces += self.step.before_kernel()
        pieces.append(layout.block(f"{word} {self._test(node.test, replaced)}:", []))
        state = self.step.state()
        pieces[-1].body = self._statements(node.body)
        after, _ = self.step.state(), self.step.restore(state)
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If) and self._is_elif(node):
            inner = self._if(node.orelse[0])
            if len([p for p in inner if not p.joined]) == 1:
                inner[0].render = _else_if(inner[0].render)
                inner[0].joined = True
                pieces += inner
            else:
                pieces.append(layout.block("else:", inner, joined=True))
        elif node.orelse:
            pieces.append(layout.block("else:", self._statements(node.orelse), joined=True))
        self.step.merge(after)
        return pieces

    def _is_elif(self, node: ast.If) -> bool:
        start, _ = self.source.span(node.orelse[0])
        return self.source.bytes[start : start + 4] == b"elif"

    def _test(self, test: ast.expr, replaced) -> str:
        if self.is_plain(test):
            return self._text(test, replaced)
        share = self.step.use("from_rank_0")
        self.step.pushed()
        return f"{share}(lambda: bool({self._text(test, replaced)}))"

    def _leaves_loop(self, node: ast.stmt) -> bool:
        """Whether the statement may leave or continue a loop that all ranks are in."""
        return self.step.loops > 0 and _has_jump(node)

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
        pieces = self.step.before_kernel()
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
        if self.step.closed and any(op.kind != "size" for op in self.finder.within(node)):
            raise self.cell.refuse(
                "the ranks were closed in an earlier cell; ranks.close() is the end of them."
            )

    def _refuse_sometimes(self, op: Operation) -> None:
        if op.collective and op.sometimes:
            raise self.cell.refuse(_sometimes([op], op.sometimes))

    def _refuse_inside(self, operations: list[Operation]) -> None:
        for op in operations:
            if op.kind in ("reset", "close", "push", "where"):
                raise self.cell.refuse(f"`ranks.{op.kind}` is a statement of its own.")

    def _refuse_late_arguments(self, node: ast.stmt, operations: list[Operation]) -> None:
        """Hoisting a run before a call to its left would give it other arguments."""
        for op in operations:
            if op.kind != "run" or not self._sends_arguments(op):
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


def _has_jump(node: ast.AST) -> bool:
    if isinstance(node, ast.Break | ast.Continue):
        return True
    if isinstance(node, ast.For | ast.While):
        return any(map(_has_jump, node.orelse))
    if isinstance(node, SCOPES):
        return False
    return any(map(_has_jump, ast.iter_child_nodes(node)))


def _else_if(render):
    return lambda indent: "el" + render(indent)


def _function_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return "values"


def _sometimes(operations: list[Operation], what: str) -> str:
    op = next(op for op in operations if op.collective)
    text = ast.unparse(op.node)
    return (
        f"`{text}` stands in {what}, where it may run never or many times, and not on all ranks "
        'alike. Put it on a line before, as in `xs = ranks["x"]`, and use the name here.'
    )


def is_plain(node: ast.expr, finder: Finder) -> bool:
    """Literals, arithmetic and comparisons on them, ``range`` of them, and the world size."""
    match node:
        case ast.Constant():
            return True
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return all(is_plain(part, finder) for part in parts)
        case ast.Dict(keys=keys, values=values):
            return all(key and is_plain(key, finder) for key in [*keys]) and all(
                is_plain(value, finder) for value in values
            )
        case ast.UnaryOp(operand=operand):
            return is_plain(operand, finder)
        case ast.BinOp(left=left, right=right):
            return is_plain(left, finder) and is_plain(right, finder)
        case ast.BoolOp(values=values):
            return all(is_plain(value, finder) for value in values)
        case ast.Compare(left=left, comparators=others):
            return all(is_plain(part, finder) for part in [left, *others])
        case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]):
            return all(is_plain(arg, finder) for arg in args)
        case ast.Call() | ast.Attribute():
            found = finder.operation(node)
            return bool(found) and found.kind == "size"
    return False
