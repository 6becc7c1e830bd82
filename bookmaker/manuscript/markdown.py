"""MyST Markdown taken apart, and as plain text for a script's comments."""

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

from markdown_it import MarkdownIt
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

from bookmaker.folders import CHAPTER

_VERBATIM = {"fence", "code_block", "html_block", "math_block", "math_block_label"}
_WITHIN_A_PARAGRAPH = r"(?:(?!\n[ \t]*\n).)+?"

# Alternatives in the order in which they win at one place. What is none of these is text.
INLINE = re.compile(
    rf"""
      (?P<escape>\\[^\w\s])
    | (?P<comment><!--.*?-->)
    | (?P<role>\{{(?P<name>[A-Za-z_:+-]+)\}}
        (?P<ticks>`+)(?!`)(?P<content>{_WITHIN_A_PARAGRAPH})(?<!`)(?P=ticks)(?!`))
    | (?P<code>(?P<run>`+)(?!`){_WITHIN_A_PARAGRAPH}(?<!`)(?P=run)(?!`) | `+)
    | (?P<math>\$\$(?:(?!\$\$|\n[ \t]*\n).)+\$\$ | \$(?:\\.|(?!\n[ \t]*\n)[^$\\])+\$)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENER = re.compile(r"(?P<fence>:{3,}|`{3,}|~{3,})\{(?P<name>[\w:-]+)\}[ \t]*(?P<title>.*)")


class Role(NamedTuple):
    """A role: ``{term}`ranks <rank>` `` has the text "ranks" and the target "rank"."""

    source: str
    name: str
    text: str
    target: str


class Directive(NamedTuple):
    """A directive: its first lines (opener, options, empty lines), its body, its last line."""

    name: str
    title: str
    head: list[str]
    body: list[str]
    closer: str


class Segment(NamedTuple):
    """Lines of one kind: "text", "verbatim" (code, HTML, math) or "directive".

    ``nested`` says that a directive stands in a list or a quote, or is closed by its parent.
    """

    kind: str
    lines: list[str]
    nested: bool = False


def segments(text: str) -> list[Segment]:
    """The lines of ``text`` in order, grouped by what may be changed in them."""
    lines = text.split("\n")
    found: list[Segment] = []
    at = 0
    for kind, (start, end), nested in _special(text):
        if start > at:
            found.append(Segment("text", lines[at:start]))
        found.append(Segment(kind, lines[start:end], nested))
        at = end
    if at < len(lines):
        found.append(Segment("text", lines[at:]))
    return found


def directive(lines: list[str]) -> Directive:
    """The parts of a directive, from its opening to its closing fence."""
    opener = _OPENER.fullmatch(lines[0].strip())
    closed = len(lines) > 1 and lines[-1].strip().startswith(opener["fence"])
    inner = lines[1:-1] if closed else lines[1:]
    count = 0
    while count < len(inner) and re.match(r"\s*:[\w-]+:", inner[count]):
        count += 1
    while count < len(inner) and not inner[count].strip():
        count += 1
    closer = lines[-1] if closed else ""
    head = [lines[0], *inner[:count]]
    return Directive(opener["name"], opener["title"].strip(), head, inner[count:], closer)


def replace_inline(text: str, replace: Callable[[re.Match], str]) -> str:
    """``text`` with each escape, comment, role, code span and formula given to ``replace``."""
    return INLINE.sub(replace, text)


def role(match: re.Match) -> Role:
    """The role that ``replace_inline`` found; ``match["role"]`` tells whether it is one."""
    titled = re.fullmatch(r"(.*\S)\s*<([^<>]+)>", match["content"], re.DOTALL)
    text, target = titled.groups() if titled else (match["content"], match["content"])
    return Role(match["role"], match["name"], text, target)


def plain(text: str) -> str:
    """MyST Markdown as plain readable text, block by block in the same order.

    Headings, lists, tables, code and formulas stay as they are written. Roles are resolved,
    directives become "Title: body", a link its text and address; emphasis and HTML comments
    are dropped. Never fails: what it does not know, it leaves.
    """
    whole = ""
    shown = (segment for segment in segments(text) if not _is_comment(segment))
    for part in map(_plain_segment, shown):
        # One empty line between blocks, however many the manuscript has; code keeps its own.
        part = part.lstrip("\n") if whole.endswith("\n\n") else part
        whole += f"{part}\n" if part or not whole.endswith("\n\n") else ""
    return whole.strip("\n")


@lru_cache(maxsize=4096)  # the forms of a manuscript ask for the same text again and again
def _special(text: str) -> list[tuple]:
    """(kind, line range, nested) of every block that is not text, in order."""
    found = []
    for token in _parser().parse(text):
        opens_directive = _OPENER.fullmatch((token.markup + token.info).strip())
        if token.type in ("colon_fence", "fence") and opens_directive:
            found.append(("directive", token.map, token.level > 0))
        elif token.type in _VERBATIM or token.type == "colon_fence":
            found.append(("verbatim", token.map, False))
    return found


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table").use(colon_fence_plugin)
    return parser.use(dollarmath_plugin).disable("inline", True)


def _is_comment(segment: Segment) -> bool:
    return segment.kind == "verbatim" and segment.lines[0].lstrip().startswith("<!--")


def _plain_segment(segment: Segment) -> str:
    if segment.kind == "directive" and not segment.nested:
        return f"\n{_plain_directive(directive(segment.lines))}\n"
    text = "\n".join(segment.lines)
    return re.sub(r"\n{3,}", "\n\n", _plain_inline(text)) if segment.kind == "text" else text


def _plain_directive(parts: Directive) -> str:
    title = _plain_inline(parts.title) or parts.name.capitalize()
    title = title if title[-1] in ".?!:" else f"{title}:"
    body = plain("\n".join(parts.body))
    starts_a_sentence = re.match(r"[^\W\d]|[$\"'(`]\w", body)
    return f"{title} {body}" if starts_a_sentence else f"{title}\n\n{body}"


def _plain_inline(text: str) -> str:
    # What must not be read as emphasis or as a link is kept aside, one character standing in.
    kept: list[str] = []

    def keep(piece: str) -> str:
        kept.append(piece)
        return chr(0xE000 + len(kept) - 1)

    def protect(match: re.Match) -> str:
        if match["comment"]:
            return ""
        if match["role"]:
            return keep(_plain_role(role(match)))
        return keep(match[0][1:] if match["escape"] else match[0])

    text = re.sub(r"^(\([\w.:-]+\)=|%.*)$\n?", "", text, flags=re.MULTILINE)
    text = replace_inline(text, protect)
    text = _without_links(text, keep)
    text = _without_emphasis(text)
    return re.sub("[\ue000-\uf8ff]", lambda m: _restored(m[0], kept), text)


def _restored(character: str, kept: list[str]) -> str:
    index = ord(character) - 0xE000
    # A link's text is kept with what was kept inside it.
    piece = kept[index] if index < len(kept) else character
    return re.sub("[\ue000-\uf8ff]", lambda m: _restored(m[0], kept[:index]), piece)


def _without_links(text: str, keep: Callable[[str], str]) -> str:
    label = r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]"
    address = r"\(\s*<?((?:[^\s()<>]|\([^\s()]*\))+)>?(?:\s+\"[^\"]*\")?\s*\)"
    text = re.sub(f"!{label}{address}", lambda m: f"[figure: {m[1]}]", text)
    text = re.sub(label + address, lambda m: f"{m[1]} {keep(f'({m[2]})')}", text)
    return re.sub(r"<(https?://[^<>\s]+)>", lambda m: keep(m[1]), text)


def _without_emphasis(text: str) -> str:
    inner = r"(?![\s*_])((?:(?!\n[ \t]*\n).)+?)(?<!\s)"
    for mark in (r"\*{3}", r"\*{2}", r"\*"):
        text = re.sub(rf"(?<!\*){mark}{inner}{mark}(?!\*)", r"\1", text, flags=re.DOTALL)
    for mark in ("__", "_"):
        text = re.sub(rf"(?<!\w){mark}{inner}{mark}(?!\w)", r"\1", text, flags=re.DOTALL)
    return text


def _plain_role(found: Role) -> str:
    kind = found.name.split(":")[0]
    if kind == "glue":
        return f"({found.target.split(':')[0]})"
    if kind == "cite":
        return f"[{', '.join(key.strip() for key in found.target.split(','))}]"
    if found.name == "math":
        return f"${found.text}$"
    is_chapter = found.name == "doc" and CHAPTER.fullmatch(found.text)
    return f"chapter {int(found.text[:2])}" if is_chapter else found.text
