"""A chapter's MyST Markdown as plain Markdown that every notebook program shows, and back.

A role becomes a link whose title holds the role; a directive becomes a quote or a foldable
block under an HTML comment that holds its first lines. So nothing is lost, and what a reader
edits between those marks comes back as MyST.
"""

import html
import json
import re

from bookmaker.errors import FormError
from bookmaker.manuscript import markdown
from bookmaker.notebook import roles
from bookmaker.notebook.roles import Places

DIRECTIVES = ("admonition", "note", "warning", "tip", "dropdown", "exercise")
_TITLED = ("admonition", "dropdown", "exercise")

_HEAD = re.compile(r'<!-- myst ((?:"(?:\\.|[^"\\])*" ?)+)-->')
_HIDDEN_LINE = re.compile(r"\([\w.:-]+\)=[ \t]*|%.*")
_SHOWN_HIDDEN = re.compile(rf"<!-- ({_HIDDEN_LINE.pattern}) -->")
_SUMMARY = re.compile(r"<details><summary>(.*)</summary>")


def to_notebook(text: str, places: Places) -> str:
    """The MyST ``text`` as plain Markdown. FormError for what could not be turned back."""
    lines: list[str] = []
    parts = markdown.segments(text)
    for number, segment in enumerate(parts):
        if segment.kind == "directive":
            after = parts[number + 1].lines[0] if number + 1 < len(parts) else ""
            lines += _shown_directive(segment, after, places)
        elif segment.kind == "text":
            lines += _shown_text(segment.lines, places)
        else:
            lines += segment.lines
    shown = "\n".join(lines)
    if to_myst(shown) != text:
        raise FormError(
            "this text cannot be turned into a notebook's Markdown and back. "
            "Write it with the constructs that CONTRIBUTING.md and the other chapters use."
        )
    return shown


def to_myst(text: str) -> str:
    """The inverse of ``to_notebook``, also for text that was edited in the notebook."""
    lines = text.split("\n")
    marks = _head_comments(text)
    done: list[str] = []
    plain_from = at = 0
    while at < len(lines):
        block = _hidden_directive(lines, at) if at in marks else None
        if block is None:
            at += 1
            continue
        done += _hidden_text(lines[plain_from:at]) if at > plain_from else []
        myst, at = block
        done += myst
        plain_from = at
    done += _hidden_text(lines[plain_from:]) if plain_from < len(lines) else []
    return "\n".join(done)


# Directives


def _shown_directive(segment: markdown.Segment, after: str, places: Places) -> list[str]:
    parts = markdown.directive(segment.lines)
    _check_directive(segment, parts, after)
    title = _shown_title(parts)
    body = to_notebook("\n".join(parts.body), places).split("\n") if parts.body else []
    # Two hyphens would end an HTML comment.
    head = [json.dumps(line, ensure_ascii=False).replace("--", r"\u002d-") for line in parts.head]
    comment = f"<!-- myst {' '.join(head)} -->"
    if parts.name == "dropdown":
        return [comment, f"<details><summary>{title}</summary>", "", *body, "", "</details>"]
    quoted = [f"> {line}" if line else ">" for line in body]
    return [comment, f"> **{title}**{_link(parts, places)}", *([">"] if body else []), *quoted]


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


def _head_comments(text: str) -> set[int]:
    """The lines of ``text`` that are a directive's comment, not code that looks like one."""
    found, at = set(), 0
    for segment in markdown.segments(text):
        if _HEAD.fullmatch(segment.lines[0]):
            found.add(at)
        at += len(segment.lines)
    return found


def _hidden_directive(lines: list[str], at: int) -> tuple[list[str], int] | None:
    """The directive whose comment is ``lines[at]``, and the line after it.

    None if what should follow the comment was deleted: then the comment stays a comment.
    """
    head = _head_lines(lines[at])
    parts = markdown.directive([*head, ":::"]) if _opens(head) else None
    if parts is None or at + 1 >= len(lines):
        return None
    block = _unfold(lines, at + 1) if parts.name == "dropdown" else _unquote(lines, at + 1)
    if block is None:
        return None
    title, body, end = block
    if title not in (None, _shown_title(parts)):
        head, body = _retitled(parts, title, body)
    body = to_myst("\n".join(body)).split("\n") if body else []
    fence = _fence(head[0], body)
    return [re.sub("^:+", fence, head[0]), *head[1:], *body, fence], end


