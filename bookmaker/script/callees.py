"""What ranks are to call: refused where it cannot be sent to them as the notebook sends it."""

import ast

from bookmaker.script.bindings import DEFINITIONS, Binding, Bindings
from bookmaker.script.cells import Cell


def refuse_defaults(cell: Cell, callee: ast.Lambda, unknown: set[str]) -> None:
    """Defaults of a lambda that runs on the ranks; unknown: what they read that ranks lack."""
    defaults = [*callee.args.defaults, *filter(None, callee.args.kw_defaults)]
    called = any(isinstance(n, ast.Call) for d in defaults for n in ast.walk(d))
    for read in sorted(unknown):
        raise cell.refuse(
            f"a default of this lambda reads `{read}`, which only the kernel has, and every "
            "rank of the script would work it out for itself. Pass the value as an argument: "
            f"`ranks.run(lambda {read}: ..., {read})`."
        )
    if called:
        raise cell.refuse(
            "a default of this lambda calls a function, and every rank of the script would "
            "call it for itself. Pass the value as an argument of `ranks.run`."
        )


def refuse_made(cell: Cell, bindings: list[Binding], name: str, kinds: dict[str, ast.stmt]) -> None:
    """A callee that a function has made cannot be sent by its name."""
    for binding in bindings:
        value = getattr(binding.node, "value", None)
        match value:
            case ast.Lambda():
                made = "a lambda"
            case ast.Call(func=ast.Name(id=maker)) if maker in kinds:
                if not _makes_functions(kinds[maker]):
                    continue
                made = f"a function that `{maker}` has made"
            case _:
                continue
        raise cell.refuse(
            f"`{name}` is {made}, which a script cannot send to the ranks. "
            f"Define it in a plain cell, with `def {name}(...)`, and pass it what it needs "
            "as arguments."
        )


def refuse_code(cell: Cell, found: Bindings, name: str) -> None:
    """Functions are sent by their name: rank 0 would get its own in place of the others'."""
    for binding in [*found.ranks.get(name, []), *found.kernel.get(name, [])]:
        node = binding.node
        made = isinstance(node, DEFINITIONS) and node.name == name
        if made or isinstance(getattr(node, "value", None), ast.Lambda):
            raise cell.refuse(
                f"`{name}` is a function or a class; pulled by the script, those of all "
                "ranks would become rank 0's. Call it on the ranks, in a `%%px` cell, and "
                "pull what it returns."
            )


def _makes_functions(maker: ast.stmt) -> bool:
    """Whether a function defines others, which it may return."""
    inner = (n for n in ast.walk(maker) if n is not maker)
    return not isinstance(maker, ast.ClassDef) and any(
        isinstance(n, ast.FunctionDef | ast.Lambda) for n in inner
    )
