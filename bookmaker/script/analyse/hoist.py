"""Go through the import statements of all cells: hoist them, or understand them."""

import ast

from bookmaker.script.analyse.imports import DRAWING, Imports
from bookmaker.script.analyse.lab import Lab
from bookmaker.script.analyse.own_taught import saved
from bookmaker.script.analyse.taken import Flatten, belongs_to_ranklab, inline, is_module, know
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import is_import


def collect(cells: list[Cell], lab: Lab) -> Imports:
    """Hoist the imports, find what is used of ranklab, and take over its definitions."""
    imports, sites, own = Imports(), {}, saved(cells)
    for cell in cells:
        Flatten(cell, lab, sites, own).run()
        _refuse_hidden(cell)
        for node in cell.tree.body:
            if is_import(node):
                _one_by_one(node, cell, lab, imports, sites)
    if lab.used and any(source.startswith(DRAWING) for source in imports.names.values()):
        lab.taken.setdefault("ranklab.plots", {}).setdefault("STYLE", ["STYLE"])
        sites.setdefault("ranklab.plots", cells[0])
    done = set()  # what two modules both need stands once
    for module in lab.taken:
        inline(module, lab.taken[module], sites[module], imports, done)
    for name in sorted(imports.inlined_names & set(imports.names)):
        home = imports.homes[name]
        raise sites.get(home, cells[0]).refuse(
            f"`{name}` is one thing in {home} and another as it is imported "
            f"(`{imports.names[name]}`). Give one of them another name."
        )
    return imports


def _one_by_one(node, cell: Cell, lab: Lab, imports: Imports, sites: dict) -> None:
    for alias in node.names:
        single = type(node)(**{**vars(node), "names": [alias]})
        local = alias.asname or alias.name
        if belongs_to_ranklab(node, alias):
            lab.used = True
            if isinstance(node, ast.ImportFrom) and not is_module(node.module, alias.name):
                know(lab, cell, node.module, alias.name, local, sites)
        elif _is_display(node, alias):
            continue
        elif not cell.may_fail:
            imports.add(ast.unparse(single), cell)


def _is_display(node, alias) -> bool:
    """``display`` is replaced by the script's own function."""
    module = getattr(node, "module", "") or ""
    return alias.name == "display" and not alias.asname and module.startswith("IPython")


def _refuse_hidden(cell: Cell) -> None:
    top = set(map(id, cell.tree.body))
    for node in ast.walk(cell.tree):
        if is_import(node) and id(node) not in top:
            for alias in node.names:
                if belongs_to_ranklab(node, alias):
                    raise cell.refuse(
                        f"`{ast.unparse(node)}`: import from ranklab at the top level of a cell."
                    )
