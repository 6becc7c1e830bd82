"""Do the kernel and the ranks both draw random numbers? In the script rank 0 is both."""

import ast

from ranklab.forms.script.cells import Cell
from ranklab.forms.script.scopes import names_in

_SEEDS = {"manual_seed", "manual_seed_all", "seed"}
_DRAWS = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal", "uniform"}
_DRAWS |= {"random", "shuffle", "choice", "choices", "sample", "bernoulli", "multinomial"}
_DRAWS |= {"standard_normal", "permutation", "randrange", "gauss", "dropout", "DataLoader"}
_DRAWS |= {"Linear", "Bilinear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "RNN", "LSTM", "GRU"}
_DRAWS |= {"Dropout", "MultiheadAttention", "Transformer", "TransformerEncoderLayer"}
_IN_PLACE = {"normal_", "uniform_", "bernoulli_", "random_", "exponential_", "trunc_normal_"}
_IN_PLACE |= {"kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def needs_two_streams(cells: list[Cell], imported: set[str]) -> bool:
    """Whether the random numbers of one side could shift those of the other.

    They cannot if only one side draws, or if every cell that draws seeds first.
    """
    functions = _functions_that_draw(cells, imported)
    drawing = [cell for cell in cells if _draws(cell, functions, imported)]
    sides = {cell.on_ranks or _runs(cell, functions) for cell in drawing}
    return len(sides) == 2 and not all(_seeds_first(cell, imported) for cell in drawing)


def _functions_that_draw(cells: list[Cell], imported: set[str]) -> set[str]:
    found: set[str] = set()
    for cell in cells:
        for node in cell.tree.body:
            if isinstance(node, _DEFINITIONS):
                names = names_in(node)
                if (names.later | names.reads) & found or _random_calls(node, imported):
                    found.add(node.name)
    return found


def _draws(cell: Cell, functions: set[str], imported: set[str]) -> bool:
    at_once = [node for node in cell.tree.body if not isinstance(node, _DEFINITIONS)]
    return any(
        names_in(node).reads & functions or _random_calls(node, imported) for node in at_once
    )


def _runs(cell: Cell, functions: set[str]) -> bool:
    """Whether a plain cell calls such a function on the ranks."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "run"
        and any(isinstance(a, ast.Name) and a.id in functions for a in node.args)
        for node in ast.walk(cell.tree)
    )


def _random_calls(node: ast.AST, imported: set[str]) -> list[ast.Call]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Call) and _is_random(n, imported)]


def _is_random(call: ast.Call, imported: set[str]) -> bool:
    if any(keyword.arg == "generator" for keyword in call.keywords):
        return False
    name = _name(call)
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    module = isinstance(root, ast.Name) and root.id in imported
    return name in _IN_PLACE or (name in _DRAWS and module)


def _seeds_first(cell: Cell, imported: set[str]) -> bool:
    calls = [n for n in ast.walk(cell.tree) if isinstance(n, ast.Call)]
    seeds = [call.lineno for call in calls if _name(call) in _SEEDS]
    drawn = [call.lineno for call in calls if _is_random(call, imported)]
    return bool(seeds) and min(seeds) <= min(drawn, default=min(seeds))


def _name(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
