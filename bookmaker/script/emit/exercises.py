"""The exercises of a chapter at the end of its script, for those who ask for them.

They are not translated as the chapter is: an answer runs on ranks that its check starts, so
that here it is only defined, by rank 0 alone.
"""

import re

from nbformat import NotebookNode

from bookmaker.manuscript import exercises, markdown
from bookmaker.script.emit import prose

_BEGIN = """\
# The checks start ranks of their own, and need ranklab.
import sys
{alone}
try:
    from ranklab.exercises import check
except ImportError:
    print("The exercises are left out, for ranklab, which checks them, is not installed here.")
    sys.exit()
"""
_ALONE = """
if rank != 0:
    sys.exit()
"""
_IMPORT = re.compile(r"^from ranklab\.exercises import check\n*", re.MULTILINE)


def with_exercises(script: str, nb: NotebookNode) -> str:
    """A chapter's script, and after it tasks, stubs and checks, where it has exercises.

    nb: the chapter's manuscript, whose solutions stay out; or somebody's notebook of it, whose
    answers are taken over as they are.
    """
    has_ranks = re.search(r"^rank, world_size = ", script, re.MULTILINE)
    parts = [prose.heading("Exercises"), _BEGIN.format(alone=_ALONE if has_ranks else "")]
    for cell in nb.cells:
        kind = exercises.kind_of(cell)
        if kind == "exercise":
            parts.append(f"{exercises.stub(cell.source)}\n")
        elif kind == "check":
            parts.append(_IMPORT.sub("", cell.source))
        elif cell.cell_type == "markdown":
            parts += [_task(parts) for parts in exercises.directives(cell, "exercise")]
    return script + "\n\n" + "\n\n".join(parts) + "\n" if len(parts) > 2 else script


def _task(parts) -> str:
    lines = [
        prose.heading(markdown.plain(parts.title), 3),
        "#",
        *prose.comments("\n".join(parts.body)),
    ]
    return "\n" + "\n".join(lines)
