"""The comments of a cell, each given to the statement that it belongs to."""

import ast

from bookmaker.script.read.source import Source


def comments_around(source: Source, body: list[ast.stmt], index: int) -> tuple[list[str], str]:
    """The comment lines above a statement of a body, and the comment behind it."""
    node = body[index]
    start, end = source.span(node)
    if index:
        _, above = source.between(source.span(body[index - 1])[1], start)
    else:
        above = _above_first(source, start)
    after = source.span(body[index + 1])[0] if index + 1 < len(body) else _line_end(source, end)
    behind, _ = source.between(end, after)
    if index == len(body) - 1 or behind.startswith("#"):
        return above, behind if behind.startswith("#") else ""
    return above, ""


def comments_at_end(source: Source, body: list[ast.stmt]) -> list[str]:
    """The comment lines below the last statement of a cell (or of a cell without any)."""
    end = _line_end(source, source.span(body[-1])[1]) if body else 0
    rest = source.bytes[end:].decode().strip("\n")
    return [line.strip() for line in rest.split("\n")] if rest.strip() else []


def _above_first(source: Source, start: int) -> list[str]:
    """The comment lines directly above the first statement of a body."""
    line_start = source.bytes.rfind(b"\n", 0, start) + 1
    lines = source.bytes[:line_start].decode().split("\n")[:-1]
    kept: list[str] = []
    while lines and (not lines[-1].strip() or lines[-1].strip().startswith("#")):
        kept.insert(0, lines.pop().strip())
    while kept and not kept[0]:
        kept.pop(0)
    return kept


def _line_end(source: Source, offset: int) -> int:
    found = source.bytes.find(b"\n", offset)
    return len(source.bytes) if found < 0 else found
