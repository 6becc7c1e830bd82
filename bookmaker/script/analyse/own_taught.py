"""What a cell imports from the chapter's own taught code: in the script, what stands in its cells.

Chapter 13 defines `Adam` in a plain cell with ``#@save``, so that its ranks can import it from
`ranklab.taught.own_framework`. A script has one text: each rank runs the definition in that cell.
"""

import ast

from bookmaker.script.analyse.sides import DEFINITIONS, Sides
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import names_in
from bookmaker.taught.saved import module_of


def saved(cells: list[Cell]) -> dict[str, dict[str, ast.stmt]]:
    """module -> name -> the statement of a saved cell that binds it."""
    found: dict[str, dict[str, ast.stmt]] = {}
    for cell in cells:
        module = module_of(cell.body, cell.place.notebook)
        for node in cell.tree.body if module else ():
            names = {node.name} if isinstance(node, DEFINITIONS) else names_in(node).binds
            found.setdefault(f"ranklab.taught.{module}", {}).update(dict.fromkeys(names, node))
    return found


def needed(imported: dict[str, Cell], cells: list[Cell]) -> dict[str, ast.stmt | None]:
    """What is imported of the chapter's own, and all that this needs -> its statement in a saved
    cell; None for a name from elsewhere."""
    known = {name: node for names in saved(cells).values() for name, node in names.items()}
    found, todo = {}, set(imported)
    while todo:
        name = todo.pop()
        found[name] = known.get(name)
        used = names_in(found[name]) if found[name] else names_in()
        todo |= (used.reads | used.later) - set(found)
    return found


def check(imported: dict[str, Cell], own: dict, found: Sides, everywhere: set[str]) -> None:
    """Refuse an import of what each rank of the script could not define as the module does."""
    for name in sorted(name for name, node in own.items() if node):
        function = isinstance(own[name], DEFINITIONS) and name not in found.ranks.binds
        if len(found.kernel.binds.get(name, [])) > 1 or (function and name not in everywhere):
            cell = imported.get(name) or next(iter(imported.values()))
            raise cell.refuse(
                f"`{name}`, of this chapter's own taught code, would be another thing on the ranks "
                "of the script. Save it as a definition that needs only what is saved or imported, "
                "and give its name to nothing else."
            )