def _head_lines(comment: str) -> list[str]:
    """The directive's first lines that the comment holds; none if it was garbled."""
    try:
        return [json.loads(quoted) for quoted in re.findall(r'"(?:\\.|[^"\\])*"', comment)]
    except ValueError:
        return []


def _opens(head: list[str]) -> bool:
    names = "|".join(DIRECTIVES)
    return bool(head) and bool(re.fullmatch(rf":{{3,}}\{{({names})\}}.*", head[0]))


def _retitled(parts: markdown.Directive, title: str, body: list[str]):
    """A directive whose title was edited; a note has none of its own, so it stays text."""
    if parts.name in _TITLED and title:
        opener = parts.head[0].split("}")[0]
        return [f"{opener}}} {html.unescape(title)}", *parts.head[1:]], body
    return parts.head, [f"**{title}**", "", *body]


def _unfold(lines: list[str], at: int) -> tuple[str, list[str], int] | None:
    summary = _SUMMARY.fullmatch(lines[at].strip())
    end = next((i for i in range(at, len(lines)) if lines[i].strip() == "</details>"), None)
    if summary is None or end is None:
        return None
    body = lines[at + 1 : end]
    body = body[1:] if body and not body[0].strip() else body
    body = body[:-1] if body and not body[-1].strip() else body
    return summary[1], [] if body == [""] else body, end + 1


def _unquote(lines: list[str], at: int) -> tuple[str | None, list[str], int] | None:
    end = at
    while end < len(lines) and re.match(r" {0,3}>", lines[end]):
        end += 1
    if end == at:
        return None
    body = [re.sub(r"^ {0,3}> ?", "", line) for line in lines[at:end]]
    bold = re.fullmatch(r"\*\*(.*?)\*\*(?: · \[solution\]\(\S*\))?[ \t]*", body[0])
    if bold is None:
        return None, body, end
    rest = body[1:]
    return bold[1], rest[1:] if rest and not rest[0].strip() else rest, end


def _fence(opener: str, body: list[str]) -> str:
    """Colons that no line of the body can close."""
    closing = [len(line.strip()) for line in body if re.fullmatch(r"\s*:{3,}\s*", line)]
    longest = max(closing, default=0)
    return ":" * max(len(re.match(":+", opener)[0]), longest + 1)


# Roles, and lines that a page does not show


def _shown_text(lines: list[str], places: Places) -> list[str]:
    return _by_runs(
        lines,
        _HIDDEN_LINE,
        lambda line: f"<!-- {line} -->" if "--" not in line else line,
        lambda text: roles.show(text, places),
    )


def _hidden_text(lines: list[str]) -> list[str]:
    done: list[str] = []
    for segment in markdown.segments("\n".join(lines)):
        if segment.kind == "text":
            done += roles.hide("\n".join(segment.lines)).split("\n")
        else:
            hidden = [_SHOWN_HIDDEN.fullmatch(line) for line in segment.lines]
            is_code = not segment.lines[0].lstrip().startswith("<!--")
            pairs = zip(segment.lines, hidden, strict=True)
            done += segment.lines if is_code else [m[1] if m else line for line, m in pairs]
    return done


def _by_runs(lines: list[str], special: re.Pattern, change_line, change_text) -> list[str]:
    """Lines that match ``special`` changed one by one, the runs between them as a whole."""
    done: list[str] = []
    run: list[str] = []
    for line in [*lines, None]:
        if line is not None and not special.fullmatch(line):
            run.append(line)
            continue
        done += change_text("\n".join(run)).split("\n") if run else []
        done += [change_line(line)] if line is not None else []
        run = []
    return done
