"""What a notebook uses of ranklab: its ranks, results, views, drawings and taught code."""

import ast
from dataclasses import dataclass, field

from bookmaker.script.read.cells import Cell

# What a notebook's Ranks(...) may say, with what it says if it does not.
DEFAULTS = {
    "n": 4,
    "backend": None,
    "device": None,
    "timeout": 20.0,
    "debug": False,
    "engines": None,
}
# A cell with this is left out where ranklab is missing, and so is what needs the cell's values.
MEASURES = "ranklab.gpu"


@dataclass
class Lab:
    """The names under which a notebook knows the parts of ranklab.

    ranks: the variable that holds the Ranks; settings: the arguments it was made with.
    classes: names of ``Ranks``; results: names of ``result``; views: local name -> module and
    name; modules: local name -> module of ranklab's; taken: module -> name there -> local names.
    own: what is imported from the chapter's own taught code -> the cell that does.
    """

    used: bool = False
    ranks: str | None = None
    has_ranks: bool = False
    made_in: str = ""
    modules: dict[str, str] = field(default_factory=dict)
    settings: dict = field(default_factory=lambda: dict(DEFAULTS))
    classes: set[str] = field(default_factory=set)
    results: set[str] = field(default_factory=set)
    views: dict[str, tuple[str, str]] = field(default_factory=dict)
    taken: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    own: dict[str, Cell] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """Names that stand for parts of the lab and not for a value of the notebook's."""
        mine = {self.ranks} if self.ranks else set()
        return mine | self.classes | self.results | set(self.views)

    @property
    def shown(self) -> set[str]:
        """The views that have a stand-in where ranklab is missing."""
        return {local for local, (module, _) in self.views.items() if module != MEASURES}

    @property
    def measures(self) -> set[str]:
        return set(self.views) - self.shown

    def makes_ranks(self, node: ast.AST) -> bool:
        """Whether a statement is ``ranks = Ranks(...)`` or ``Ranks(...)``."""
        return (
            isinstance(node, ast.Assign | ast.Expr | ast.AnnAssign)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id in self.classes
        )


def called_in_head(node: ast.With) -> set[str]:
    """The functions of ``with trace() as t:``."""
    calls = (item.context_expr for item in node.items)
    names = (call.func for call in calls if isinstance(call, ast.Call))
    return {name.id for name in names if isinstance(name, ast.Name)}


def find_ranks(lab: Lab, cells: list[Cell]) -> None:
    """Find the one ``Ranks(...)`` of the notebook, and read its arguments."""
    for cell in cells:
        if cell.on_ranks and not lab.has_ranks:
            raise cell.refuse(
                "a `%%px` cell runs on ranks, and there are none yet. Make them in a cell before: "
                "`ranks = Ranks(4)`."
            )
        for statement in cell.tree.body:
            if lab.makes_ranks(statement):
                _read_ranks(lab, cell, statement)
            else:
                _refuse_other_uses(lab, cell, statement)
    _refuse_use_before(lab, cells)


def _refuse_use_before(lab: Lab, cells: list[Cell]) -> None:
    for cell in cells:
        for statement in cell.tree.body:
            if lab.makes_ranks(statement):
                return
            if any(isinstance(n, ast.Name) and n.id == lab.ranks for n in ast.walk(statement)):
                raise cell.refuse(f"`{lab.ranks}` is used here, before {lab.made_in} makes it.")


def _read_ranks(lab: Lab, cell: Cell, statement: ast.stmt) -> None:
    if cell.on_ranks:
        raise cell.refuse("`Ranks` is made in the kernel, in a cell without `%%px`.")
    if cell.may_fail:
        raise cell.refuse("a cell that makes `Ranks` must not fail; take its tag away.")
    if lab.has_ranks:
        raise cell.refuse(
            "this is the second `Ranks`; a script has one set of processes. Make one, and give "
            "it a fresh group with ranks.reset()."
        )
    lab.has_ranks = True
    lab.made_in = f"cell {cell.place.number}"
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    if targets != [None]:
        if len(targets) != 1 or not isinstance(targets[0], ast.Name):
            raise cell.refuse("write `ranks = Ranks(...)`: one name on the left.")
        lab.ranks = targets[0].id
    _read_arguments(lab, cell, statement.value)


def _read_arguments(lab: Lab, cell: Cell, call: ast.Call) -> None:
    given = list(zip(["n"] * len(call.args), call.args, strict=True))
    given += [(keyword.arg, keyword.value) for keyword in call.keywords]
    for name, value in given:
        if name not in DEFAULTS or len(call.args) > 1:
            raise cell.refuse(f"`{ast.unparse(call)}` has an argument that Ranks does not know.")
        try:
            lab.settings[name] = ast.literal_eval(value)
        except (ValueError, TypeError):
            raise cell.refuse(
                f"`{name}={ast.unparse(value)}`: the script's processes are started before any "
                "cell runs, so give Ranks plain numbers and strings."
            ) from None
    _check_arguments(cell, **lab.settings)


def _check_arguments(cell: Cell, n, timeout, debug, **names) -> None:
    """Refuse arguments that `Ranks` itself would refuse, or that no script could hold."""
    if type(n) is not int or n < 1:
        raise cell.refuse(f"`Ranks({n!r})`: the number of ranks is a whole number from 1.")
    if type(timeout) not in (int, float) or not 0 < timeout < float("inf"):
        raise cell.refuse(f"`timeout={timeout!r}`: write a number of seconds, more than 0.")
    if type(debug) is not bool:
        raise cell.refuse(f"`debug={debug!r}`: write True or False.")
    for name, value in names.items():
        if value is not None and not isinstance(value, str):
            raise cell.refuse(f"`{name}={value!r}`: write a name in quotes.")


def _refuse_other_uses(lab: Lab, cell: Cell, statement: ast.stmt) -> None:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id in lab.classes:
            raise cell.refuse(
                f"`{node.id}` can only be used as `ranks = Ranks(4)`, on a line of its own at "
                "the top level of a cell: not in `with`, in a function or in an expression."
            )
