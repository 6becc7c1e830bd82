"""The imports of a notebook: hoisted to the top, or, if ranklab's, understood."""

import ast
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import ranklab
from ranklab.forms.definitions import take
from ranklab.forms.errors import FormError
from ranklab.forms.script.cells import Cell
from ranklab.forms.script.lab import Lab
from ranklab.forms.script.scopes import names_in
from ranklab.forms.script.source import Edit, Source, replaced_in_fstring

_FOLDER = Path(ranklab.__file__).parent
_PACKAGES = {
    "PIL": "pillow",
    "big_o": "big-O",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "mpl_toolkits": "matplotlib",
    "pynvml": "nvidia-ml-py",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


# Where the names come from that draw.
DRAWING = ("matplotlib.pyplot", "matplotlib.figure", "pylab", "seaborn")


@dataclass
class Imports:
    """statements: import statements, one name each, in the order of the notebook.
    inlined: cell number -> code that stands before this cell."""

    statements: list[str] = field(default_factory=list)
    inlined: dict[int, list[str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    inlined_names: set[str] = field(default_factory=set)

    def add(self, statement: str, cell: Cell | None = None) -> None:
        """Remember a statement to hoist; refuse a name that two different imports bind."""
        node = ast.parse(statement).body[0]
        alias = node.names[0]
        name = alias.asname or alias.name.split(".")[0]
        source = origin(node)
        if alias.name != "*" and not _is_future(node):
            known = self.names.setdefault(name, source)
            if known != source and cell:
                raise cell.refuse(
                    f"`{name}` is imported as `{known}` in one place and as `{source}` in "
                    "another; a script has one top. Give one of them another name (`as`)."
                )
        if statement not in self.statements:
            self.statements.append(statement)


def origin(node) -> str:
    """What the one name of an import stands for: "math", "math.pi"."""
    alias = node.names[0]
    if isinstance(node, ast.Import):
        return alias.name if alias.asname else alias.name.split(".")[0]
    return f"{'.' * node.level}{node.module or ''}.{alias.name}"


def _is_future(node) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def collect(cells: list[Cell], lab: Lab) -> Imports:
    """Hoist the imports, find what is used of ranklab, and take over its definitions."""
    imports, sites = Imports(), {}
    for cell in cells:
        _Flatten(cell, lab, sites).run()
        _refuse_hidden(cell)
        for node in cell.tree.body:
            if is_import(node):
                _one_by_one(node, cell, lab, imports, sites)
    if lab.used and any(source.startswith(DRAWING) for source in imports.names.values()):
        lab.taken.setdefault("ranklab.plots", {}).setdefault("STYLE", ["STYLE"])
        sites.setdefault("ranklab.plots", cells[0])
    for module, wanted in lab.taken.items():
        _inline(module, wanted, sites[module], imports, {})
    return imports


def _one_by_one(node, cell: Cell, lab: Lab, imports: Imports, sites: dict) -> None:
    for alias in node.names:
        single = type(node)(**{**vars(node), "names": [alias]})
        local = alias.asname or alias.name
        if _belongs_to_ranklab(node, alias):
            lab.used = True
            if isinstance(node, ast.ImportFrom) and not _is_module(node.module, alias.name):
                _know(lab, cell, node.module, alias.name, local, sites)
        elif _is_display(node, alias):
            continue
        elif not cell.may_fail:
            imports.add(ast.unparse(single), cell)


def _is_display(node, alias) -> bool:
    """``display`` is replaced by the script's own function."""
    module = getattr(node, "module", "") or ""
    return alias.name == "display" and not alias.asname and module.startswith("IPython")


def _belongs_to_ranklab(node, alias) -> bool:
    module = alias.name if isinstance(node, ast.Import) else node.module or ""
    return module.split(".")[0] == "ranklab"


def _is_module(module: str, name: str) -> bool:
    path = _FOLDER.joinpath(*module.split(".")[1:], name)
    taught = module == "ranklab.taught"
    return (module, name) in {("ranklab", "plots"), ("ranklab", "taught")} or (
        taught and path.with_suffix(".py").exists()
    )


def _know(lab: Lab, cell: Cell, module: str, name: str, local: str, sites: dict) -> None:
    """Remember what a name from ranklab stands for."""
    if name == "*":
        raise cell.refuse(f"`from {module} import *` hides which names it brings: name them.")
    if (module, name) in {("ranklab", "Ranks"), ("ranklab.ranks", "Ranks")}:
        lab.classes.add(local)
    elif (module, name) in {("ranklab", "result"), ("ranklab.results", "result")}:
        lab.results.add(local)
    elif module == "ranklab.plots" or module.startswith("ranklab.taught."):
        locals_ = lab.taken.setdefault(module, {}).setdefault(name, [])
        if local not in locals_:
            locals_.append(local)
        sites.setdefault(module, cell)
    else:
        lab.views[local] = (module, name)


def _refuse_hidden(cell: Cell) -> None:
    top = set(map(id, cell.tree.body))
    for node in ast.walk(cell.tree):
        if is_import(node) and id(node) not in top:
            for alias in node.names:
                if _belongs_to_ranklab(node, alias):
                    raise cell.refuse(
                        f"`{ast.unparse(node)}`: import from ranklab at the top level of a cell."
                    )


class _Flatten:
    """``plots.drawing(...)`` after ``from ranklab import plots`` becomes ``drawing(...)``."""

    modules: dict[str, str]

    def __init__(self, cell: Cell, lab: Lab, sites: dict):
        self.cell, self.lab, self.sites = cell, lab, sites
        self.modules = lab.__dict__.setdefault("modules", {})

    def run(self) -> None:
        for node in self.cell.tree.body:
            if is_import(node):
                self._note_modules(node)
        if self.modules:
            self._rewrite()

    def _note_modules(self, node) -> None:
        for alias in node.names:
            if not _belongs_to_ranklab(node, alias):
                continue
            if isinstance(node, ast.Import):
                path = alias.name if alias.asname else "ranklab"
                self.modules[alias.asname or "ranklab"] = path
            elif _is_module(node.module, alias.name):
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
                _know(self.lab, self.cell, module, name, name, self.sites)
                edits.append((node, name))
            elif isinstance(node, ast.Name) and node.id in self.modules:
                raise self.cell.refuse(
                    f"`{node.id}` is a module of ranklab, which a script does not have; import "
                    "what you use of it by name."
                )
        if edits:
            self._apply(source, edits)

    def _path(self, node: ast.Attribute) -> str | None:
        """The full path of an attribute of one of ranklab's modules: ranklab.plots.drawing."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.modules:
            return None
        path = [self.modules[node.id], *reversed(parts)]
        return None if _is_module(".".join(path[:-1]), path[-1]) else self._inner(path)

    def _inner(self, path: list[str]) -> str | None:
        """Only the shortest path that names something: the rest are its own attributes."""
        joined = ".".join(path)
        module = joined.rpartition(".")[0]
        known = module in ("ranklab", "ranklab.plots") or module.startswith("ranklab.taught.")
        return joined if known else None

    def _apply(self, source: Source, edits) -> None:
        cell = self.cell
        cell.body = substituted(cell, source, edits)
        cell.tree = ast.parse(cell.body)


def substituted(cell: Cell, source: Source, edits) -> str:
    """A cell's text with nodes replaced, also within f-strings."""
    texts = edits_for(cell.tree, source, edits)
    return source._edited(0, len(source.bytes), texts)


def edits_for(tree: ast.AST, source: Source, replaced) -> list[Edit]:
    """Edits that put texts in place of nodes: ``replaced`` holds pairs of both."""
    edits, pending = [], {id(node): (node, text) for node, text in replaced}
    for string in _outermost_fstrings(tree):
        mine = [pending.pop(id(n)) for n in ast.walk(string) if id(n) in pending]
        if mine:
            text = source.text(string)
            for node, new in mine:
                text = replaced_in_fstring(text, node, new) or text
            edits.append(source.edit(string, text))
    edits += [source.edit(node, text) for node, text in pending.values()]
    return edits


def _outermost_fstrings(node: ast.AST):
    if isinstance(node, ast.JoinedStr):
        yield node
    else:
        for child in ast.iter_child_nodes(node):
            yield from _outermost_fstrings(child)


def _inline(module: str, wanted: dict, cell: Cell, imports: Imports, done: dict) -> None:
    """Take definitions of one of ranklab's modules over into the script."""
    path = _FOLDER.joinpath(*module.split(".")[1:]).with_suffix(".py")
    if not path.exists():
        raise cell.refuse(f"there is no `{module}`; `make forms` writes the taught modules.")
    try:
        taken = take(path.read_text(), list(wanted))
    except FormError as error:
        raise cell.refuse(f"`from {module} import ...`: {error}") from None
    for statement in taken.imports:
        node = ast.parse(statement).body[0]
        if _belongs_to_ranklab(node, node.names[0]):
            name = node.names[0]
            _inline(node.module, {name.name: [name.asname or name.name]}, cell, imports, done)
        else:
            imports.add(statement, cell)
    code = [block for block in taken.code if block not in done]
    done.update(dict.fromkeys(taken.code))
    for block in taken.code:
        imports.inlined_names |= names_in(*ast.parse(block).body).binds
    imports.inlined_names |= {local for named in wanted.values() for local in named}
    aliases = [f"{a} = {name}" for name, named in wanted.items() for a in named if a != name]
    site = 0 if module == "ranklab.plots" else cell.place.number
    imports.inlined.setdefault(site, []).extend([f"# From {module}:", *code, *aliases])


def grouped(statements: list[str]) -> str:
    """The import section of the script: future, standard library, packages; merged, sorted."""
    plain, from_ = set(), {}
    for statement in statements:
        node = ast.parse(statement).body[0]
        if isinstance(node, ast.Import):
            plain.add(statement)
        else:
            from_.setdefault("." * node.level + (node.module or ""), set()).add(
                ast.unparse(node.names[0])
            )
    groups: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for statement in sorted(plain, key=lambda s: (_module_of(s).lower(), s)):
        groups[_group(_module_of(statement))].append(statement)
    for module, names in sorted(from_.items(), key=lambda item: item[0].lower()):
        groups[_group(module)].append(_from_line(module, sorted(names, key=_isort_key)))
    return "\n\n".join("\n".join(group) for group in groups.values() if group)


def _isort_key(name: str):
    kind = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    return kind, name.lower()


def _from_line(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 100:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _module_of(statement: str) -> str:
    return statement.split()[1]


def _group(module: str) -> int:
    if module == "__future__":
        return 0
    return 1 if module.split(".")[0] in sys.stdlib_module_names else 2


def packages(statements: list[str], inlined: list[str] = ()) -> list[str]:
    """The names, on the package index, of what the statements and the inlined code import."""
    hidden = re.findall(r"^ *import .*?\b(pygraphviz)\b", "\n".join(inlined), re.MULTILINE)
    modules = {_module_of(s).split(".")[0] for s in statements if _module_of(s)[0] != "."}
    modules -= set(sys.stdlib_module_names) | {"__future__"}
    return sorted({_PACKAGES.get(m, m) for m in modules | set(hidden)}, key=str.lower)


def starts_processes(names: dict[str, str]) -> bool:
    """Whether the code may start processes that import the script, as multiprocessing does."""
    found = set(names.values())
    return any(
        "multiprocessing" in source or source.endswith(("ProcessPoolExecutor", "DataLoader"))
        for source in found
    ) or bool(found & {"concurrent.futures", "concurrent", "torch.utils.data"})
