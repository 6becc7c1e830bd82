"""What the book holds, and the lists that say so: book/contents.yml and the chapters' headers."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from bookmaker.errors import BookError
from bookmaker.folders import Folders
from bookmaker.manuscript import header, manuscript

# Where a page has its list: between these lines, or in the place of the first.
BEGIN, END = "<!-- The chapters: made by `make {}`. -->", "<!-- The end of the chapters. -->"


@dataclass(frozen=True)
class Chapter:
    """A chapter by its number, its title, and, if it is written, its name and its line."""

    number: int
    title: str
    name: str = ""
    about: str = ""


@dataclass(frozen=True)
class Part:
    """A part of the book; one without a question is no part of the way through it."""

    caption: str
    question: str
    pages: list[str]
    chapters: list[Chapter]
    terms: dict[str | int, list[str]]  # of a page or a chapter: under which the search finds it


def parts(folders: Folders) -> list[Part]:
    """The parts in order, with the chapters that are written and those that are to come.

    Raises BookError where contents.yml and the files disagree, FormError for a wrong header.
    """
    file = folders.book / "contents.yml"
    listed = yaml.safe_load(file.read_text(encoding="utf-8"))
    planned = {number for part in listed for number in part.get("chapters", {})}
    written = {int(path.stem[:2]): path for path in folders.chapters()}
    for number in sorted(written.keys() - planned):
        name = written[number].name
        raise BookError(f"book/{name}: there is no chapter {number} in book/{file.name}. Add it.")
    for page in (page for part in listed for page in part.get("pages", [])):
        if not (folders.book / f"{page}.md").exists():
            raise BookError(f"book/{file.name} lists {page}, but there is no book/{page}.md.")
    return [_part(part, written, f"book/{file.name}") for part in listed]


def _part(listed: dict, written: dict[int, Path], file: str) -> Part:
    titles, pages = listed.get("chapters", {}), listed.get("pages", [])
    terms = listed.get("terms", {})
    if wrong := terms.keys() - {*titles, *pages}:
        of = ", ".join(map(str, wrong))
        raise BookError(f"{file}: {listed['caption']} has terms of {of}, which it does not hold.")
    chapters = [_chapter(n, title, written.get(n)) for n, title in titles.items()]
    return Part(listed["caption"], listed.get("question", ""), pages, chapters, terms)


def _chapter(number: int, title: str, path: Path | None) -> Chapter:
    if path is None:
        return Chapter(number, title)
    about = header.read(path).about
    return Chapter(number, manuscript.title_of(manuscript.read(path)), path.stem, about)


def terms(folders: Folders) -> dict[str, list[str]]:
    """{the page: under which terms the search finds it}; the start page has those of the rest."""
    found = {}
    for part in parts(folders):
        pages = {chapter.number: chapter.name or "intro" for chapter in part.chapters}
        for key, some in part.terms.items():
            found.setdefault(pages.get(key, key), []).extend(some)
    return found


def indexed(text: str, of_page: list[str]) -> str:
    """A page's text with entries in the book's index, which the search puts first."""
    if not of_page:
        return text
    entries = "\n".join(f"   ! single: {term}" for term in of_page)
    title, newline, rest = text.partition("\n")
    return f"{title}{newline}\n```{{eval-rst}}\n.. index::\n{entries}\n```\n{rest}"


def toc(folders: Folders) -> str:
    """The table of contents as jupyter-book wants it: what is written, and no more."""
    held = [
        (part.caption, [*part.pages, *(c.name for c in part.chapters if c.name)])
        for part in parts(folders)
    ]
    return yaml.safe_dump(
        {
            "format": "jb-book",
            "root": "intro",
            "options": {"numbered": False},
            "parts": [
                {"caption": caption, "chapters": [{"file": name} for name in names]}
                for caption, names in held
                if names
            ],
        }
    )


def on_start_page(text: str, folders: Folders) -> str:
    """The start page with the list of chapters in its place."""
    place = BEGIN.format("book")
    if place not in text:
        raise BookError(f"book/intro.md has no line `{place}`, where the list is to stand.")
    return text.replace(place, _listed(folders, _on_start_page))


def in_readme(text: str, folders: Folders) -> str:
    """The README with the list of chapters between its two marks."""
    place = BEGIN.format("forms")
    found = re.search(f"{re.escape(place)}\n.*?{END}", text, re.DOTALL)
    if not found:
        raise BookError(f"README.md has no lines `{place}` and `{END}` around the list.")
    return text.replace(found[0], f"{place}\n{_listed(folders, _in_readme)}\n{END}")


def _listed(folders: Folders, of_part: Callable[[Part], str]) -> str:
    through = [part for part in parts(folders) if part.question]
    chapters = [chapter for part in through for chapter in part.chapters]
    written = sum(bool(chapter.name) for chapter in chapters)
    count = f"{written} of {len(chapters)} chapters are written; their numbers are fixed."
    return "\n\n".join([count, *map(of_part, through)])


def _on_start_page(part: Part) -> str:
    lines = [
        f"- {{doc}}`{c.name}`: {c.about}" if c.name else f"- {c.number}\\. {c.title} (to come)"
        for c in part.chapters
    ]
    return "\n".join([f"**{part.caption}.** {part.question}", "", *lines])


def _in_readme(part: Part) -> str:
    lines = [
        f"{c.number} [{c.title}](notebooks/{c.name}.ipynb)" if c.name else f"{c.number} {c.title}"
        for c in part.chapters
    ]
    return f"- **{part.caption}.** {' · '.join(lines)}"
