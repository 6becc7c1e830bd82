"""What a notebook takes of ranklab: names understood, modules flattened, code inlined."""

import ast
from pathlib import Path

import ranklab
from bookmaker.errors import FormError
from bookmaker.script.analyse.imports import Imports
from bookmaker.script.analyse.lab import Lab
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import is_import, names_in
from bookmaker.script.read.source import Source, edits_for
from bookmaker.taught.definitions import take

_FOLDER = Path(ranklab.__file__).parent
# What a script carries along, beside the taught code.
_CARRIED = frozenset({"plots", "playable", "programs", "framework", "images"})


def belongs_to_ranklab(node, alias) -> bool:
    """Whether one name of an import statement is ranklab's."""
    module = alias.name if isinstance(node, ast.Import) else node.module or ""
    return module.split(".")[0] == "ranklab"


def is_module(module: str, name: str) -> bool:
    """Whether a name in one of ranklab's packages is a module there."""
    path = _FOLDER.joinpath(*module.split(".")[1:], name)
    taught = module == "ranklab.taught"
    return (module == "ranklab" and name in _CARRIED | {"taught"}) or (
        taught and path.with_suffix(".py").exists()
    )


def is_carried(module: str) -> bool:
    """Whether a script carries definitions of this module of ranklab's along."""
    parts = module.split(".")
    return parts[0] == "ranklab" and len(parts) > 1 and parts[1] in _CARRIED


def _file(module: str) -> Path:
    """The file of one of ranklab's modules, if there is such a module."""
    folder = _FOLDER.joinpath(*module.split(".")[1:])
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def know(lab: Lab, cell: Cell, module: str, name: str, local: str, sites: dict) -> None:
    """Remember what a name from ranklab stands for."""
    if name == "*":
        raise cell.refuse(f"`from {module} import *` hides which names it brings: name them.")
    if (module, name) in {("ranklab", "Ranks"), ("ranklab.ranks", "Ranks")}:
        lab.classes.add(local)
    elif (module, name) in {("ranklab", "result"), ("ranklab.results", "result")}:
        lab.results.add(local)
    elif is_carried(module) or module.startswith("ranklab.taught."):
        locals_ = lab.taken.setdefault(module, {}).setdefault(name, [])
        if local not in locals_:
            locals_.append(local)
        sites.setdefault(module, cell)
    else:
        lab.views[local] = (module, name)


class Flatten:
    """``plots.drawing(...)`` after ``from ranklab import plots`` becomes ``drawing(...)``."""

    def __init__(self, cell: Cell, lab: Lab, sites: dict, own: dict):
        self.cell, self.lab, self.sites, self.own = cell, lab, sites, own
        self.modules = lab.modules

    def run(self) -> None:
        """Rewrite the cell, and remember what it uses. own: what `own_taught.saved` gives."""
        mine = [node for node in self.cell.tree.body if self._is_own(node)]
        if mine:
            self._apply(Source(self.cell.body), [(node, "") for node in mine])
        for node in self.cell.tree.body:
            if is_import(node):
                self._note_modules(node)
        if self.modules:
            self._rewrite()

    def _is_own(self, node: ast.stmt) -> bool:
        """Whether a statement imports what the chapter's own cells define; remember that."""
        if not isinstance(node, ast.ImportFrom) or node.module not in self.own:
            return False
        for alias in node.names:
            if alias.asname or alias.name not in self.own[node.module]:
                raise self.cell.refuse(
                    f"`{ast.unparse(node)}`: of the chapter's own taught code import what a "
                    "`#@save` cell defines, by its name."
                )
            self.lab.own.setdefault(alias.name, self.cell)
        return True

    def _note_modules(self, node) -> None:
        for alias in node.names:
            if not belongs_to_ranklab(node, alias):
                continue
            if isinstance(node, ast.Import):
                path = alias.name if alias.asname else "ranklab"
                self.modules[alias.asname or "ranklab"] = path
            elif is_module(node.module, alias.name):
                self.modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def _rewrite(self) -> None:
        source, edits, inside = Source(self.cell.body), [], set()
        for node in ast.walk(self.cell.tree):
            if id(node) in inside:
                continue
            path = self._path(node) if isinstance(node, ast.Attribute) else None
            if path:
                inside.update(map(id, ast.walk(node)))
                module, _, name = path.rpartition(".")
                know(self.lab, self.cell, module, name, name, self.sites)
                edits.append((node, name))
            elif isinstance(node, ast.Name) and node.id in self.modules:
                raise self.cell.refuse(
                    f"`{node.id}` is a module of ranklab, which a script does not have; import "
                    "what you use of it by name."
                )
        if edits:
            self._refuse_own({name for _, name in edits})
            self._apply(source, edits)

    def _refuse_own(self, names: set[str]) -> None:
        """A name that the script gives to ranklab's must not be one of the cell's own."""
        for node in ast.walk(self.cell.tree):
            own = getattr(node, "arg", None) or getattr(node, "name", None)
            own = node.id if isinstance(node, ast.Name) else own
            stored = isinstance(getattr(node, "ctx", ast.Store()), ast.Store)
            if own in names and stored and not isinstance(node, ast.keyword | ast.alias):
                raise self.cell.refuse(
                    f"in the script ranklab's `{own}` goes by this name alone, and the cell has a "
                    f"`{own}` of its own. Give that one another name."
                )

    def _path(self, node: ast.Attribute) -> str | None:
        """The full path of an attribute of one of ranklab's modules: ranklab.plots.drawing."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.modules:
            return None
        path = [self.modules[node.id], *reversed(parts)]
        return None if is_module(".".join(path[:-1]), path[-1]) else self._inner(path)

    def _inner(self, path: list[str]) -> str | None:
        """Only the shortest path that names something: the rest are its own attributes."""
        joined = ".".join(path)
        module = joined.rpartition(".")[0]
        ours = is_carried(module) or module.startswith("ranklab.taught.")
        return joined if module == "ranklab" or (ours and _file(module).exists()) else None

    def _apply(self, source: Source, edits) -> None:
        cell = self.cell
        cell.body = source.whole(edits_for(cell.tree, source, edits))
        cell.tree = ast.parse(cell.body)


def inline(module: str, wanted: dict, cell: Cell, imports: Imports, done: set) -> None:
    """Take definitions of one of ranklab's modules over into the script, but what is `done`."""
    path = _file(module)
    if not path.exists():
        raise cell.refuse(f"there is no `{module}`; `make forms` writes the taught modules.")
    try:
        taken = take(path.read_text(), list(wanted))
    except FormError as error:
        raise cell.refuse(f"`from {module} import ...`: {error}") from None
    for statement in taken.imports:
        node = ast.parse(statement).body[0]
        if belongs_to_ranklab(node, node.names[0]):
            name = node.names[0]
            inline(node.module, {name.name: [name.asname or name.name]}, cell, imports, done)
        else:
            imports.add(statement, cell)
    aliases = [f"{a} = {name}" for name, named in wanted.items() for a in named if a != name]
    for block in [*(block for block in taken.code if block not in done), *aliases]:
        for name in sorted(names_in(*ast.parse(block).body).binds):
            if imports.homes.setdefault(name, module) != module:
                raise cell.refuse(
                    f"`{name}` is one thing in {imports.homes[name]} and another in {module}, and "
                    "the script would hold both. Give one of them another name."
                )
        imports.inlined.append((module, block))
    done.update(taken.code)
