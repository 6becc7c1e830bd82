"""A cell's text, from which statements are copied as their author wrote them."""

import ast
import io
import tokenize
from typing import NamedTuple

from bookmaker.script.read import fstrings


class Edit(NamedTuple):
    """Put ``text`` in place of the bytes from ``start`` to ``end``."""

    start: int
    end: int
    text: str


class Source:
    """The text of a cell, addressed by the nodes of its syntax tree.

    The tree counts columns in bytes of UTF-8, so everything here does.
    """

    def __init__(self, text: str):
        self.bytes = text.encode()
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.strings = rows_inside_strings(text)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The first byte of a node, its decorators included, and the one behind it."""
        first = min([node, *getattr(node, "decorator_list", [])], key=lambda n: n.lineno)
        start = self.starts[first.lineno - 1] + first.col_offset
        if first is not node:
            start = self.bytes.rindex(b"@", 0, start)
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST, edits=()) -> str:
        """The text of one expression, edited."""
        start, end = self.span(node)
        return self._edited(start, end, edits)

    def whole(self, edits=()) -> str:
        """All of the text, edited."""
        return self._edited(0, len(self.bytes), edits)

    def edit(self, node: ast.AST, text: str) -> Edit:
        return Edit(*self.span(node), text)

    def statement(self, node: ast.stmt, indent: int, edits=()) -> str:
        """A statement, its first line without indentation, the others moved to ``indent``."""
        start, end = self.span(node)
        row = self._row(start)
        shift = indent - (start - self.starts[row])
        moves = [self._move(r, shift) for r in range(row + 1, self._row(end - 1) + 1)]
        taken = [(e.start, e.end) for e in edits]
        free = [
            move
            for move in moves
            if move and not any(s <= move.start < e for s, e in taken if s >= start)
        ]
        return self._edited(start, end, [*edits, *free])

    def between(self, after: int, before: int) -> tuple[str, list[str]]:
        """What stands between two statements: a comment on the line of the first, and the
        comment lines above the second."""
        first, *lines = self.bytes[after:before].decode().split("\n")
        lines = [line.strip() for line in lines]
        return first.strip().lstrip(";").strip(), lines[:-1] if lines else []

    def _row(self, offset: int) -> int:
        return max(r for r, start in enumerate(self.starts) if start <= offset)

    def _move(self, row: int, shift: int) -> Edit | None:
        """Indent one line by ``shift`` more, unless it is empty or inside a string."""
        start = self.starts[row]
        line = self.bytes[start : self.starts[row + 1]]
        if row + 1 in self.strings or not line.strip():
            return None
        if shift >= 0:
            return Edit(start, start, " " * shift)
        spaces = len(line) - len(line.lstrip(b" \t"))
        return Edit(start, start + min(-shift, spaces), "")

    def _edited(self, start: int, end: int, edits) -> str:
        text, at = b"", start
        inside = (e for e in edits if start <= e.start and e.end <= end)
        for edit in sorted(inside, key=lambda e: (e.start, -e.end)):
            if edit.start < at:
                continue  # inside of a larger edit
            text += self.bytes[at : edit.start] + edit.text.encode()
            at = edit.end
        return (text + self.bytes[at:end]).decode()


def rows_inside_strings(text: str) -> set[int]:
    """The lines (from 1) that begin inside a string: their spaces are its contents."""
    rows: set[int] = set()
    opened = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            rows.update(range(token.start[0] + 1, token.end[0] + 1))
        elif kind in ("FSTRING_START", "TSTRING_START"):
            opened.append(token.start[0])
        elif kind in ("FSTRING_END", "TSTRING_END"):
            rows.update(range(opened.pop() + 1, token.end[0] + 1))
    return rows


def edits_for(tree: ast.AST, source: Source, replaced) -> list[Edit]:
    """Edits that put texts in place of nodes: ``replaced`` holds pairs of both."""
    edits, pending = [], {id(node): (node, text) for node, text in replaced}
    for string in fstrings.outermost(tree):
        inside = {id(node) for node in ast.walk(string)} & set(pending)
        if inside:
            new = {key: pending.pop(key)[1] for key in inside}
            edits.append(
                source.edit(string, fstrings.replaced(string, source.text(string), new, _written))
            )
    edits += [source.edit(node, text) for node, text in pending.values()]
    return edits


def _written(tree: ast.AST, text: str, replaced) -> str:
    """An expression, parsed from this text, with nodes of it replaced."""
    source = Source(text)
    return source.whole(edits_for(tree, source, replaced))
