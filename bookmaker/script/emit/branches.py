"""Loops and conditions of plain cells that all ranks must enter together."""

import ast

from bookmaker.script.analyse.operations import (
    SCOPES,
    Operation,
    refuse_inside,
    refuse_sometimes,
    sometimes,
)
from bookmaker.script.emit import layout
from bookmaker.script.emit.layout import Piece


class Branches:
    """Translates compound statements for a `plain_cells.Kernel`, which translates their bodies."""

    def __init__(self, kernel):
        self.kernel, self.cell, self.step = kernel, kernel.cell, kernel.step
        self.source, self.finder, self.write = kernel.source, kernel.finder, kernel.write

    def compound(self, node: ast.stmt, operations: list[Operation]) -> list[Piece]:
        """A loop or condition with operations on the ranks in it."""
        self.step.nested += 1
        pieces = self._compound(node, operations)
        self.step.nested -= 1
        return pieces

    def _compound(self, node: ast.stmt, operations: list[Operation]) -> list[Piece]:
        if self._only_head_pulls(node):
            for op in self.finder.within(node.iter if isinstance(node, ast.For) else node.test):
                refuse_sometimes(self.cell, op)
            return self.kernel.simple(node, operations, last=False)
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
        raise self.cell.refuse(sometimes(operations, what))

    def _only_head_pulls(self, node: ast.stmt) -> bool:
        """Whether rank 0 can do the loop or condition alone, once its head's values are there."""
        if not isinstance(node, ast.For | ast.If):
            return False
        inside = [*node.body, *node.orelse]
        collective = (op.collective for part in inside for op in self.finder.within(part))
        return not any(collective) and not self.leaves_loop(node)

    def _for(self, node: ast.For) -> list[Piece]:
        head = self.finder.within(node.iter) + self.finder.within(node.target)
        for op in head:
            refuse_sometimes(self.cell, op)
        if self.finder.within(node.target):
            raise self.cell.refuse("a `for` loop cannot push; push inside of its body.")
        refuse_inside(self.cell, head)
        pieces, replaced = self.kernel.hoisted(head)
        target = self.source.text(node.target)
        names_only = not any(
            isinstance(n, ast.Attribute | ast.Subscript) for n in ast.walk(node.target)
        )
        if self.write.is_plain(node.iter) and names_only and not self._is_apart(node.target):
            text = self.write.standing(node.iter, replaced)
            return pieces + self._loop(f"for {target} in {text}:", [], node)
        share, text = self.step.use("in_step"), self.write.argument(node.iter, replaced)
        pieces += self.step.before_kernel(node.iter)
        if isinstance(node.target, ast.Name) and not self._is_apart(node.target):
            return pieces + self._loop(f"for {target} in {share}(lambda: {text}):", [], node)
        item = self.write.free("item")
        self.step.unknown()
        unpack = [*self.step.play("kernel", node.target), layout.line(f"{target} = {item}", False)]
        return pieces + self._loop(f"for {item} in {share}(lambda: {text}):", unpack, node)

    def _is_apart(self, target: ast.expr) -> bool:
        """Whether only the kernel's variable may take what a loop goes over."""
        return any(
            isinstance(n, ast.Name) and n.id in self.step.plan.apart for n in ast.walk(target)
        )

    def _while(self, node: ast.While) -> list[Piece]:
        for op in self.finder.within(node.test):
            if op.collective:
                raise self.cell.refuse(sometimes([op], "the test of a `while`"))
        return self._loop(f"while {self._test(node.test, [])}:", [], node)

    def _loop(self, head: str, first: list[Piece], node) -> list[Piece]:
        self.step.unknown()
        self.step.loops += 1
        body = first + self.kernel.statements(node.body)
        self.step.loops -= 1
        self.step.unknown()
        pieces = [layout.block(head, body)]
        if node.orelse:
            pieces.append(layout.block("else:", self.kernel.statements(node.orelse), joined=True))
            self.step.unknown()
        return pieces

    def _if(self, node: ast.If, word: str = "if") -> list[Piece]:
        head = self.finder.within(node.test)
        for op in head:
            refuse_sometimes(self.cell, op)
        refuse_inside(self.cell, head)
        pieces, replaced = self.kernel.hoisted(head)
        if not self.write.is_plain(node.test):
            pieces += self.step.before_kernel(node.test)
        pieces.append(layout.block(f"{word} {self._test(node.test, replaced)}:", []))
        state = self.step.state()
        pieces[-1].body = self.kernel.statements(node.body)
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
            pieces.append(layout.block("else:", self.kernel.statements(node.orelse), joined=True))
        self.step.merge(after)
        return pieces

    def _is_elif(self, node: ast.If) -> bool:
        start, _ = self.source.span(node.orelse[0])
        return self.source.bytes[start : start + 4] == b"elif"

    def _test(self, test: ast.expr, replaced) -> str:
        if self.write.is_plain(test):
            return self.write.standing(test, replaced)
        self.write.refuse_naming(test)
        share = self.step.use("from_rank_0")
        self.step.pushed()
        return f"{share}(lambda: bool({self.write.text(test, replaced)}))"

    def leaves_loop(self, node: ast.stmt) -> bool:
        """Whether the statement may leave or continue a loop that all ranks are in."""
        return self.step.loops > 0 and _has_jump(node)


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
