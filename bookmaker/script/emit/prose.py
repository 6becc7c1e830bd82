"""A chapter's text as the comments of its script."""

import re
import textwrap

from bookmaker.manuscript.markdown import plain

WIDTH = 88
_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*$")
_ITEM = re.compile(r"(\s*)([-*+]|\d+[.)])\s+")
_FENCE = re.compile(r"\s*(```|~~~|\$\$)")


def comments(text: str) -> list[str]:
    """Markdown as comment lines: paragraphs wrapped, headings visible, the rest as it is."""
    out: list[str] = []
    for kind, lines in _blocks(plain(text)):
        if out and kind != "item":
            out.append("#")
        out += _block(kind, lines)
    return [line.rstrip() for line in _without_empty_around_headings(out)]


def title(text: str) -> str:
    """The last heading of the second level in a text; "" if there is none."""
    heads = [_HEADING.match(lines[0]) for kind, lines in _blocks(plain(text)) if kind == "heading"]
    titles = [head[2].replace("`", "") for head in heads if head[1] == "##"]
    return titles[-1] if titles else ""


def _block(kind: str, lines: list[str]) -> list[str]:
    if kind == "heading":
        marks, title = _HEADING.match(lines[0]).groups()
        return ["", heading(title, len(marks)), ""]
    if kind == "verbatim":
        return [f"# {line}" for line in lines]
    indent = " " * _ITEM.match(lines[0]).end() if kind == "item" else ""
    joined = " ".join(line.strip() for line in lines)
    first = _ITEM.match(lines[0])[1] if kind == "item" else ""
    wrapped = textwrap.wrap(
        joined,
        WIDTH - 2,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [f"# {line}" for line in wrapped]


def heading(title: str, level: int = 2) -> str:
    """A comment line that a reader sees when paging through."""
    mark = "=" if level == 1 else "-"
    title = title.replace("`", "")
    return f"# {mark * 3} {title} ".ljust(WIDTH, mark)


def _blocks(text: str):
    """Paragraphs, list items, headings and verbatim blocks (code, math, tables)."""
    lines, at = text.split("\n"), 0
    while at < len(lines):
        line, start = lines[at], at
        at += 1
        if not line.strip():
            continue
        fence = _FENCE.match(line)
        if fence:
            closed = fence[1] == "$$" and line.strip() != "$$" and line.rstrip().endswith("$$")
            while not closed and at < len(lines) and not lines[at].strip().startswith(fence[1]):
                closed = fence[1] == "$$" and lines[at].rstrip().endswith("$$")
                at += 1
            yield "verbatim", lines[start : at + (not closed)]
            at += not closed
        elif _HEADING.match(line):
            yield "heading", [line]
        elif line.lstrip().startswith(("|", ">", "<")) or line.startswith("    "):
            while at < len(lines) and lines[at].strip():
                at += 1
            yield "verbatim", lines[start:at]
        else:
            while at < len(lines) and _continues(lines[at]):
                at += 1
            yield "item" if _ITEM.match(line) else "paragraph", lines[start:at]


def _continues(line: str) -> bool:
    return bool(line.strip()) and not (
        _ITEM.match(line) or _HEADING.match(line) or _FENCE.match(line)
    )


def _without_empty_around_headings(lines: list[str]) -> list[str]:
    out: list[str] = []
    for line in lines:
        if line in ("", "#") and (not out or out[-1] == ""):
            continue
        if line == "" and out and out[-1] == "#":
            out.pop()
        out.append(line)
    while out and out[-1] in ("", "#"):
        out.pop()
    return out
