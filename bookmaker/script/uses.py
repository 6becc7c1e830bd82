"""How plain cells use their names: called, handed on, read in a lambda."""

import ast

from bookmaker.script.cells import Cell
from bookmaker.script.operations import Operation
from bookmaker.script.scopes import Names, names_in


def read_in_lambdas(node: ast.stmt, names: Names, operations: list[Operation]) -> set[str]:
    """What the lambdas of a kernel's statement read, but those that run on the ranks."""
    there: set[str] = set()
    for op in operations:
        if op.kind == "run" and isinstance(op.node.args[0], ast.Lambda):
            there |= names_in(op.node.args[0]).later
    return names.later - there


def passed_on(cells: list[Cell]) -> set[str]:
    """Names that plain cells use other than to call them: what a variable may then hold."""
    return set().union(*(used_as_values(cell.tree) for cell in cells), set())


def called_in(cells: list[Cell]) -> set[str]:
    """Names that plain cells call."""
    nodes = (n for cell in cells for n in ast.walk(cell.tree))
    return {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def used_as_values(tree: ast.AST) -> set[str]:
    """Names that are read other than to be called."""
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return {
        n.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in called
    }
