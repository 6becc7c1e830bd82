"""A chapter's MyST Markdown as plain Markdown that every notebook program shows.

A role becomes a link, a directive a quote or a foldable block.
"""

import html
import re

from bookmaker.errors import FormError
from bookmaker.manuscript import markdown
from bookmaker.notebook import roles
from bookmaker.notebook.roles import Places

DIRECTIVES = ("admonition", "note", "warning", "tip", "dropdown", "exercise")
# Labels and comments, which a page does not show.
_HIDDEN_LINE = re.compile(r"^(\([\w.:-]+\)=[ \t]*|%.*)$\n?", re.MULTILINE)


def to_notebook(text: str, places: Places) -> str:
    """The MyST ``text`` as plain Markdown. FormError for what not every form can show."""
    lines: list[str] = []
    parts = markdown.segments(text)
    for number, segment in enumerate(parts):
        if segment.kind == "directive":
            after = parts[number + 1].lines[0] if number + 1 < len(parts) else ""
            lines += _shown_directive(segment, after, places)
        elif segment.kind == "text":
            shown = _HIDDEN_LINE.sub("", "\n".join([*segment.lines, ""]))
            lines += roles.show(shown, places).split("\n")[:-1]
        else:
            lines += segment.lines
    return "\n".join(lines)


def _shown_directive(segment: markdown.Segment, after: str, places: Places) -> list[str]:
    parts = markdown.directive(segment.lines)
    _check_directive(segment, parts, after)
    title = _shown_title(parts)
    body = to_notebook("\n".join(parts.body), places).split("\n") if parts.body else []
    if parts.name == "dropdown":
        return [f"<details><summary>{title}</summary>", "", *body, "", "</details>"]
    quoted = [f"> {line}" if line else ">" for line in body]
    return [f"> **{title}**{_link(parts, places)}", *([">"] if body else []), *quoted]


def _link(parts: markdown.Directive, places: Places) -> str:
    """Where an exercise's solution is to be seen: the notebook does not hold it."""
    label = re.search(r":label:\s*(\S+)", "\n".join(parts.head))
    if parts.name != "exercise" or not label:
        return ""
    return f" · [solution]({places.site}/{places.page}.html#{label[1]}-solution)"


def _check_directive(segment: markdown.Segment, parts: markdown.Directive, after: str) -> None:
    opener = parts.head[0].strip()
    if segment.nested or any(s.kind == "directive" for s in markdown.segments(_body(parts))):
        raise FormError(
            f"`{opener}`: a directive stands in a list, a quote or another directive. "
            "Move it out, to the left margin."
        )
    if not opener.startswith(":::") or parts.name not in DIRECTIVES:
        raise FormError(
            f"`{opener}` is not a directive that every form can show. "
            f"Use {', '.join(f':::{{{name}}}' for name in DIRECTIVES)}, with colons."
        )
    if not parts.closer:
        raise FormError(f"`{opener}` is never closed. Close it with a line of three colons.")
    if after.strip():
        raise FormError(f"`{opener}`: leave an empty line after the directive's end.")


def _body(parts: markdown.Directive) -> str:
    return "\n".join(parts.body)


def _shown_title(parts: markdown.Directive) -> str:
    title = markdown.plain(parts.title) if parts.title else parts.name.capitalize()
    return html.escape(title, quote=False)
