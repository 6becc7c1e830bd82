"""The imports of a notebook, which a script has at its top."""

import ast
from dataclasses import dataclass, field

from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import origin

# Where the names come from that draw.
DRAWING = ("matplotlib.pyplot", "matplotlib.figure", "pylab", "seaborn")


@dataclass
class Imports:
    """statements: import statements, one name each, in the order of the notebook.
    inlined: blocks of ranklab's own code that the script takes over, in an order that runs, each
    with its module. homes: the names in them -> the module that each is from."""

    statements: list[str] = field(default_factory=list)
    inlined: list[tuple[str, str]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)

    @property
    def inlined_names(self) -> set[str]:
        return set(self.homes)

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


def _is_future(node) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def starts_processes(names: dict[str, str]) -> bool:
    """Whether the code may start processes that import the script, as multiprocessing does."""
    found = set(names.values())
    return any(
        "multiprocessing" in source or source.endswith(("ProcessPoolExecutor", "DataLoader"))
        for source in found
    ) or bool(found & {"concurrent.futures", "concurrent", "torch.utils.data"})


def imported_inside(code: str) -> list[str]:
    """The modules that some code imports below its top level, as functions do."""
    tree, modules = ast.parse(code), []
    for node in set(ast.walk(tree)) - set(tree.body):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules.append(node.module)
    return modules
