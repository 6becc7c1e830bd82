"""The solutions of a chapter, for the checks: mistakes are written as edits of them.

Each stands below `# %% ` and the last line of its check. `ranklab.exercises.solution` reads them.
"""

import ast

from nbformat import NotebookNode

from bookmaker.manuscript import exercises, manuscript
from bookmaker.taught import definitions
from bookmaker.taught.saved import module_name


def path_of(chapter: str) -> str:
    """Where the solutions of a chapter are, below the repository's root."""
    return f"ranklab/checks/{module_name(chapter)}/solutions.py"


def to_solutions(nb: NotebookNode) -> str | None:
    """The text of that file; None for a chapter without exercises."""
    sources = exercises.solutions(nb)
    parts = [f"# {manuscript.origin(nb)}"]
    for one in exercises.find(nb):
        check = ast.parse(nb.cells[one.check].source).body[-1].value
        parts.append(f"# %% {ast.unparse(check)}\n\n{_needed(sources[one.name], check)}")
    return "\n\n".join(parts) + "\n" if len(parts) > 1 else None


def _needed(source: str, check: ast.Call) -> str:
    """What the answers need of their cell; the rest of a program may import what takes seconds."""
    names = {node.id for one in check.args[1:] for node in ast.walk(one) if hasattr(node, "id")}
    taken = definitions.take(source, names)
    return "\n\n\n".join(filter(None, ["\n".join(taken.imports), *taken.code]))
