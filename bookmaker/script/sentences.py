"""What a reader is told where a name is not there, or would not be the same, and what to do."""

from bookmaker.errors import FormError
from bookmaker.script.bindings import DEFINITIONS, Bindings
from bookmaker.script.cells import Cell
from bookmaker.script.step import Step

_IPYTHONS = {"_", "__", "___", "In", "Out", "_i", "_ih", "_oh", "_dh", "exit", "quit"}


def refuse_notebooks_own(cell: Cell, found: Bindings, name: str) -> None:
    """Refuse a name that a notebook has by itself, unless the reader has given it a value."""
    if name in found.kernel or name in found.ranks:
        return
    if name == "get_ipython":
        raise cell.refuse("`get_ipython` is the notebook's; a script runs without IPython.")
    if name == "__file__":
        raise cell.refuse("a notebook has no `__file__`; write the path that is meant.")
    if name in _IPYTHONS:
        raise cell.refuse(f"`{name}` is IPython's; keep the value in a variable of your own.")


def hidden(cell: Cell, found: Bindings, name: str) -> FormError:
    """The name is made in a cell that the script does not have."""
    number = found.hidden[name].place.number
    return cell.refuse(
        f"`{name}` is made in cell {number}, which is tagged `notebook-only` and not in the "
        "script. Tag this cell too, or make it elsewhere."
    )


def only_on_ranks(cell: Cell, found: Bindings, name: str) -> FormError:
    """The kernel reads a name that only the ranks have."""
    if name == "world_size":
        advice = "In the kernel it is `ranks.world_size`."
    elif name == "rank":
        advice = "The kernel is no rank: put what needs it into a `%%px` cell."
    elif name in ("torch", "dist"):
        advice = "Import it in the kernel too."
    elif any(isinstance(b.node, DEFINITIONS) for b in found.ranks.get(name, [])):
        advice = (
            "Define it in a plain cell, without `%%px`: given to `ranks.run`, it goes to the "
            "ranks by itself."
        )
    else:
        advice = f'Pull it first, as in `{name}s = ranks["{name}"]`.'
    return cell.refuse(f"`{name}` is on the ranks, and the kernel has none. {advice}")


def kernel_only(cell: Cell, found: Bindings, step: Step, name: str, of: str) -> FormError:
    """The ranks read a name that only the kernel has; `of`: in which function, if in one."""
    if found.kernel[name][0].meaning and name in step.imports.names:
        return cell.refuse(
            f"the ranks read `{name}`{of}, which only the kernel has imported. Import it in a "
            "`%%px` cell too."
        )
    return cell.refuse(
        f"the ranks read `{name}`{of}, which only the kernel has. Push it before, with "
        f'`ranks["{name}"] = {name}`. (A cell that shows just this error is tagged '
        "`notebook-only`.)"
    )


def reads_when_made(cell: Cell, name: str) -> FormError:
    """A function goes to the ranks that cannot be defined there."""
    return cell.refuse(
        f"`{name}` goes to the ranks, but its definition reads the kernel's variables "
        "when it is made (a default, a decorator, a base class), or it is made in a cell "
        "that may fail, in a loop or an `if`, or given another value elsewhere. Define it at "
        "the left margin, with literals there and one name for one thing, or in a `%%px` cell."
    )


def holds_a_value(cell: Cell, name: str) -> FormError:
    """A function goes to the ranks that holds a value, of which each rank would have its own."""
    return cell.refuse(
        f"`{name}` goes to the ranks, but a value is worked out when it is defined, or "
        "changed later (a list or a call as a default or in a class, an attribute that "
        "is set): in the notebook the ranks get that value from the kernel, in the "
        "script each rank would have its own. Pass the value as an argument, or define "
        f"`{name}` in a `%%px` cell."
    )
