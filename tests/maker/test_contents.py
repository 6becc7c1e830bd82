"""What a chapter's header says, and the lists that follow from it."""

import pytest
import yaml
from small_book import HEADER

from bookmaker import contents
from bookmaker.errors import BookError, FormError
from bookmaker.folders import HERE, Folders
from bookmaker.manuscript import header

PLAN = """\
- caption: Before
  pages: [using]
- caption: "Part I: One"
  question: Why?
  chapters: {1: The first, 2: The second}
- caption: "Part II: Many"
  question: How?
  chapters: {3: The third}
"""


@pytest.fixture
def book(tmp_path):
    """A book of three chapters, the second of which is written."""
    folders = Folders(tmp_path)
    folders.book.mkdir()
    (folders.book / "contents.yml").write_text(PLAN)
    (folders.book / "using.md").write_text("# Using\n")
    (folders.book / "02_two.md").write_text(f"{HEADER}\n# Two: a *title*\n")
    return folders


def test_the_contents_hold_what_is_written(book):
    assert yaml.safe_load(contents.toc(book))["parts"] == [
        {"caption": "Before", "chapters": [{"file": "using"}]},
        {"caption": "Part I: One", "chapters": [{"file": "02_two"}]},
    ]


def test_the_start_page_and_the_readme_list_what_is_written_and_what_is_to_come(book):
    page = contents.on_start_page(f"# A\n\n{contents.BEGIN.format('book')}\n", book)
    count = "1 of 3 chapters are written; their numbers are fixed."
    assert page == (
        f"# A\n\n{count}\n\n**Part I: One.** Why?\n\n- 1\\. The first (to come)\n"
        "- {doc}`02_two`: what it is about\n\n"
        "**Part II: Many.** How?\n\n- 3\\. The third (to come)\n"
    )
    place = f"{contents.BEGIN.format('forms')}\n"
    readme = contents.in_readme(f"# A\n\n{place}of yesterday\n{contents.END}\nB\n", book)
    assert readme == (
        f"# A\n\n{place}{count}\n\n"
        "- **Part I: One.** 1 The first · 2 [Two: a *title*](notebooks/02_two.ipynb)\n\n"
        f"- **Part II: Many.** 3 The third\n{contents.END}\nB\n"
    )
    assert contents.in_readme(readme, book) == readme


@pytest.mark.parametrize("make, what", [("on_start_page", "intro"), ("in_readme", "README")])
def test_a_page_without_a_place_for_the_list_is_refused(book, make, what):
    with pytest.raises(BookError, match=f"{what}.md has no line"):
        getattr(contents, make)("# A\n", book)


def test_contents_and_files_must_agree(book):
    (book.book / "04_four.md").write_text(f"{HEADER}\n# Four\n")
    with pytest.raises(
        BookError, match=r"book/04_four\.md: there is no chapter 4 in book/contents"
    ):
        contents.toc(book)
    (book.book / "04_four.md").unlink()
    (book.book / "using.md").unlink()
    with pytest.raises(BookError, match=r"lists using, but there is no book/using\.md"):
        contents.toc(book)


def test_terms_are_of_a_page_or_a_chapter_of_the_part(book):
    plan = PLAN.replace("[using]", "[using]\n  terms: {using: [GPU]}")
    plan += "  terms: {3: [FSDP]}\n"
    (book.book / "contents.yml").write_text(plan)
    assert contents.terms(book) == {"using": ["GPU"], "intro": ["FSDP"]}
    (book.book / "contents.yml").write_text(plan.replace("{3: [FSDP]}", "{2: [FSDP]}"))
    with pytest.raises(BookError, match="Part II: Many has terms of 2, which it does not hold"):
        contents.terms(book)


def written(book, said):
    path = book.book / "02_two.md"
    path.write_text(HEADER.replace("  about: what it is about\n", said) + "\n# Two\n")
    return path


def test_a_header_says_what_its_chapter_needs(book):
    assert header.read(written(book, "  about: x\n")) == header.Header("x")
    said = "  about: x\n  ranks: [4]\n  launchers: [alone, mpiexec]\n"
    expected = header.Header("x", ranks=(4,), launchers=("alone", "mpiexec"))
    assert header.read(written(book, said)) == expected


WRONG = {
    "": r"^02_two: the header does not say what the chapter is about\. Write `chapter:`",
    "  about: ' '\n": "`chapter: about:` in the header is ' '; write a line of text",
    "  about: x\n  test: 1\n": "`chapter: test:` .* There are about, ranks, launchers",
    "  about: x\n  ranks: 4\n": "is 4; write a list of numbers from 2 to 8",
    "  about: x\n  ranks: [1]\n": r"is \[1\]; write",
    "  about: x\n  launchers: [slurm]\n": "write a list of alone, torchrun, mpiexec",
    "  about: {\n": "the header is not YAML",
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_header_is_one_sentence(book, said):
    with pytest.raises(FormError, match=WRONG[said]):
        header.read(written(book, said))
    with pytest.raises(FormError, match=WRONG[said]):
        contents.toc(book)


def test_every_chapter_of_the_book_has_its_place():
    parts = [part for part in contents.parts(HERE) if part.question]
    numbers = [chapter.number for part in parts for chapter in part.chapters]
    assert numbers == list(range(1, 28))
    names = [c.name for part in parts for c in part.chapters if c.name]
    assert ["00_tour", *names] == [path.stem for path in HERE.chapters()]
