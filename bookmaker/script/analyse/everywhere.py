"""Functions and classes of plain cells that every rank of the script can define for itself."""

import ast

from bookmaker.script.analyse.imports import Imports
from bookmaker.script.analyse.sides import DEFINITIONS
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import BUILTINS, changed_in, names_in

_SEEN = BUILTINS & {"print", "input", "open", "next", "exec", "eval", "setattr"}
_DRAWS = {"torch", "random", "numpy", "secrets", "uuid", "time", "nn"}
_MUTABLE = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
_FIXED = {"field", "dataclass", "tuple", "frozenset", "int", "float", "str", "len", "range"}


def defined_everywhere(
    cells: list[Cell], imports: Imports, apart: set[str], values: set[str]
) -> set[str]:
    """Those that need nothing of the kernel's to be defined, and that nothing else binds.

    apart: names that the ranks use for something else. values: names that all ranks have, too.
    """
    definitions = _definitions(cells)
    known = set(imports.names) | set(imports.inlined_names) | values
    later = {name: _runs(those) for name, those in definitions.items() if name not in apart}
    found = set(definitions) - _bound_otherwise(cells) - apart
    while True:
        bad = {
            name
            for name in found
            for node in definitions[name]
            if not _qualifies(node, known | (found & _before(definitions, name)), later, imports)
        }
        if not bad:
            return found
        found -= bad


def sendable(cells: list[Cell], everywhere: set[str]) -> set[str]:
    """Those that also mean the same on every rank for as long as the script runs: nothing in
    them was worked out, or can be changed, once they are defined."""
    definitions, plain = _definitions(cells), [cell for cell in cells if not cell.on_ranks]
    changed = changed_in(*(cell.tree for cell in plain))
    return {
        name
        for name in everywhere - changed
        if not any(
            _has_state(node, changed) or _keeps_count(node, definitions)
            for node in definitions[name]
        )
    }


def _definitions(cells: list[Cell]) -> dict[str, list[ast.stmt]]:
    found: dict[str, list[ast.stmt]] = {}
    for cell in cells:
        for node in cell.tree.body:
            if isinstance(node, DEFINITIONS) and not cell.on_ranks and not cell.may_fail:
                found.setdefault(node.name, []).append(node)
    return found


def _runs(definitions: list[ast.stmt]) -> set[str]:
    """What a function reads when it is called, and a class when another is derived from it."""
    found = set()
    for node in definitions:
        hooks = [
            n
            for n in (node.body if isinstance(node, ast.ClassDef) else [node])
            if isinstance(n, DEFINITIONS)
            and (n is node or n.name in ("__init_subclass__", "__init__", "__call__", "__new__"))
        ]
        found |= names_in(*hooks).later if hooks else set()
    return found - {"__class__"}  # what super() reads, and no name of the module's


def _before(definitions: dict, name: str) -> set[str]:
    """Names with a definition before the first one of this name, and the name itself."""
    order = list(definitions)
    return set(order[: order.index(name) + 1])


def _bound_otherwise(cells: list[Cell]) -> set[str]:
    """Names that plain cells also bind in another way than at the top level by a definition."""
    found = set()
    for cell in cells:
        if cell.on_ranks:
            continue
        for node in cell.tree.body:
            names = names_in(node)
            own = {node.name} if isinstance(node, DEFINITIONS) and not cell.may_fail else set()
            found |= (names.binds - own) | names.later_binds
    return found


def _qualifies(node: ast.stmt, known: set[str], later: dict, imports: Imports) -> bool:
    read = names_in(node).reads
    if not read <= known | {node.name} or _acts(node, set(later), imports):
        return False
    used = _used_at_once(node) & set(later)  # a decorator, a base: these run now
    return all(later[name] <= known | set(later) for name in _closed(used, later))


def _closed(names: set[str], later: dict[str, set[str]]) -> set[str]:
    found, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name in later and name not in found:
            found.add(name)
            todo += later[name]
    return found


def _used_at_once(node: ast.stmt) -> set[str]:
    """Names whose code runs when a function or a class is made: decorators, say."""
    parts = [made for n in _made_at_once(node) for made in n.decorator_list]
    if isinstance(node, ast.ClassDef):
        parts += [*node.bases, *node.keywords]
    return {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}


def _made_at_once(node: ast.stmt) -> list[ast.stmt]:
    inner = node.body if isinstance(node, ast.ClassDef) else []
    return [node, *(d for n in inner if isinstance(n, DEFINITIONS) for d in _made_at_once(n))]


def _at_once(node: ast.stmt) -> list[ast.AST]:
    """Everything in a definition that is worked out when it is made, but its decorators."""
    if isinstance(node, ast.ClassDef):
        parts = [*node.bases, *node.keywords]
        for part in node.body:
            parts += _at_once(part) if isinstance(part, DEFINITIONS) else [part]
        return parts
    return [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]


def _calls(node: ast.stmt) -> list[ast.Call]:
    inner = (n for part in _at_once(node) for n in ast.walk(part))
    return [n for n in inner if isinstance(n, ast.Call)]


def _acts(node: ast.stmt, own: set[str], imports: Imports) -> bool:
    """Whether something is seen when it is made: a decorator that registers it, a print, a
    random number drawn. own: functions of the notebook's, of which one cannot know."""
    if any(_last_name(made) == "register" for made in node.decorator_list):
        return True
    for call in _calls(node):
        root = call.func
        while isinstance(root, ast.Attribute):
            root = root.value
        name = root.id if isinstance(root, ast.Name) else ""
        if name in _SEEN or name in own or imports.names.get(name, "").split(".")[0] in _DRAWS:
            return True
    return False


def _changes_its_class(node: ast.stmt) -> bool:
    """Whether methods write to their class: ``type(self).made += 1``, ``cls.made = 1``."""
    stored = [
        n.value
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store | ast.Del)
    ]
    return any(map(_is_own_class, stored))


def _is_own_class(owner: ast.expr) -> bool:
    match owner:
        case ast.Name(id="cls" | "__class__") | ast.Attribute(attr="__class__"):
            return True
        case ast.Call(func=ast.Name(id="type"), args=[_]):
            return True
    return False


def _last_name(node: ast.expr) -> str:
    """``c`` of ``a.b.c`` and of ``a.b.c(...)``."""
    match node.func if isinstance(node, ast.Call) else node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _keeps_count(node: ast.stmt, definitions: dict[str, list[ast.stmt]]) -> bool:
    """Whether a decorator of the notebook's own may remember something: how often, say."""
    own = [d for made in node.decorator_list for d in definitions.get(_last_name(made), [])]
    inner = [n for each in own for n in ast.walk(each)]
    return any(isinstance(n, ast.Nonlocal | ast.Global) for n in inner) or bool(changed_in(*own))


def _has_state(node: ast.stmt, changed: set[str]) -> bool:
    if isinstance(node, ast.ClassDef) and _changes_its_class(node):
        return True
    inner = [n for part in _at_once(node) for n in ast.walk(part)]
    for n in inner:
        if isinstance(n, _MUTABLE):
            return True
        if isinstance(n, ast.Call) and _last_name(n) not in _FIXED:
            return True
        if isinstance(n, ast.Name) and n.id in changed:
            return True
    return False
