"""Names: in the notebook the kernel's and the ranks' are apart, in the script they are not.

`check` refuses every notebook in which that could make a difference.
"""

import ast

from bookmaker.script.bindings import Binding, Bindings, bindings
from bookmaker.script.cells import Cell
from bookmaker.script.everywhere import defined_everywhere, sendable
from bookmaker.script.flow import Flow
from bookmaker.script.imports import is_import
from bookmaker.script.scopes import names_in
from bookmaker.script.sharing import plain
from bookmaker.script.step import Step

__all__ = ["check", "defined_everywhere"]

RESERVED = ("rank", "world_size", "device", "torch", "dist")
_SAME_MODULE = {"torch": "torch", "dist": "torch.distributed"}
_ASKS_FOR = {"rank": "dist.get_rank()", "world_size": "dist.get_world_size()"}


def check(cells: list[Cell], step: Step) -> None:
    """Refuse a notebook whose names would mean something else in one namespace."""
    found = bindings(cells, step.lab)
    if step.lab.has_ranks:
        _refuse_reserved(found)
        _refuse_two_meanings(found)
        _refuse_other_pushes(found)
    _refuse_labs_names(cells, step)
    _refuse_late_imports(found.kernel)
    _refuse_late_imports(found.ranks)
    step.sendable = sendable([c for c in cells if not c.notebook_only], step.defined_everywhere)
    step.plain = {name for name in found.shared if plain(found, name)}
    Flow(found, step).run([cell for cell in cells if not cell.notebook_only])


def _refuse_reserved(found: Bindings) -> None:
    for name in RESERVED:
        for binding in found.kernel.get(name, []):
            if binding.meaning != _SAME_MODULE.get(name, "-"):
                raise binding.cell.refuse(
                    f"`{name}` is what every rank calls its own {_what(name)}; in the script rank "
                    f"0 would lose it. Give the kernel's `{name}` another name."
                )
        for binding in found.ranks.get(name, []):
            if name != "device" and not _same_again(binding, name):
                raise binding.cell.refuse(
                    f"`{name}` is given to every rank by `Ranks`; give this value another name."
                )
        for binding in found.pushes.get(name, []):
            raise binding.cell.refuse(
                f"`{name}` is given to every rank by `Ranks`; push the value under another name."
            )


def _what(name: str) -> str:
    return {"rank": "number", "world_size": "number of ranks"}.get(name, name)


def _same_again(binding: Binding, name: str) -> bool:
    """``import torch`` and ``rank = dist.get_rank()`` change nothing."""
    if name in _SAME_MODULE:
        return binding.meaning == _SAME_MODULE[name]
    node = binding.node
    return (
        isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and ast.unparse(node.value) == _ASKS_FOR[name]
    )


def _refuse_two_meanings(found: Bindings) -> None:
    for name in sorted(set(found.kernel) & set(found.ranks)):
        ours, theirs = found.kernel[name], found.ranks[name]
        meanings = {binding.meaning for binding in [*ours, *theirs]}
        if len(meanings) == 1 and meanings != {""}:
            continue
        imported = any(is_import(binding.node) for binding in [*ours, *theirs])  # goes to the top
        if not imported and name not in {**found.pushes, **found.pulls} and found.passing(name):
            continue
        last = max(ours[0], theirs[0], key=lambda binding: binding.cell.place.number)
        other = ours[0] if last is theirs[0] else theirs[0]
        raise last.cell.refuse(_two_meanings(name, other, last))


def _two_meanings(name: str, first: Binding, second: Binding) -> str:
    number = first.cell.place.number
    where = f"in cell {number}" if number != second.cell.place.number else "in this cell"
    pull = isinstance(second.node, ast.Assign) and isinstance(second.node.value, ast.Subscript)
    advice = f'`{name}s = ranks["{name}"]`' if pull else "another name on one side"
    return (
        f"`{name}` is one variable in the kernel and another on the ranks (see also {where}). In "
        f"the script rank 0 plays both, and they would be the same variable. Write {advice}."
    )


def _refuse_other_pushes(found: Bindings) -> None:
    for name in sorted(found.shared):
        for binding in found.pushes[name]:
            value = binding.node.value
            if not (isinstance(value, ast.Name) and value.id == name):
                raise binding.cell.refuse(
                    f"`{name}` is pushed, and is also a variable of the kernel's with a value of "
                    f'its own. Write `{name} = ...` and then `ranks["{name}"] = {name}`, or give '
                    "one of them another name."
                )


def _refuse_labs_names(cells: list[Cell], step: Step) -> None:
    """A variable must not hide what was imported from ranklab, or code that came from there."""
    lab = step.lab
    taken = lab.classes | lab.results | set(lab.views) | step.imports.inlined_names
    for cell in cells:
        for node in cell.tree.body:
            if cell.notebook_only or is_import(node):
                continue
            names = names_in(node)
            for name in sorted((names.binds | names.later_binds) & taken):
                raise cell.refuse(
                    f"`{name}` is also something that the script takes from ranklab; give this "
                    "one another name."
                )


def _refuse_late_imports(side: dict[str, list[Binding]]) -> None:
    """An import goes to the top of the script, so nothing may bind its name before it."""
    for name, found in side.items():
        imported = [b for b in found if is_import(b.node)]
        if imported and not is_import(found[0].node) and not imported[0].cell.may_fail:
            raise imported[0].cell.refuse(
                f"`{name}` is imported here, after cell {found[0].cell.place.number} gave it "
                "another value. The script has its imports at the top; use two names."
            )
