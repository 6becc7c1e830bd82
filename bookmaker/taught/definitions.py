"""Take definitions out of a module's source, with everything that they need from it."""

import ast
import builtins
from dataclasses import dataclass
from typing import NamedTuple

from bookmaker.errors import FormError
from bookmaker.taught import symbols

_IMPORTS = (ast.Import, ast.ImportFrom)


class Taken(NamedTuple):
    """Import statements, one for each name, and blocks of code, both in source order."""

    imports: list[str]
    code: list[str]


@dataclass(frozen=True)
class _Block:
    """Top-level statements that share lines, with the comments directly above them."""

    text: str
    binds: frozenset[str]
    reads: frozenset[str]


def take(source: str, names) -> Taken:
    """The definitions of ``names`` in ``source``, and all that these need from there.

    A name that the module imports gives its import statement. ``from __future__`` imports
    come along, for they change what the code means. Raises FormError, whose message has no
    place yet, if a name is not bound in the module.
    """
    tree = _parse(source)
    imports = imports_of(tree)
    blocks = _blocks(source, tree)
    bound = set(imports).union(*(block.binds for block in blocks))
    missing = sorted(set(names) - bound)
    if missing:
        raise FormError(f"there is no {', '.join(f'`{name}`' for name in missing)} to take.")

    needed, chosen = set(names), set()
    while True:
        new = [i for i, b in enumerate(blocks) if i not in chosen and b.binds & needed]
        if not new:
            break
        chosen.update(new)
        needed.update(*(blocks[i].reads for i in new))
    future = imports.get("__future__", [])
    taken_imports = [s for name, found in imports.items() if name in needed for s in found]
    return Taken(future + taken_imports, [blocks[i].text for i in sorted(chosen)])


def imports_of(tree: ast.Module) -> dict[str, list[str]]:
    """The import statements at the top level, one for each name they bind.

    ``import a.b`` and ``import a.c`` both bind ``a``, so a name may have several. Those from
    ``__future__`` stand under "__future__".
    """
    found: dict[str, list[str]] = {}
    for node in tree.body:
        if not isinstance(node, _IMPORTS):
            continue
        for alias in node.names:
            if alias.name == "*":
                raise FormError(f"`{ast.unparse(node)}` hides which names it brings: name them.")
            future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            name = "__future__" if future else alias.asname or alias.name.split(".")[0]
            single = type(node)(**{**vars(node), "names": [alias]})
            statement = ast.unparse(single)
            if statement not in found.setdefault(name, []):
                found[name].append(statement)
    return found


def free_names(source: str) -> set[str]:
    """The names that ``source`` reads, or its functions do, as globals; builtins left out."""
    names: set[str] = set()
    tables = [symbols.table(source)]
    while tables:
        table = tables.pop()
        tables.extend(table.get_children())
        for symbol in table.get_symbols():
            is_global = table.get_type() == "module" or symbol.is_global()
            if is_global and symbol.is_referenced():
                names.add(symbol.get_name())
    return {name for name in names if not hasattr(builtins, name)}


def bound_names(node: ast.stmt) -> set[str]:
    """The module-level names that a top-level statement binds or changes in place."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Expr):
        return _changed_by_call(node.value)
    table = symbols.table(ast.unparse(node))
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    for target in _targets(node):
        bound |= _root_name(target)
    return bound


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def _changed_by_call(node: ast.expr) -> set[str]:
    # `table.update(...)` and `table[0].append(...)` belong to what `table` is.
    is_method_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return _root_name(node.func) if is_method_call else set()


def _root_name(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise FormError(f"line {error.lineno} is not Python: {error.msg}.") from error


def _blocks(source: str, tree: ast.Module) -> list[_Block]:
    lines = source.splitlines()
    imported = set(imports_of(tree))
    blocks = []
    for nodes in _sharing_lines(tree.body):
        if all(isinstance(node, _IMPORTS) for node in nodes):
            continue
        first, last = _first_line(nodes[0]), max(node.end_lineno for node in nodes)
        body = "\n".join(lines[first - 1 : last])
        binds = frozenset().union(*(bound_names(node) for node in nodes))
        reads = frozenset(free_names(body))
        # `plt.rcParams.update(...)` changes another module: it does not define `plt`.
        if binds and not binds <= imported:
            blocks.append(_Block(_comments_above(lines, first) + body, binds - imported, reads))
    return blocks


def _sharing_lines(nodes: list[ast.stmt]) -> list[list[ast.stmt]]:
    groups: list[list[ast.stmt]] = []
    for node in nodes:
        if groups and _first_line(node) <= groups[-1][-1].end_lineno:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _comments_above(lines: list[str], first: int) -> str:
    start = first - 1
    while start > 0 and lines[start - 1].startswith("#"):
        start -= 1
    kept = [line for line in lines[start : first - 1] if not _is_mark(line)]
    return "".join(f"{line}\n" for line in kept)


def _is_mark(line: str) -> bool:
    """Whether a comment speaks to the forms, not to the reader."""
    return line.startswith(("#@save", "# Generated from "))
