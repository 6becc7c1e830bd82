"""What code can ask of its process: a script's rank 0 is two, and would answer for both."""

import ast
from collections.abc import Iterator

from bookmaker.script.analyse.lab import Lab
from bookmaker.script.analyse.process_state import full_name
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import names_in

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PROCESS = {"os.getpid", "os.getppid", "multiprocessing.current_process"}
_ASKS = {"is_initialized", "get_rank", "get_world_size", "get_backend", "is_torchelastic_launched"}
_OF_RANKS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_NAMESPACES = {"globals", "exec", "eval"}
_EVALUATED = {"exec", "eval"}
_NAMESPACES_HERE = {"locals", "vars", "dir"}  # without an argument, outside of functions


def check(cells: list[Cell], lab: Lab, imported: dict[str, str]) -> None:
    """Refuse code that asks what names there are, and kernel code that asks who it is."""
    plain = [cell for cell in cells if not cell.on_ranks]
    groups = _functions_of_the_group(plain, imported)
    for cell in cells:
        for node in cell.tree.body:
            _check_namespaces(cell, node)
            if not cell.on_ranks and not isinstance(node, _DEFINITIONS):
                _check_group(cell, node, lab, imported, groups)


def _check_namespaces(cell: Cell, node: ast.stmt) -> None:
    inside = {
        id(inner)
        for outer in ast.walk(node)
        if isinstance(outer, (*_DEFINITIONS, ast.Lambda))
        for inner in ast.walk(outer)
    }
    for inner in ast.walk(node):
        match inner:
            case ast.Call(func=ast.Name(id=name), args=arguments):
                here = name in _NAMESPACES_HERE and not arguments and id(inner) not in inside
                told = name in _EVALUATED and len(arguments) > 1  # which names there are
                if (name in _NAMESPACES and not told) or here:
                    raise cell.refuse(
                        f"`{name}()` sees the names of its process, and rank 0 of a script has "
                        "those of the kernel and of the ranks. Write the names themselves, or tag "
                        "the cell `notebook-only`."
                    )


def _check_group(cell: Cell, node: ast.stmt, lab: Lab, imported, groups: dict[str, str]) -> None:
    on_ranks = _handed_to_ranks(node, lab)
    for inner in ast.walk(node):
        if id(inner) in on_ranks:
            continue
        if isinstance(inner, ast.Call) and full_name(inner.func, imported) in _PROCESS:
            raise cell.refuse(
                f"`{ast.unparse(inner)}` tells of the kernel's process, and in the script of rank "
                "0's. Ask in a `%%px` cell, or tag this one `notebook-only`."
            )
        asked = _asked_of_environment(inner, imported)
        if asked in _OF_RANKS:
            raise cell.refuse(
                f"`{asked}` is in the environment of ranks, and in the notebook not in the "
                "kernel's. Ask in a `%%px` cell; the number of ranks is `ranks.world_size`."
            )
        call = _group_call(inner, imported)
        used = [inner.func, *inner.args] if isinstance(inner, ast.Call) else []
        for name in used:
            if isinstance(name, ast.Name) and id(name) not in on_ranks:
                call = call or groups.get(name.id, "")
        if call:
            raise cell.refuse(
                f"`{call}` is called in the kernel here, which belongs to no process group; in "
                "the script it would be rank 0. Call it in a `%%px` cell or with ranks.run(...); "
                "the number of ranks is `ranks.world_size`."
            )


def _asked_of_environment(node: ast.AST, imported: dict[str, str]) -> str:
    """The name that is read in ``os.environ``; else empty."""
    match node:
        case ast.Subscript(value=owner, slice=ast.Constant(value=str(name))):
            return name if full_name(owner, imported) == "os.environ" else ""
        case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
            return name if full_name(func, imported) in ("os.environ.get", "os.getenv") else ""
    return ""


def _handed_to_ranks(node: ast.AST, lab: Lab) -> set[int]:
    """``id`` of what stands for a function in ``ranks.run(f)`` and ``ranks["f"] = f``."""
    found: set[int] = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="run")):
                if name == lab.ranks:
                    found |= {id(n) for a in inner.args[:1] for n in ast.walk(a)}
                    found |= {id(a) for a in inner.args}
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))], value=value):
                if name == lab.ranks:
                    found.add(id(value))
    return found


def _functions_of_the_group(cells: list[Cell], imported: dict[str, str]) -> dict[str, str]:
    """The notebook's functions that call torch.distributed -> what they call."""
    found: dict[str, str] = {}
    known = [node for cell in cells for node in cell.tree.body if isinstance(node, _DEFINITIONS)]
    for _ in known:
        before = len(found)
        for node in known:
            calls = list(_group_calls(node, imported))
            names = names_in(node)
            calls += [found[name] for name in sorted((names.later | names.reads) & set(found))]
            if calls:
                found.setdefault(node.name, calls[0])
        if len(found) == before:
            break
    return found


def _group_calls(tree: ast.AST, imported: dict[str, str]) -> Iterator[str]:
    return filter(None, (_group_call(node, imported) for node in ast.walk(tree)))


def _group_call(node: ast.AST, imported: dict[str, str]) -> str:
    """The text of a call on torch.distributed that only a rank can make; else empty."""
    if isinstance(node, ast.Attribute | ast.Name):  # kept under another name
        last = full_name(node, imported).removeprefix("torch.distributed.")
        asks = last in _ASKS and full_name(node, imported) != last
        return f"{ast.unparse(node)}()" if asks else ""
    if not isinstance(node, ast.Call):
        return ""
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, *_]):
            if full_name(owner, imported) == "torch.distributed":
                return ast.unparse(node)
    name = full_name(node.func, imported)
    last = name.rpartition(".")[2]
    if not name.startswith("torch.distributed."):
        return ""
    harmless = last[:1].isupper() or (last.startswith("is_") and last.endswith("_available"))
    if harmless or last == "is_available" or ".run." in name or ".launch" in name:
        return ""
    return f"{ast.unparse(node.func)}()"
