"""What `check` found, as text and, in a notebook, with a color for right and for wrong."""

import html
from dataclasses import dataclass

# Beside the text, which stays in the page's own color and says the same: legible in both themes.
COLORS = {"right": "#2e9e5b", "wrong": "#e0662f", "open": "#8a8a8a"}


@dataclass(frozen=True)
class Report:
    """`verdict`: "right", "wrong" or "open" (nothing is known). It is true where that is "right".

    name: of the exercise. text: what there is to say, in paragraphs. done: how many exercises are.
    """

    name: str
    verdict: str
    text: str
    done: str = ""

    def __bool__(self):
        return self.verdict == "right"

    def __str__(self):
        return "\n\n".join(filter(None, [self.text, self.done]))

    __repr__ = __str__

    def _repr_html_(self):
        paragraphs = "".join(map(_paragraph, str(self).split("\n\n")))
        style = f"border-left: 0.3em solid {COLORS[self.verdict]}; padding: 0.1em 0 0.1em 0.8em"
        return f'<div class="check check-{self.verdict}" style="{style}">{paragraphs}</div>'


def _paragraph(text):
    """Return a paragraph as HTML; what is indented is code."""
    return f'<p style="margin: 0.4em 0">{"<br>".join(map(_line, text.splitlines()))}</p>'


def _line(line):
    said = html.escape(line)
    if not line.startswith("    "):
        return said
    style = "white-space: pre-wrap; margin-left: 1.5em"
    return f'<code style="{style}">{said.strip()}</code>'
