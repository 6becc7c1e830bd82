"""Names that have no place in a script, or would mean something else there: refused."""

import ast

from bookmaker.script.analyse.apart import GIVEN
from bookmaker.script.analyse.imports import Imports
from bookmaker.script.analyse.lab import Lab
from bookmaker.script.analyse.sides import DEFINITIONS, Binding, Side, Sides
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import BUILTINS, is_import, names_in

_SAME_MODULE = {"torch": "torch", "dist": "torch.distributed"}
_OF_NOTEBOOKS = {"_", "__", "___", "In", "Out", "_i", "_ih", "_oh", "_dh", "exit", "quit"}


def check(cells: list[Cell], found: Sides, lab: Lab, imports: Imports, own: set[str]) -> None:
    """Refuse names that one script cannot have as two processes have them. cells: the script's.
    own: what both sides have of the chapter's own taught code."""
    if lab.has_ranks:
        _refuse_reserved(found)
        _refuse_two_meanings(found)
        _refuse_pushed_imports(found)
        _refuse_kernels_on_ranks(found, imports, own)
        _refuse_ranks_in_kernel(found, lab.names | own)
    _refuse_labs_names(cells, lab, imports)
    _refuse_late_imports(found.kernel)
    _refuse_late_imports(found.ranks)
    _refuse_notebooks_own(found)


def _refuse_reserved(found: Sides) -> None:
    for name in sorted(GIVEN):
        for binding in found.kernel.binds.get(name, []):
            if binding.meaning != _SAME_MODULE.get(name, "-"):
                raise binding.cell.refuse(
                    f"`{name}` is what every rank calls its own {_what(name)}; in the script rank "
                    f"0 would lose it. Give the kernel's `{name}` another name."
                )
        for binding in found.ranks.binds.get(name, []):
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
    match binding.node:
        case ast.Assign(
            targets=[ast.Name()],
            value=ast.Call(func=ast.Attribute(value=ast.Name(id="dist"), attr=asked), args=[]),
        ):
            return asked == f"get_{name}"
    return False


def _refuse_two_meanings(found: Sides) -> None:
    """An import means one thing in all of a script, which has its imports at the top."""
    for name in sorted(set(found.kernel.binds) & set(found.ranks.binds)):
        ours, theirs = found.kernel.binds[name], found.ranks.binds[name]
        both = [*ours, *theirs]
        imported = any(is_import(binding.node) for binding in both)
        if imported and len({binding.meaning for binding in both}) > 1:
            last = max(ours[0], theirs[0], key=lambda binding: binding.cell.place.number)
            other = ours[0] if last is theirs[0] else theirs[0]
            raise last.cell.refuse(
                f"`{name}` is one thing in the kernel and another on the ranks (see also cell "
                f"{other.cell.place.number}), and an import has one name in all of a script. Write "
                "another name on one side."
            )


def _refuse_kernels_on_ranks(found: Sides, imports: Imports, own: set[str]) -> None:
    """The ranks read what only the kernel has: the notebook would stop there."""
    there = set(found.ranks.binds) | _pushed_in_time(found) | GIVEN | BUILTINS | own
    for name in sorted((found.ranks.names & set(found.kernel.binds)) - there):
        function = found.ranks.called.get(name)
        of = f" (in `{function}`)" if function else ""
        cell = found.sent.get(function) or _first(name if not of else function, found.ranks)
        if name in imports.names:
            raise cell.refuse(
                f"the ranks read `{name}`{of}, which only the kernel has imported. Import it in a "
                "`%%px` cell too."
            )
        raise cell.refuse(
            f"the ranks read `{name}`{of}, which only the kernel has. Push it before, with "
            f'`ranks["{name}"] = {name}`. (A cell that shows just this error is tagged '
            "`notebook-only`.)"
        )


def _pushed_in_time(found: Sides) -> set[str]:
    """The names that are pushed, of functions those that are pushed before the ranks use them."""
    late = set()
    for name in set(found.pushes) & set(found.kernel.functions):
        first = min(cell.place.number for cell in found.ranks.uses[name])
        late |= {name} if found.pushes[name][0].cell.place.number > first else set()
    return set(found.pushes) - late


