"""Cells that need what `ranklab.gpu` measures: a script leaves them out where that is missing."""

import ast

from bookmaker.script.analyse.lab import Lab, called_in_head
from bookmaker.script.analyse.operations import Finder
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import names_in


def find(cells: list[Cell], lab: Lab) -> tuple[set[int], set[str]]:
    """The numbers of these cells; and the names of `ranklab.gpu` that need a stand-in.

    Ranks train on where it is missing: `with sampled() as s:` has a stand-in there, which can mark
    phases. Whatever else looks at s is left out.
    """
    found, stood_in = set(), set()
    ranks, kernel = set(), set(lab.measures)  # names on either side, of what is not there
    for cell in cells:
        lost, body = ranks if cell.on_ranks else kernel, cell.tree.body
        binds = names_in(*body).binds if body else set()
        pulls, pushes = _moved(cell, lab)
        if (cell.mentions - binds) & lost or pulls & ranks:
            found.add(cell.place.number)
            lost |= binds
            ranks |= pushes
        else:
            lost -= binds - lab.measures
            ranks -= pushes
        for head in _heads(cell, lab) if cell.on_ranks else ():
            stood_in |= called_in_head(head) & lab.measures
            recordings = {n.id for item in head.items for n in _names(item.optional_vars)}
            ranks |= recordings & binds
            _refuse_looking(cell, recordings)
    return found, stood_in


def _heads(cell: Cell, lab: Lab) -> list[ast.With]:
    inside = (node for node in ast.walk(cell.tree) if isinstance(node, ast.With))
    return [node for node in inside if called_in_head(node) & lab.measures]


def _names(node: ast.expr | None) -> list[ast.Name]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Name)] if node else []


def _refuse_looking(cell: Cell, recordings: set[str]) -> None:
    for node in ast.walk(cell.tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in recordings:
                if attr != "phase":
                    raise cell.refuse(
                        f"`{name}.{attr}`: where ranklab is missing a script has no recording, "
                        "and the ranks only mark its phases. Look at it in another cell."
                    )


def _moved(cell: Cell, lab: Lab) -> tuple[set[str], set[str]]:
    """The names that a plain cell pulls and pushes."""
    moved = {"pull": set(), "push": set()}
    if not cell.on_ranks:
        finder = Finder(cell, lab)
        for node in ast.walk(cell.tree):
            found = finder.operation(node) if isinstance(node, ast.Subscript) else None
            if found:
                moved[found.kind].add(found.name)
    return moved["pull"], moved["push"]
