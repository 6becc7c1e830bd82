"""Where the parts of a book are, which of its pages are chapters, and what the build makes."""

import re
from dataclasses import dataclass
from pathlib import Path

# The name of a chapter, as in "06_messages". The book's other pages have no number.
CHAPTER = re.compile(r"[0-9]{2}_[\w-]+")


@dataclass(frozen=True)
class Folders:
    """The folders of one book. `root` holds _config.yml and book/."""

    root: Path

    @property
    def book(self) -> Path:
        return self.root / "book"

    @property
    def build(self) -> Path:
        return self.root / "_build"

    @property
    def executed(self) -> Path:
        return self.build / "executed"

    @property
    def source(self) -> Path:
        """What Sphinx reads."""
        return self.build / "source"

    @property
    def html(self) -> Path:
        """What jupyter-book writes."""
        return self.build / "html"

    def chapters(self) -> list[Path]:
        """The manuscripts, in the order of their numbers."""
        return sorted(path for path in self.book.glob("*.md") if CHAPTER.fullmatch(path.stem))

    def prose(self) -> list[Path]:
        """The pages without code."""
        return sorted(set(self.book.glob("*.md")) - set(self.chapters()))


# The repository that this file is part of.
HERE = Folders(Path(__file__).resolve().parents[1])
