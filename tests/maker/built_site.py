"""The built site, for the tests that read its pages."""

import pytest
from bs4 import BeautifulSoup
from filelock import FileLock

from bookmaker.folders import HERE
from bookmaker.manuscript import exercises, manuscript
from bookmaker.site.__main__ import main

CHAPTERS = [path.stem for path in HERE.chapters()]
PAGES = [*CHAPTERS, *(path.stem for path in HERE.prose()), "search", "genindex"]


def exercises_of(chapter):
    return exercises.find(manuscript.read(HERE.book / f"{chapter}.md"))


EXERCISED = [chapter for chapter in CHAPTERS if exercises_of(chapter)]


@pytest.fixture(scope="session")
def site(everybodys):
    """The built site's folder; it is built once, whichever tester comes first."""
    built = everybodys / "site-is-built"
    with FileLock(f"{built}.lock"):
        if not built.exists():
            assert main(["--root", str(HERE.root)]) == 0, "the site could not be built"
            built.touch()
    return HERE.html


@pytest.fixture(scope="module")
def soups(site):
    """Every page, parsed: path -> its elements."""
    paths = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    return {path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in paths}
