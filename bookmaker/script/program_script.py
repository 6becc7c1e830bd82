"""The programs that a chapter writes into files, each as a script that stands alone.

A cell that begins with ``%%writefile NAME.py``, and below it ``#@script``, becomes the script
``scripts/13_NAME.py``; cells with ``%%writefile -a NAME.py`` go on with it. It runs as it is
written: each of its processes finds out for itself which rank it is.
"""

import dataclasses
from pathlib import Path

from nbformat import NotebookNode

from bookmaker.manuscript import manuscript, programs
from bookmaker.notebook import exercise_cells
from bookmaker.script.analyse.plan import make_plan
from bookmaker.script.emit.head import Title
from bookmaker.script.emit.script import script
from bookmaker.script.read.cells import Cell, Prose, read
from bookmaker.script.read.scopes import names_in


def files(nb: NotebookNode) -> dict[str, str]:
    """path -> text of the programs of a chapter, as ``manuscript.read`` gives it.

    Raises FormError, which names the cell, for what is no program.
    """
    chapter = manuscript.name_of(nb)
    found = _programs(read(exercise_cells.left_out(nb), chapter))
    return {
        programs.path_of(chapter, file): _text(nb, file, cells) for file, cells in found.items()
    }


def _programs(cells: list[Cell | Prose]) -> dict[str, list[Cell]]:
    """file -> the cells that are written into it."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        file = cell.program if isinstance(cell, Cell) else ""
        if file and cell.goes_on and file not in found:
            raise cell.refuse(f"no cell before this one writes `{file}`: leave out `-a`.")
        if file and not cell.goes_on and file in found:
            raise cell.refuse(f"`{file}` is written already: go on with `%%writefile -a {file}`.")
        if file:
            found.setdefault(file, []).append(cell)
    return found


def _text(nb: NotebookNode, file: str, cells: list[Cell]) -> str:
    """The text of the script of these cells."""
    chapter = manuscript.name_of(nb)
    path = programs.path_of(chapter, file)
    if path == f"scripts/{chapter}.py":
        raise cells[0].refuse(f"{path} is the chapter's own script: take another name.")
    own = [dataclasses.replace(cell, program="") for cell in cells]
    plan = make_plan(own, program=True)
    if plan.lab.has_ranks:
        raise cells[0].refuse(
            "a program makes no `Ranks`: each of its processes is a rank already."
        )
    names = names_in(*(node for cell in own for node in cell.tree.body))
    missing = (names.reads | names.later) - names.binds - names.later_binds
    missing -= plan.known_everywhere | plan.lab.names
    if missing:
        raise cells[0].refuse(f"the program reads `{min(missing)}`, which it does not define.")
    name, where = Path(path).name, f"chapter {int(chapter[:2])} of Many Ranks, One Model"
    origin = f"{name}, a program of {where}. Generated from {nb.metadata.ranklab.manuscript}."
    return script(own, plan, Title(Path(path).stem, origin))
