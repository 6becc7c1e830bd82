"""The taught code of a chapter: its ``#@save`` cells as modules of ``ranklab.taught``."""

import ast
import itertools
import subprocess
from typing import NamedTuple

from nbformat import NotebookNode
from ruff.__main__ import find_ruff_bin

from bookmaker.errors import FormError
from bookmaker.folders import HERE
from bookmaker.manuscript import exercises, manuscript
from bookmaker.taught import definitions
from bookmaker.taught.saved import module_of

# What a rank has without importing it, and what to write instead of the rest.
_RANK_IMPORTS = {"torch": "import torch", "dist": "import torch.distributed as dist"}
_INSTEAD = {
    "rank": "Call `dist.get_rank()` or take it as an argument.",
    "world_size": "Call `dist.get_world_size()` or take it as an argument.",
    "device": "Take the device as an argument, or use a tensor's `.device`.",
    "ranks": "Saved code runs without the notebook's ranks: take what it needs as an argument.",
}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class _Saved(NamedTuple):
    """A ``#@save`` cell: where it is, its Python, its module, and the names that it gives to it."""

    place: str
    source: str
    module: str
    names: list[str]


def path_of(module: str) -> str:
    """Where a module of taught code is, below the repository's root."""
    return f"ranklab/taught/{module}.py"


def files(nb: NotebookNode) -> dict[str, str]:
    """path -> source of the modules of a chapter's taught code: of one, as a rule.

    It has the chapter's name; ``#@save name`` puts what a cell defines into another module.

    Raises FormError for a saved definition that reads a name which the module would not have.
    """
    saved = [_saved(nb, i) for i, cell in enumerate(nb.cells) if is_saved(cell)]
    _check_unique(saved)
    taken = {module: _taken(nb, module, saved) for module in {cell.module: 0 for cell in saved}}
    _check_circles(nb, taken)
    texts = {module: _assembled(nb, found) for module, found in taken.items()}
    return {path_of(module): _formatted(nb, module, text) for module, text in texts.items()}


def _taken(nb: NotebookNode, module: str, saved: list[_Saved]) -> definitions.Taken:
    """What is in one module: what its cells define, with all that this needs."""
    mine = [cell for cell in saved if cell.module == module]
    own = {f"from ranklab.taught.{c.module} import {n}": c.module for c in saved for n in c.names}
    others = [statement for statement, home in own.items() if home != module]
    imports = [statement for statement in _imports(nb) if statement not in own]
    source = "\n\n\n".join([*imports, *others, *(cell.source for cell in mine)])
    taken = definitions.take(source, [name for cell in mine for name in cell.names])
    _check_imports(nb, taken.imports)
    _check_names(mine, taken)
    return taken


def _check_circles(nb: NotebookNode, taken: dict[str, definitions.Taken]) -> None:
    """FormError for two modules that import each other."""
    for one, other in itertools.permutations(taken, 2):
        if _needs(taken[one], other) and _needs(taken[other], one):
            raise FormError(
                f"{manuscript.name_of(nb)}: the taught modules `{one}` and `{other}` need each "
                "other. Save what both need in one of them."
            )


def _needs(taken: definitions.Taken, module: str) -> bool:
    return any(line.startswith(f"from ranklab.taught.{module} ") for line in taken.imports)


def is_saved(cell: NotebookNode) -> bool:
    """Whether ``#@save`` is the cell's first line, below a %%px line if it has one."""
    return cell.cell_type == "code" and _python(cell).lstrip().startswith("#@save")


def _python(cell: NotebookNode) -> str:
    """The cell's Python: without the %%px line."""
    first, _, rest = cell.source.lstrip("\n").partition("\n")
    return rest if first.startswith("%%px") else cell.source


def _saved(nb: NotebookNode, index: int) -> _Saved:
    place, source = manuscript.where(nb, index), _python(nb.cells[index])
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise FormError(
            f"{place}: a saved cell must be plain Python, and its line {error.lineno} is not "
            f"({error.msg}). Move magics to a cell of their own."
        ) from error
    module = module_of(source, manuscript.name_of(nb))
    if not module:
        raise FormError(
            f"{place}: `#@save` stands alone, or before the name of a module: `#@save own_ddp`."
        )
    names = [node.name for node in body if isinstance(node, _DEFINITIONS)]
    if not names:  # a cell of nothing but constants
        targets = [target for node in body for target in getattr(node, "targets", ())]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
    if not names:
        raise FormError(
            f"{place}: `#@save` keeps functions, classes or constants, and there is none in this "
            "cell. Remove the mark, or put a definition there."
        )
    return _Saved(place, source, module, names)


