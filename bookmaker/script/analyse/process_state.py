"""Settings that a process has once: the notebook's kernel and ranks have their own, a script's
rank 0 has one for both."""

import ast
from collections.abc import Iterator

from bookmaker.script.analyse.imports import DRAWING
from bookmaker.script.analyse.lab import Lab
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import is_import

# Functions that set something for the whole process, by their full names.
_SETTERS = {
    "torch.set_grad_enabled",
    "torch.autograd.set_grad_enabled",
    "torch.use_deterministic_algorithms",
    "torch.set_float32_matmul_precision",
    "torch.set_flush_denormal",
    "torch.set_printoptions",
    "torch.autograd.set_detect_anomaly",
    "numpy.seterr",
    "numpy.seterrcall",
    "numpy.set_printoptions",
    "decimal.setcontext",
    "locale.setlocale",
    "os.chdir",
    "os.fchdir",
    "os.umask",
    "os.putenv",
    "os.unsetenv",
    "sys.setrecursionlimit",
    "sys.set_int_max_str_digits",
    "signal.signal",
    "socket.setdefaulttimeout",
    "warnings.simplefilter",
    "warnings.filterwarnings",
    "warnings.resetwarnings",
    "logging.basicConfig",
    "logging.disable",
    "logging.captureWarnings",
    "pandas.set_option",
    "pandas.reset_option",
    "sys.setswitchinterval",
    "faulthandler.enable",
    "multiprocessing.set_start_method",
    "torch.multiprocessing.set_start_method",
    "torch.multiprocessing.set_sharing_strategy",
}
# Some of them, with what a fresh process has: a cell may set it back at its end.
_DEFAULTS = {
    "torch.set_float32_matmul_precision": "'highest'",
    "torch.use_deterministic_algorithms": "False",
}
# Methods of a logger, which all of a process share by its name.
_OF_LOGGERS = {"setLevel", "addHandler", "removeHandler", "addFilter"}
# What the script keeps apart by itself, or what acts on an object that it is given.
_STREAMS = {"torch.set_num_threads", "torch.set_rng_state", "torch.random.set_rng_state"}
_STREAMS |= {"torch.cuda.set_rng_state", "numpy.random.set_state", "torch.cuda.set_device"}
# Of drawing, the script takes care; and IPython asks no `excepthook`.
_OWN_BUSINESS = (*DRAWING, "sys.excepthook")
_DICT_CHANGES = {"update", "setdefault", "pop", "popitem", "clear", "__setitem__", "__delitem__"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# The script's own processes are started by these.
_LAUNCHERS = {"RANKLAB_RANKS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
_LAUNCHERS |= {"MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"}


def full_name(node: ast.AST, imported: dict[str, str]) -> str:
    """``numpy.random.rand`` for ``np.random.rand``; empty if it begins at no imported name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in imported:
        return ""
    return ".".join([imported[node.id], *reversed(parts)])


def check(cells: list[Cell], lab: Lab, imported: dict[str, str]) -> None:
    """Refuse settings of one side alone. cells: those of the script."""
    if not lab.has_ranks:
        return
    for cell, node, what in _settings(cells, imported):
        if id(node) in inherited(cells, lab, imported) or _on_both_sides(cells, cell, node, lab):
            continue
        raise cell.refuse(_why(what, cell, _before_ranks(cells, cell, lab)))


def inherited(cells: list[Cell], lab: Lab, imported: dict[str, str]) -> set[int]:
    """``id`` of the settings before ``Ranks(...)`` that a notebook's ranks inherit."""
    found = set()
    for cell in cells:
        for node in cell.tree.body:
            if lab.makes_ranks(node):
                return found
            if not cell.may_fail and _is_inherited(node, imported):
                found.add(id(node))
    return found


def _is_inherited(node: ast.stmt, imported: dict[str, str]) -> bool:
    match node:
        case ast.Assign(
            targets=[ast.Subscript(value=owner, slice=ast.Constant(value=str(name)))],
            value=ast.Constant(value=str()),
        ):
            return full_name(owner, imported) == "os.environ" and name not in _LAUNCHERS
        case ast.Expr(value=ast.Call(func=func, args=[ast.Constant(value=str())], keywords=[])):
            return full_name(func, imported) == "os.chdir"
    return False


def _settings(cells: list[Cell], imported: dict[str, str]) -> Iterator[tuple]:
    """(cell, statement, what it sets) for all that a cell itself, or a function of it, sets."""
    for cell in cells:
        passing = _undone(cell.tree, imported) | _set_back(cell.tree, imported)
        for node in _statements(cell.tree):
            what = "" if id(node) in passing else _sets(node, imported)
            if what:
                yield cell, node, what


def _undone(tree: ast.AST, imported: dict[str, str]) -> set[int]:
    """``id`` of what a ``with warnings.catch_warnings():`` undoes at its end."""
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        and isinstance(node.items[0].context_expr, ast.Call)
        and full_name(node.items[0].context_expr.func, imported) == "warnings.catch_warnings"
        for inner in ast.walk(node)
        if _is_of_warnings(inner, imported)
    }


def _set_back(tree: ast.AST, imported: dict[str, str]) -> set[int]:
    """``id`` of settings whose last one in the cell is the default of a fresh process."""
    calls = {}
    for node in _statements(tree):
        match node:
            case ast.Expr(value=ast.Call(func=func, args=[value])):
                calls.setdefault(full_name(func, imported), []).append((node, value))
    return {
        id(node)
        for name, those in calls.items()
        if ast.unparse(max(those, key=lambda one: one[0].lineno)[1]) == _DEFAULTS.get(name)
        for node, _ in those
    }


def _is_of_warnings(node: ast.AST, imported: dict[str, str]) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and full_name(call.func, imported).startswith("warnings.")


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def _sets(node: ast.stmt, imported: dict[str, str]) -> str:
    """What a simple statement sets for its process, as a text; empty if nothing."""
    if isinstance(node, ast.AugAssign) and full_name(node.target, imported) == "os.environ":
        return "os.environ"
    if isinstance(node, ast.Assign) and full_name(node.value, imported) == "os.environ":
        return ast.unparse(node)  # another name for what may then be changed
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    stored = [_stores(target, imported) for target in targets]
    called = [_called(inner, imported) for part in _at_once(node) for inner in ast.walk(part)]
    return next(filter(None, stored + called), "")


def _at_once(node: ast.stmt) -> list[ast.AST]:
    """What a statement evaluates itself; of a ``with`` nothing, for that ends by itself."""
    match node:
        case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
            return [head]
        case ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Return():
            return [node]
        case ast.Assert():
            return [node]
    return []


def _stores(target: ast.AST, imported: dict[str, str]) -> str:
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return next(filter(None, (_stores(part, imported) for part in parts)), "")
        case ast.Subscript(value=owner) if full_name(owner, imported) == "os.environ":
            return ast.unparse(target)
        case ast.Attribute(value=ast.Call(func=func)):
            called = full_name(func, imported) == "decimal.getcontext"
            return ast.unparse(target) if called else ""
        case ast.Attribute():
            name = full_name(target, imported)
            return ast.unparse(target) if name and not name.startswith(_OWN_BUSINESS) else ""
    return ""


def _called(node: ast.AST, imported: dict[str, str]) -> str:
    match node:
        case ast.Call(func=ast.Name(id="setattr"), args=[owner, *_]) if full_name(owner, imported):
            return ast.unparse(node)
        case ast.Call(func=ast.Attribute(value=owner, attr=method) as func):
            if full_name(owner, imported) == "os.environ" and method in _DICT_CHANGES:
                return ast.unparse(func)
    if isinstance(node, ast.Call):
        name = full_name(node.func, imported)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        last = name.rpartition(".")[2]
        sets = last.startswith(("set_", "seterr")) and name not in _STREAMS
        if name in _SETTERS or method in _OF_LOGGERS or (sets and name):
            return ast.unparse(node.func)
    return ""


# ---- the same on both sides --------------------------------------------------------------


def _on_both_sides(cells: list[Cell], cell: Cell, node: ast.stmt, lab: Lab) -> bool:
    """Whether a cell of the other side does the same, with nothing done in between."""
    at = cells.index(cell)
    if node not in cell.tree.body or cell.targets.chosen is not None:
        return False
    for step in (1, -1):
        other = at + step
        while 0 <= other < len(cells) and _idle(cells[other].tree.body, lab):
            other += step
        if not 0 <= other < len(cells):
            continue
        first, second = (cell, cells[other]) if step == 1 else (cells[other], cell)
        if first.on_ranks != second.on_ranks and _twins(first, second, node, lab):
            return True
    return False


def _twins(first: Cell, second: Cell, node: ast.stmt, lab: Lab) -> bool:
    """Whether the second of two cells begins with what the first one did, too."""
    if first.targets.chosen is not None or second.targets.chosen is not None:
        return False
    done = {ast.dump(each) for each in first.tree.body}
    wanted = ast.dump(node)
    for each in second.tree.body:
        if ast.dump(each) == wanted:
            return wanted in done
        if not _idle([each], lab) and ast.dump(each) not in done:
            return False
    return False


def _idle(body: list[ast.stmt], lab: Lab) -> bool:
    """Whether statements compute nothing: imports, definitions, ``Ranks(...)``."""
    return all(
        is_import(node) or isinstance(node, _DEFINITIONS) or lab.makes_ranks(node) for node in body
    )


def _before_ranks(cells: list[Cell], cell: Cell, lab: Lab) -> bool:
    for other in cells:
        if other is cell:
            return not any(map(lab.makes_ranks, cell.tree.body))
        if any(map(lab.makes_ranks, other.tree.body)):
            return False
    return False


def _why(what: str, cell: Cell, early: bool) -> str:
    if early and "os." in what:
        return (
            f"`{what}` changes what the ranks inherit; in a script they are started before any "
            "cell runs. Write plain strings, other than what launches the ranks "
            f"({', '.join(sorted(_LAUNCHERS)[:3])}, ...), or tag the cell `notebook-only`."
        )
    mine, other = ("the ranks", "the kernel") if cell.on_ranks else ("the kernel", "the ranks")
    where = "a plain cell" if cell.on_ranks else "a `%%px` cell"
    return (
        f"`{what}` is a setting of the whole process. In the notebook {mine} would have it and "
        f"{other} would not; in the script rank 0 is both. Write the same statement at the "
        f"beginning of {where} next to this one, or tag the cell `notebook-only`."
    )
