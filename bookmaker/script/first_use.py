"""Where a script's helpers stand: before the section whose code first uses them.

So the chapter's own code is soon in sight. What its first code needs stands above it, at the top.
"""

import ast

from bookmaker.script.cells import Cell
from bookmaker.script.imports import is_import
from bookmaker.script.scopes import names_in


def mentioned(cell: Cell) -> set[str]:
    """Every name of a module that a cell's code has to do with."""
    code = [node for node in cell.tree.body if not is_import(node)]
    return set(names_in(*code).all) if code else set()


def without(cells: list[Cell], names: set[str]) -> set[int]:
    """The numbers of the cells that need one of these names, or a value that comes from one."""
    lost, found = set(names), set()
    for cell in cells:
        binds = names_in(*cell.tree.body).binds if cell.tree.body else set()
        if (mentioned(cell) - binds) & lost:
            found.add(cell.place.number)
            lost |= binds
        else:
            lost -= binds - names
    return found


def placed(blocks: list[str], mentions: dict[int, set[str]], forced: dict[int, int]) -> list[int]:
    """For each block of code the number of the cell that needs it first.

    mentions: number of a cell -> the names in its code, in the order of the script. forced: index
    of a block -> a cell before which it has to stand. Who is needed by another block stands no
    later than that one.
    """
    last = max(mentions, default=0)
    names = [names_in(*ast.parse(block).body) for block in blocks]
    bound = [own.binds | own.later_binds for own in names]
    found = []
    for index, own in enumerate(bound):
        users = [number for number, used in mentions.items() if own & used]
        found.append(min([*users, forced.get(index, last)], default=last))
    return _settled(found, bound, names)


def _settled(found: list[int], bound: list, names: list) -> list[int]:
    changed = True
    while changed:
        changed = False
        for index, own in enumerate(names):
            for other, theirs in enumerate(bound):
                if theirs & (own.reads | own.later) and found[other] > found[index]:
                    found[other], changed = found[index], True
    return found