def _check_unique(saved: list[_Saved]) -> None:
    seen: dict[str, str] = {}
    for cell in saved:
        for name in cell.names:
            if name in seen:
                raise FormError(
                    f"{cell.place}: `{name}` is saved already, in {seen[name]}. "
                    "Give one of the two another name."
                )
            seen[name] = cell.place


def _imports(nb: NotebookNode) -> list[str]:
    """The chapter's import statements, a name each, with those that a rank has by itself."""
    found: dict[str, list[str]] = {}
    for index, cell in enumerate(nb.cells):
        if exercises.kind_of(cell):
            continue  # what an answer imports is none of the chapter's
        try:
            tree = ast.parse(_python(cell)) if cell.cell_type == "code" else ast.Module([], [])
        except SyntaxError:
            continue  # a magic, or a cell that is meant to fail
        try:
            imported = definitions.imports_of(tree)
        except FormError as error:
            raise FormError(f"{manuscript.where(nb, index)}: {error}") from None
        for name, statements in imported.items():
            known = found.setdefault(name, [])
            known.extend(s for s in statements if s not in known)
    for name, statement in _RANK_IMPORTS.items():
        found.setdefault(name, [statement])
    return [statement for statements in found.values() for statement in statements]


def _check_imports(nb: NotebookNode, statements: list[str]) -> None:
    """FormError for a name that is imported in two ways, or that is the notebook's own."""
    chapter = manuscript.name_of(nb)
    seen: dict[str, str] = {}
    for statement in statements:
        (node,) = ast.parse(statement).body
        (name,) = definitions.bound_names(node)
        is_submodule = statement == f"import {node.names[0].name}"
        if seen.setdefault(name, statement) != statement and not is_submodule:
            raise FormError(
                f"{chapter}: saved code uses `{name}`, which the chapter imports in two ways, "
                f"`{seen[name]}` and `{statement}`. Import it in one way."
            )
        if isinstance(node, ast.ImportFrom) and node.module == "ranklab":
            raise FormError(
                f"{chapter}: saved code uses `{name}`, which belongs to the notebook "
                f"(`{statement}`). Return the value, and let the cell that calls it do this."
            )


def _check_names(saved: list[_Saved], taken: definitions.Taken) -> None:
    has = {"__name__", "__file__", "__doc__"}
    for statement in [*taken.imports, *taken.code]:
        has.update(*(definitions.bound_names(node) for node in ast.parse(statement).body))
    for code in taken.code:
        missing = sorted(definitions.free_names(code) - has)
        if missing:
            raise FormError(_missing_message(saved, code, missing[0]))


def _missing_message(saved: list[_Saved], code: str, name: str) -> str:
    definition = min(definitions.bound_names(ast.parse(code).body[0]))
    cell = next(c for c in saved if definition in _bound(c.source))
    advice = _INSTEAD.get(name)
    if advice is None:
        advice = (
            f"Take it as an argument, import it, or define it in a cell with `#@save`, "
            f"beside `{definition}`."
        )
    return (
        f"{cell.place}: the saved `{definition}` reads `{name}`, "
        f"which {path_of(cell.module)} will not have. {advice}"
    )


def _bound(source: str) -> set[str]:
    return set().union(*(definitions.bound_names(node) for node in ast.parse(source).body))


def _assembled(nb: NotebookNode, taken: definitions.Taken) -> str:
    origin = f"# {manuscript.origin(nb)}"
    title = manuscript.title_of(nb).replace("\\", "").replace('"', "'")
    chapter = manuscript.name_of(nb)
    docstring = f'"""{title}: what chapter {chapter} teaches."""'
    parts = [origin, docstring, "\n".join(taken.imports), *(f"\n{code}" for code in taken.code)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _formatted(nb: NotebookNode, module: str, source: str) -> str:
    """The module as ruff writes it; FormError with ruff's words if it finds fault with it."""
    name = path_of(module)
    command = [find_ruff_bin(), "check", "--quiet", "--select", "I", "--fix", "--stdin-filename"]
    ordered = _ruff([*command, name, "-"], source)
    formatted = _ruff([find_ruff_bin(), "format", "--stdin-filename", name, "-"], ordered.stdout)
    command = [find_ruff_bin(), "check", "--quiet", "--output-format", "concise"]
    checked = _ruff([*command, "--stdin-filename", name, "-"], formatted.stdout)
    if checked.returncode:
        raise FormError(
            f"{manuscript.name_of(nb)}: ruff finds fault with the saved cells, as {name}:\n"
            f"{checked.stdout}{checked.stderr}Change the cells."
        )
    return formatted.stdout


def _ruff(command: list[str], source: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, input=source, capture_output=True, text=True, cwd=HERE.root, timeout=60
    )