def _refuse_pushed_imports(found: Sides) -> None:
    """What is imported is there on every rank: another value under its name is not pushed."""
    for name, pushed in found.pushes.items():
        for side in (found.kernel, found.ranks):
            if any(is_import(binding.node) for binding in side.binds.get(name, [])):
                raise pushed[0].cell.refuse(
                    f"`{name}` is pushed, and is also imported, which a script does for all ranks. "
                    "Push the value under another name; what is imported need not be pushed."
                )


def _refuse_ranks_in_kernel(found: Sides, more: set[str]) -> None:
    """The kernel reads what only the ranks have. more: what else it has."""
    here = set(found.kernel.binds) | more | BUILTINS
    there = GIVEN | set(found.ranks.binds) | set(found.pushes)
    for name in sorted((found.kernel.names & there) - here):
        cell = _first(found.kernel.called.get(name, name), found.kernel)
        raise cell.refuse(
            f"`{name}` is on the ranks, and the kernel has none. {_to_have(name, found)}"
        )


def _first(name: str, side: Side) -> Cell:
    return min(side.uses[name], key=lambda cell: cell.place.number)


def _to_have(name: str, found: Sides) -> str:
    """What to do to have a name of the ranks' in the kernel."""
    if name == "world_size":
        return "In the kernel it is `ranks.world_size`."
    if name == "rank":
        return "The kernel is no rank: put what needs it into a `%%px` cell."
    if name in ("torch", "dist"):
        return "Import it in the kernel too."
    if name in found.ranks.functions:
        return (
            "Define it in a plain cell, without `%%px`: given to `ranks.run`, it goes to the "
            "ranks by itself."
        )
    return f'Pull it first, as in `{name}s = ranks["{name}"]`.'


def _refuse_labs_names(cells: list[Cell], lab: Lab, imports: Imports) -> None:
    """A variable must not hide what was imported from ranklab, or code that came from there."""
    taken = lab.classes | lab.results | set(lab.views) | imports.inlined_names
    for cell in cells:
        for node in cell.tree.body:
            if is_import(node):
                continue
            names = names_in(node)
            for name in sorted((names.binds | names.later_binds) & taken):
                raise cell.refuse(
                    f"`{name}` is also something that the script takes from ranklab; give this "
                    "one another name."
                )


def _refuse_late_imports(side: Side) -> None:
    """An import goes to the top of the script, so nothing may bind its name before it."""
    for name, found in side.binds.items():
        imported = [b for b in found if is_import(b.node)]
        if imported and not is_import(found[0].node) and not imported[0].cell.may_fail:
            raise imported[0].cell.refuse(
                f"`{name}` is imported here, after cell {found[0].cell.place.number} gave it "
                "another value. The script has its imports at the top; use two names."
            )


def refuse_builtins(found: Sides, texts: list[str]) -> None:
    """Refuse a variable with the name of a builtin that the script's own code means by it.

    texts: that code.
    """
    read = set().union(*(_builtins_in(ast.parse(text)) for text in texts), set())
    for name in sorted((read & BUILTINS) - {"_", "display", "get_ipython"}):
        side = found.ranks.binds.get(name, []) + found.pushes.get(name, [])
        for binding in [*found.kernel.binds.get(name, []), *side]:
            kind = "function" if isinstance(binding.node, DEFINITIONS) else "value"
            raise binding.cell.refuse(
                f"`{name}` is a builtin, which other code of the script means by this name. "
                f"Give the {kind} another name."
            )


def _builtins_in(tree: ast.AST) -> set[str]:
    loads = (n for n in ast.walk(tree) if isinstance(n, ast.Name))
    return {node.id for node in loads if isinstance(node.ctx, ast.Load)}


def _refuse_notebooks_own(found: Sides) -> None:
    """Names that a notebook has by itself, unless its author has given them a value."""
    for side in (found.kernel, found.ranks):
        for name in sorted(side.names - set(found.kernel.binds) - set(found.ranks.binds)):
            why = _notebooks_own(name)
            if why:
                raise _first(side.called.get(name, name), side).refuse(why)


def _notebooks_own(name: str) -> str:
    if name == "get_ipython":
        return "`get_ipython` is the notebook's; a script runs without IPython."
    if name == "__file__":
        return "a notebook has no `__file__`; write the path that is meant."
    if name in _OF_NOTEBOOKS:
        return f"`{name}` is IPython's; keep the value in a variable of your own."
    return ""
