"""Where the parts of the book are, and where the build puts what it makes."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Folders:
    """The folders of one book. `root` holds _config.yml, _toc.yml and book/."""

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
        return sorted(self.book.glob("[0-9][0-9]_*.md"))

    def prose(self) -> list[Path]:
        """The pages without code."""
        return sorted(set(self.book.glob("*.md")) - set(self.chapters()))


# The repository that this file is part of.
HERE = Folders(Path(__file__).resolve().parents[2])


class BookError(Exception):
    """The book cannot be built. The message is a sentence that says why and what to do."""
