"""A role of MyST as a link."""

import re
import unicodedata
from typing import NamedTuple

from bookmaker.errors import FormError
from bookmaker.folders import CHAPTER
from bookmaker.manuscript import markdown

ROLES = ("term", "cite", "doc", "ref", "glue:text")


class Places(NamedTuple):
    """Where the links of a notebook lead: the repository, the site, and this chapter's page."""

    repository: str
    site: str
    page: str


def show(text: str, places: Places) -> str:
    """``text`` with each role as a link, code and formulas left alone."""

    def shown(match: re.Match) -> str:
        return _link(markdown.role(match), places) if match["role"] else match[0]

    return markdown.replace_inline(text, shown)


def _link(role: markdown.Role, places: Places) -> str:
    if role.name not in ROLES:
        raise FormError(
            f"the role `{{{role.name}}}` is not one that every form can show. "
            f"Use {', '.join(ROLES)}, or plain words."
        )
    return f"[{_label(role)}]({_address(role, places)})"


def _label(role: markdown.Role) -> str:
    if role.name == "glue:text":
        return f"`{role.target.split(':')[0]}`"
    if role.name == "doc" and CHAPTER.fullmatch(role.text):
        return f"chapter {int(role.text[:2])}"
    text = f"[{role.target}]" if role.name == "cite" else role.text
    return re.sub(r"([\[\]])", r"\\\1", text)


def _address(role: markdown.Role, places: Places) -> str:
    target = role.target.strip()
    if role.name == "term":
        return f"{places.site}/glossary.html{_anchor('term-', target)}"
    if role.name == "cite":
        return f"{places.site}/references.html"
    if role.name == "doc":
        page = target.removeprefix("./")
        return f"{page}.ipynb" if CHAPTER.fullmatch(page) else f"{places.site}/{page}.html"
    anchor = _anchor("", target) if role.name == "ref" else ""
    return f"{places.site}/{places.page}.html{anchor}"


def _anchor(prefix: str, text: str) -> str:
    """The id that Sphinx gives to a term or a label; none where it would only count."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    word = re.sub(r"[^a-zA-Z0-9._]+", "-", ascii_text).strip("-._")
    return f"#{prefix}{word}" if word else ""
