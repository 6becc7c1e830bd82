"""The book's solution of an exercise, and the same with a mistake in it.

The solutions of a chapter stand in `solutions.py`, beside its exercises, each below a line
`# %% check("name", answer, ...)`: that of the notebook.
"""

import ast
import inspect
import linecache
import re
import zlib
from dataclasses import dataclass

from ranklab import checks

MARK = "# %% "


class NoSuchText(ValueError):
    """An edit names a text that is not in the solution, or is there more than once."""


@dataclass(frozen=True)
class Solution:
    """source: all of its code. call: how it is checked, `check("name", answer, ...)`."""

    name: str
    source: str
    call: str

    def answers(self):
        """Return what the check is given: functions and classes, made afresh."""
        file = f"{self.name}, as edited {zlib.crc32(self.source.encode())}.py"
        linecache.cache[file] = len(self.source), None, self.source.splitlines(True), file
        there = {"__name__": "__main__"}  # as in a notebook: it travels by value
        exec(compile(self.source, file, "exec"), there)
        arguments = ast.parse(self.call).body[0].value.args[1:]
        return tuple(eval(ast.unparse(one), there) for one in arguments)

    def edited(self, edits):
        """Return it with one text in place of another, {text: other}; each must be there once."""
        for old in edits:
            if (count := self.source.count(old)) != 1:
                raise NoSuchText(
                    f"{self.name}: a mistake edits {old!r}, which is in the solution {count} "
                    "times. It has to be there once."
                )
        texts = re.compile("|".join(map(re.escape, edits)))
        source, count = texts.subn(lambda found: edits[found[0]], self.source)
        if count < len(edits):
            raise NoSuchText(f"{self.name}: the texts {[*edits]} overlap in the solution.")
        return Solution(self.name, source, self.call)

    def called_as(self, number):
        """Return how one of its answers is called: "f(x, y)"."""
        answer = ast.unparse(ast.parse(self.call).body[0].value.args[1 + number])
        taken = str(inspect.signature(self.answers()[number]))
        return answer + taken


def solution(name):
    """Return the Solution of an exercise, or None where there is none."""
    file = checks.files()[name].parent / checks.SOLUTIONS if name in checks.files() else None
    if file is None or not file.exists():
        return None
    for part in re.split(f"^{MARK}", file.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        call, _, source = part.partition("\n")
        if ast.parse(call).body[0].value.args[0].value == name:
            return Solution(name, source.strip("\n") + "\n", call)
    return None


def answers_of(written, name):
    """Return the tuple of answers that a Mistake, or `also_right`, writes in one of its ways."""
    if isinstance(written, dict):
        return solution(name).edited(written).answers()
    return written if isinstance(written, tuple) else (written,)
