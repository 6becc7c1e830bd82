"""A notebook as one standalone script: the exporter, and how it is called.

The idea: every process of the script is a rank, and rank 0 plays the notebook's kernel, too. A
``%%px`` cell is copied as it is. A plain cell is put under ``if rank == 0:``. Where the kernel
pulls, pushes or calls a function on the ranks, all ranks take part in a gather or a broadcast.
What cannot be translated faithfully is refused (`FormError`).

It is done in three steps, each a package that knows nothing of the next: `read` parses the cells,
`analyse` finds out all that the script has to know about them (a `Plan`) and refuses what has no
place in one, and `emit` writes. `template.py` holds the parts of the preamble.
"""

import sys
from pathlib import Path

from nbconvert.exporters import Exporter
from traitlets import Bool

from bookmaker.errors import FormError
from bookmaker.folders import CHAPTER
from bookmaker.notebook import exercise_cells, notebook
from bookmaker.script.analyse.plan import make_plan
from bookmaker.script.emit.exercises import with_exercises
from bookmaker.script.emit.head import Title
from bookmaker.script.emit.script import mistake, script
from bookmaker.script.read.cells import Cell, read

__all__ = ["ScriptExporter", "to_script"]


def to_script(nb, name: str | None = None, exercises: bool = False) -> str:
    """The script that does what a notebook does.

    nb: a notebook, ours (read from a manuscript) or anybody's.
    name: the file name of the script without ``.py``; the manuscript's if not given.
    exercises: whether a chapter's exercises are in it, stubs and checks.

    Raises FormError, which names the cell, for what has no faithful translation.
    """
    manuscript = nb.metadata.get("ranklab", {}).get("manuscript")
    name = name or (Path(manuscript).stem if manuscript else "notebook")
    if manuscript:
        what = f"Chapter {int(name[:2])}" if CHAPTER.fullmatch(name) else "A chapter"
        origin = f"{what} of Many Ranks, One Model, as one script. Generated from {manuscript}."
        chapter, nb = nb, exercise_cells.left_out(nb)
    else:
        origin = f"Generated from {name}.ipynb by `jupyter nbconvert --to ranklab_script`."
    try:
        cells = read(nb, name)
        plan = make_plan([cell for cell in cells if isinstance(cell, Cell)])
        text = script(cells, plan, Title(name, origin))
        return with_exercises(text, chapter) if manuscript and exercises else text
    except FormError:
        raise
    except Exception as error:
        raise FormError(f"{name}: {mistake(error)}") from error


class ScriptExporter(Exporter):
    """``jupyter nbconvert --to ranklab_script x.ipynb`` writes ``x.py``.

    With ``--ScriptExporter.exercises=True`` the exercises of a chapter are in it.
    """

    exercises = Bool(False, help="Keep the exercises of a chapter, with their checks.").tag(
        config=True
    )
    export_from_notebook = "Script for torchrun"
    output_mimetype = "text/x-python"

    def _file_extension_default(self):
        return ".py"

    def from_notebook_node(self, nb, resources=None, **kwargs):
        """The script and nbconvert's resources."""
        nb, resources = super().from_notebook_node(nb, resources, **kwargs)
        name = resources.get("metadata", {}).get("name")
        if any(cell.metadata.get("ranklab", {}).get("generated") for cell in nb.cells):
            nb, name = notebook.chapters_own(nb), None  # a chapter of the book's
        try:
            name = None if name in ("", "Notebook") else name
            return to_script(nb, name, self.exercises), resources
        except FormError as error:
            from nbconvert.nbconvertapp import NbConvertApp  # which imports this module

            if NbConvertApp.initialized():  # on the command line, the sentence is enough
                sys.exit(f"{error}")
            raise
