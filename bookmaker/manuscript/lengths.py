"""How long a chapter is: what its page shows before the exercises, and the minutes that takes."""

import re
from dataclasses import dataclass

from nbformat import NotebookNode

from bookmaker.manuscript import markdown

WORDS_A_MINUTE, LINES_A_MINUTE = 200, 25
_HEADING = re.compile(r"(#{1,6})[ \t]+(.*)")
TO_PLAY = "Drawn, to play with"  # such a fold's code is what a chart needs, and counts nowhere
PREDICT = "{admonition} Predict"
_MINUTES = re.compile(r"^\*\d+ minutes to read(, \d+ predictions?)?", re.MULTILINE)


@dataclass
class Lengths:
    """What a reader sees of a chapter without opening anything, and what is folded.

    words: of prose. shown, longest: lines of code in all, and in the longest cell. folded: lines
    of code behind a line or in an extra. extra: words of the sections called "Extra: ...".
    predictions: how often the reader is asked what will come out.
    """

    words: int = 0
    shown: int = 0
    longest: int = 0
    folded: int = 0
    extra: int = 0
    predictions: int = 0

    @property
    def minutes(self) -> int:
        """To read it, rounded to five minutes from ten on."""
        exactly = self.words / WORDS_A_MINUTE + self.shown / LINES_A_MINUTE
        return max(1, round(exactly)) if exactly < 10 else 5 * round(exactly / 5)

    def __str__(self) -> str:
        """As a chapter's first lines say it."""
        plural = "s" if self.predictions > 1 else ""
        predictions = f", {self.predictions} prediction{plural}" if self.predictions else ""
        return f"{self.minutes} minutes to read{predictions}"


def measure(nb: NotebookNode) -> Lengths:
    """The lengths of the chapter `nb`, as ``manuscript.read`` gives it."""
    found = Lengths()
    extra = 0  # the level of the extra's heading that we are below, if any
    for cell in nb.cells:
        if cell.cell_type == "code":
            if str(cell.metadata.get("fold", "")).startswith(TO_PLAY):
                continue
            _count(cell, found, folded=bool(extra) or "fold" in cell.metadata)
            continue
        found.predictions += cell.source.count(PREDICT)
        for segment in markdown.segments(cell.source):
            for line in _prose(segment):
                if heading := _HEADING.fullmatch(line):
                    level, title = len(heading[1]), heading[2]
                    if title == "Exercises":
                        return found
                    if not extra or level <= extra:
                        extra = level if title.startswith("Extra: ") else 0
                words = len(line.split())
                found.extra += words if extra else 0
                found.words += 0 if extra else words
    return found


def with_minutes(nb: NotebookNode) -> NotebookNode:
    """The chapter, in place, with the minutes that it takes in the line that says so."""
    said = f"*{measure(nb)}"
    for cell in nb.cells:
        if cell.cell_type == "markdown" and _MINUTES.search(cell.source):
            cell.source = _MINUTES.sub(said, cell.source, count=1)
            break
    return nb


def _count(cell: NotebookNode, found: Lengths, folded: bool) -> None:
    lines = sum(bool(line.strip()) for line in cell.source.splitlines())
    if folded:
        found.folded += lines
    else:
        found.shown += lines
        found.longest = max(found.longest, lines)


def _prose(segment: markdown.Segment) -> list[str]:
    if segment.kind == "verbatim":
        return []
    return markdown.plain("\n".join(segment.lines)).splitlines()
