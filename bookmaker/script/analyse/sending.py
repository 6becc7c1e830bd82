"""What goes over to the other side: refused where a script cannot send it as the notebook does.

A script sends values, and functions by their name: every rank has defined them for itself.
"""

import ast

from bookmaker.errors import FormError
from bookmaker.script.analyse.lab import Lab
from bookmaker.script.analyse.operations import Finder, Operation
from bookmaker.script.analyse.sides import DEFINITIONS, Binding, Sides
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import names_in


def check(cells: list[Cell], found: Sides, lab: Lab, sendable: set[str], known: set[str]) -> None:
    """Refuse pushes, pulls and runs of what has no name that means the same on every rank.

    sendable: functions of the kernel's that do. known: all names that every rank has from the
    script's imports and definitions.
    """
    for cell in cells:
        if cell.on_ranks:
            continue
        finder = Finder(cell, lab)
        for node in cell.tree.body:
            for op in finder.within(node):
                if op.kind == "pull":
                    _refuse_pulled_code(cell, found, op.name)
                elif op.kind == "run":
                    _check_run(cell, op, found, known - set(found.kernel.functions) | sendable)
    for binding in (b for pushed in found.pushes.values() for b in pushed):
        if any(isinstance(inner, ast.Lambda) for inner in ast.walk(binding.node.value)):
            raise binding.cell.refuse(
                "a lambda cannot be sent to other processes; write it with `def`."
            )
    _refuse_instances(cells, found, lab, known & set(found.kernel.functions) - sendable)
    for name, cell in found.sent.items():
        if name not in known:
            raise _reads_when_made(cell, name)
        if name not in sendable:
            raise _holds_a_value(cell, name)


def _refuse_instances(cells: list[Cell], found: Sides, lab: Lab, changing: set[str]) -> None:
    """changing: functions and classes that hold a value which may change; rank 0 has one of each,
    so what was made by them cannot go to the ranks either."""
    holding = {name: name for name in changing}
    plain = [cell for cell in cells if not cell.on_ranks]
    for _ in range(2):  # also what holds what holds one
        for node in (node for cell in plain for node in cell.tree.body):
            made = [holding[name] for name in sorted(names_in(node).reads & set(holding))]
            if made and isinstance(node, ast.Assign):
                holding |= dict.fromkeys(names_in(node).binds - set(holding), made[0])
    for cell in plain:
        finder = Finder(cell, lab)
        for node in cell.tree.body:
            for value in _sent_values(node, finder):
                for name in sorted(names_in(value).all & set(holding)):
                    raise _holds_a_value(cell, holding[name])


def _sent_values(node: ast.stmt, finder: Finder) -> list[ast.expr]:
    """What a statement pushes, and the arguments of its calls on the ranks."""
    values = []
    for op in finder.within(node):
        if op.kind == "run":
            values += [*op.node.args[1:], *(keyword.value for keyword in op.node.keywords)]
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign) and any(map(finder.operation, inner.targets)):
            values.append(inner.value)
    return values


def _check_run(cell: Cell, op: Operation, found: Sides, safe: set[str]) -> None:
    callee = op.node.args[0]
    if isinstance(callee, ast.Lambda):
        _refuse_defaults(cell, callee, set(names_in(callee).reads) - safe)
    elif isinstance(callee, ast.Name) and callee.id not in found.kernel.functions:
        _refuse_made(cell, callee.id, found)


def _refuse_defaults(cell: Cell, callee: ast.Lambda, unknown: set[str]) -> None:
    """unknown: what the defaults read that ranks lack."""
    for read in sorted(unknown):
        raise cell.refuse(
            f"a default of this lambda reads `{read}`, which only the kernel has, and every "
            "rank of the script would work it out for itself. Pass the value as an argument: "
            f"`ranks.run(lambda {read}: ..., {read})`."
        )
    defaults = [*callee.args.defaults, *filter(None, callee.args.kw_defaults)]
    if any(isinstance(n, ast.Call) for default in defaults for n in ast.walk(default)):
        raise cell.refuse(
            "a default of this lambda calls a function, and every rank of the script would "
            "call it for itself. Pass the value as an argument of `ranks.run`."
        )


def _refuse_made(cell: Cell, name: str, found: Sides) -> None:
    """A callee that a function has made cannot be sent by its name."""
    for binding in found.kernel.binds.get(name, []):
        made = _made_by(binding, found)
        if made:
            raise cell.refuse(
                f"`{name}` is {made}, which a script cannot send to the ranks. "
                f"Define it in a plain cell, with `def {name}(...)`, and pass it what it needs "
                "as arguments."
            )


def _made_by(binding: Binding, found: Sides) -> str:
    match getattr(binding.node, "value", None):
        case ast.Lambda():
            return "a lambda"
        case ast.Call(func=ast.Name(id=maker)) if maker in found.kernel.functions:
            if any(_makes_functions(b.node) for b in found.kernel.binds[maker]):
                return f"a function that `{maker}` has made"
    return ""


def _makes_functions(maker: ast.stmt) -> bool:
    """Whether a function defines others, which it may return."""
    inner = (n for n in ast.walk(maker) if n is not maker)
    return not isinstance(maker, ast.ClassDef) and any(
        isinstance(n, ast.FunctionDef | ast.Lambda) for n in inner
    )


def _refuse_pulled_code(cell: Cell, found: Sides, name: str) -> None:
    for binding in [*found.ranks.binds.get(name, []), *found.kernel.binds.get(name, [])]:
        node = binding.node
        made = isinstance(node, DEFINITIONS) and node.name == name
        if made or isinstance(getattr(node, "value", None), ast.Lambda):
            raise cell.refuse(
                f"`{name}` is a function or a class; pulled by the script, those of all "
                "ranks would become rank 0's. Call it on the ranks, in a `%%px` cell, and "
                "pull what it returns."
            )


def _reads_when_made(cell: Cell, name: str) -> FormError:
    return cell.refuse(
        f"`{name}` goes to the ranks, but its definition reads the kernel's variables "
        "when it is made (a default, a decorator, a base class), or it is made in a cell "
        "that may fail, in a loop or an `if`, or given another value elsewhere. Define it at "
        "the left margin, with literals there and one name for one thing, or in a `%%px` cell."
    )


def _holds_a_value(cell: Cell, name: str) -> FormError:
    return cell.refuse(
        f"`{name}` goes to the ranks, but a value is worked out when it is defined, or "
        "changed later (a list or a call as a default or in a class, an attribute that "
        "is set): in the notebook the ranks get that value from the kernel, in the "
        "script each rank would have its own. Pass the value as an argument, or define "
        f"`{name}` in a `%%px` cell."
    )
