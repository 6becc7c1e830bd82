"""What `check` found, as text and, in a notebook, with a color for right and for wrong."""

import html
from dataclasses import dataclass

# Legible on white and on black alike; the words say the same.
COLORS = {"right": "#3a8f3a", "wrong": "#d0562b", "open": "#8a8a8a"}


@dataclass(frozen=True)
class Report:
    """`verdict`: "right", "wrong" or "open" (not attempted). It is true where that is "right".

    text: what it says, in paragraphs.
    """

    name: str
    verdict: str
    text: str

    def __bool__(self):
        return self.verdict == "right"

    def __str__(self):
        return self.text

    __repr__ = __str__

    def _repr_html_(self):
        return (
            f'<div style="border-left: 4px solid {COLORS[self.verdict]}; padding-left: 0.8em">'
            f'<pre style="white-space: pre-wrap">{html.escape(self.text)}</pre></div>'
        )
