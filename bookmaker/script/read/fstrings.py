"""F-strings: put other texts in place of expressions between their braces."""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

_TREE_KNOWS_PLACES = sys.version_info >= (3, 12)


class Unwritable(Exception):
    """Something for which there is no text; the message says what to write instead."""


class Field(NamedTuple):
    """Where in a text an expression between braces stands; label: whether ``=`` follows.

    ``after`` is where the expression, and its ``=``, are over.
    """

    start: int
    end: int
    after: int
    label: bool


def outermost(node: ast.AST) -> Iterator[ast.JoinedStr]:
    """The f-strings in a tree that stand in no other f-string."""
    if isinstance(node, ast.JoinedStr):
        yield node
    else:
        for child in ast.iter_child_nodes(node):
            yield from outermost(child)


def replaced(string: ast.JoinedStr, text: str, new: dict[int, str], write) -> str:
    """The text of an f-string with other texts for some of its nodes.

    new: ``id`` of a node -> its text. write(tree, text, pairs): the text of an expression, of
    which ``tree`` is parsed, with ``pairs`` of nodes and texts replaced.
    """
    values = list(_values(string))
    fields = list(_by_tree(values, string, text) if _TREE_KNOWS_PLACES else _by_text(text))
    if len(fields) != len(values):
        raise Unwritable(f"the f-string {text} cannot be read; take the ranks out of it.")
    for value, field in reversed(list(zip(values, fields, strict=True))):
        mine = _own_nodes(value.value)
        if not any(id(node) in new for node in mine):
            continue
        old = text[field.start : field.end]
        tree = ast.parse(f"({old})", mode="eval").body
        again = _own_nodes(tree)
        if ast.dump(tree) != ast.dump(value.value) or len(again) != len(mine):
            raise Unwritable(f"`{old}` cannot be replaced in an f-string; keep it in a variable.")
        pairs = [(n, new[id(node)]) for node, n in zip(mine, again, strict=True) if id(node) in new]
        written = write(tree, f"({old})", pairs)[1:-1]
        if field.label:
            text = _labeled(text, field, written, string)
        else:
            text = text[: field.start] + written + text[field.end :]
    return text


def _labeled(text: str, field: Field, written: str, string: ast.JoinedStr) -> str:
    """``{old=}`` as ``old={written!r}``: the label stays the author's."""
    label = text[field.start : field.after].replace("{", "{{").replace("}", "}}")
    quote = re.match(r"\w*(\"\"\"|'''|\"|')", text)[1]
    if "\\" in label or quote in label or label.lstrip() != label:
        raise Unwritable(f"`{{{label}}}` cannot be written in a script; write the label yourself.")
    conversion = "!r" if text[field.after] == "}" else ""
    return f"{text[: field.start - 1]}{label}{{{written}{conversion}{text[field.after :]}"


def _values(string: ast.JoinedStr) -> Iterator[ast.FormattedValue]:
    """What stands between the braces, those of the format specifications included."""
    for part in string.values:
        if isinstance(part, ast.FormattedValue):
            yield part
            if isinstance(part.format_spec, ast.JoinedStr):
                yield from _values(part.format_spec)


def _own_nodes(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


# ---- where the expressions are: Python 3.12 and later ------------------------------------


def _by_tree(values, string: ast.JoinedStr, text: str) -> Iterator[Field]:
    data, rows = text.encode(), [0]
    for line in data.splitlines(keepends=True):
        rows.append(rows[-1] + len(line))

    def place(row: int, column: int) -> int:
        row -= string.lineno
        at = rows[row] + column - (string.col_offset if row == 0 else 0)
        return len(data[:at].decode())

    for value in values:
        inner = value.value
        start = place(inner.lineno, inner.col_offset)
        end = place(inner.end_lineno, inner.end_col_offset)
        opened = len(re.search(r"[\s(]*$", text[:start])[0])
        closed = re.match(r"[\s)]*", text[end:])[0]
        start, end = start - opened, end + len(closed)
        equals = re.match(r"=\s*", text[end:])
        yield Field(start, end, end + len(equals[0]) if equals else end, bool(equals))


# ---- where the expressions are: before Python 3.12, whose tree does not say ------------------


def _by_text(text: str) -> Iterator[Field]:
    wrapped = f"({text})"
    rows = [0]
    for line in wrapped.splitlines(keepends=True):
        rows.append(rows[-1] + len(line))
    for token in tokenize.generate_tokens(io.StringIO(wrapped).readline):
        if token.type != tokenize.STRING:
            continue
        prefix, quote = re.match(r"(\w*)(\"\"\"|'''|\"|')", token.string).groups()
        if "f" in prefix.lower():
            start = rows[token.start[0] - 1] + token.start[1] - 1
            scan = _Scan(text, start + len(prefix + quote), "r" in prefix.lower())
            yield from scan.literal(start + len(token.string) - len(quote))


class _Scan:
    """Goes through the inside of one f-string."""

    def __init__(self, text: str, at: int, raw: bool):
        self.text, self.at, self.raw = text, at, raw

    def literal(self, end: int, spec: bool = False) -> Iterator[Field]:
        """The fields up to ``end``, or in a format specification up to its brace."""
        while self.at < end:
            here = self.text[self.at]
            if spec and here == "}":
                return
            if here == "\\" and not self.raw:
                named = re.match(r"\\N\{[^}]*\}", self.text[self.at :])
                pair = 1 if self.text[self.at + 1] == "{" else 2
                self.at += len(named[0]) if named else pair
            elif not spec and self.text.startswith(("{{", "}}"), self.at):
                self.at += 2
            elif here == "{":
                yield from self._field(end)
            else:
                self.at += 1

    def _field(self, end: int) -> Iterator[Field]:
        start = self.at + 1
        over = self.at = self._end_of_expression(start, end)
        equals = re.match(r"=\s*", self.text[over:end])
        self.at += len(equals[0]) if equals else 0
        yield Field(start, over, self.at, bool(equals))
        while self.text[self.at] not in ":}":
            self.at += 1  # a conversion
        if self.text[self.at] == ":":
            self.at += 1
            yield from self.literal(end, spec=True)
        self.at += 1

    def _end_of_expression(self, at: int, end: int) -> int:
        depth = 0
        while at < end:
            here = self.text[at]
            string = re.match(r"(\"\"\"|'''|\"|')(.*?)\1", self.text[at:end], re.DOTALL)
            comparison = re.match(r"[!<>=]=", self.text[at:end])
            if string or comparison:
                at += len((string or comparison)[0])
                continue
            if depth == 0 and here in "!:}=":
                return at
            depth += (here in "([{") - (here in ")]}")
            at += 1
        return at
