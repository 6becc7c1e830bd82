"""All that is known of a notebook before the first line of its script is written."""

import ast
import re
from dataclasses import dataclass, field

from bookmaker.script.analyse import (
    hashes,
    identity,
    left_out,
    measured,
    names,
    own_taught,
    process_state,
    sending,
)
from bookmaker.script.analyse.apart import apart, code, hidden_in_code
from bookmaker.script.analyse.everywhere import defined_everywhere, sendable
from bookmaker.script.analyse.hoist import collect
from bookmaker.script.analyse.imports import Imports, imported_inside
from bookmaker.script.analyse.lab import Lab, find_ranks
from bookmaker.script.analyse.randomness import needs_two_streams
from bookmaker.script.analyse.sides import DEFINITIONS, Sides, sides
from bookmaker.script.analyse.tensors import Tensors
from bookmaker.script.parts import FIXED, HELPERS, IMPORTS, PARTS
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import is_import, origin

_MESSAGE = re.compile(r"\b(i?send|i?recv|pipelining)\b")


@dataclass
class Plan:
    """cells: those of the script. all_names: every name in them. defined_everywhere: functions
    and classes of plain cells that all ranks define. inherited: ``id`` of kernel statements that
    hold for the ranks, too. measured: numbers of the cells that need `ranklab.gpu`, or a value that
    comes from it. stood_in: those of its names that ranks use, with a stand-in. mpi: whether the
    script's code imports mpi4py. program: as make_plan was told.

    two_streams, apart: whether rank 0 has two streams of random numbers, and the names of which it
    has two values: the kernel's and the ranks'. apart_code: those that are functions or classes.
    apart_in_code: whether functions, which may run anywhere, use any. tensors: which code makes
    some. own: what the ranks have by an import from the chapter's own taught code. renamed: names
    of the preamble's own that the notebook uses -> what the script calls them.
    """

    cells: list[Cell]
    lab: Lab
    imports: Imports
    program: bool = False
    all_names: set[str] = field(default_factory=set)
    defined_everywhere: set[str] = field(default_factory=set)
    inherited: set[int] = field(default_factory=set)
    measured: set[int] = field(default_factory=set)
    stood_in: set[str] = field(default_factory=set)
    mpi: bool = False
    two_streams: bool = False
    apart: set[str] = field(default_factory=set)
    apart_code: set[str] = field(default_factory=set)
    apart_in_code: bool = False
    tensors: Tensors = field(default_factory=Tensors)
    own: dict[str, ast.stmt | None] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    @property
    def by_mpi(self) -> bool:
        """Whether the ranks have to be started by mpiexec, for they talk through MPI."""
        return self.mpi and self.lab.has_ranks and self.lab.settings["engines"] == "mpi"

    @property
    def on_cards(self) -> bool:
        """Whether the device of a rank may be a GPU."""
        device = self.lab.settings["device"] or ""
        return self.lab.has_ranks and not device.startswith("cpu")

    @property
    def messages(self) -> bool:
        """Whether ranks may send each other messages, beside collectives."""
        code = [cell.body for cell in self.cells] + [code for _, code in self.imports.inlined]
        return any(_MESSAGE.search(text) for text in code)

    @property
    def two_devices(self) -> bool:
        """Whether rank 0 may make tensors as the kernel, on the CPU, and as a rank, on a GPU."""
        return self.on_cards and self.tensors.in_kernel

    @property
    def plays(self) -> bool:
        """Whether rank 0 has something twice: the kernel's and the ranks'."""
        return bool(self.two_streams or self.apart or self.two_devices)

    @property
    def measures(self) -> str:
        """What is true in the script where there is `ranklab.gpu`."""
        others = self.lab.measures - self.stood_in
        first, absent = min(others or self.stood_in), self.helper("unsampled")
        return first if others else f"{first} is not {absent}"

    @property
    def known_everywhere(self) -> set[str]:
        """Names that every rank of the script has from its imports and definitions."""
        return self.defined_everywhere | set(self.imports.names) | self.imports.inlined_names

    def helper(self, name: str) -> str:
        """A preamble name as the script spells it; another if the notebook uses that one."""
        return self.renamed.get(name, name)


def make_plan(cells: list[Cell], program: bool = False) -> Plan:
    """Find out how a notebook's cells become a script.

    cells: all code cells, those that are left out included.
    program: whether they are a program, whose processes know by themselves who they are.

    Raises FormError, which names the cell, for what has no faithful translation.
    """
    kept = [cell for cell in cells if not cell.notebook_only]
    lab = Lab()
    plan = Plan(kept, lab, collect(kept, lab), program=program)
    find_ranks(lab, kept)
    found = sides(kept, lab)
    _find_names(plan, found)
    _find_parts(plan, found)
    _check(plan, found, cells)
    return plan


def _find_names(plan: Plan, found: Sides) -> None:
    mentioned = set().union(*(cell.mentions for cell in plan.cells), plan.imports.names)
    plan.all_names = (mentioned | found.kernel.names | found.ranks.names) - plan.lab.names
    plan.renamed = _renamed(plan, found)
    plan.mpi = _uses_mpi(plan)
    plan.measured, plan.stood_in = measured.find(plan.cells, plan.lab)


def _uses_mpi(plan: Plan) -> bool:
    """Whether mpi4py is imported anywhere: at the top, in functions, in code that is taken over."""
    code = [cell.body for cell in plan.cells] + [code for _, code in plan.imports.inlined]
    modules = [*plan.imports.names.values(), *(m for text in code for m in imported_inside(text))]
    return any(module.split(".")[0] == "mpi4py" for module in modules)


def _find_parts(plan: Plan, found: Sides) -> None:
    """What rank 0 has to keep apart, for it plays the kernel, too."""
    lab, imports, cells = plan.lab, plan.imports, plan.cells
    if lab.has_ranks:
        plan.own = own_taught.needed(lab.own, cells)
        imported = {"torch": "torch", **imports.names}
        plan.tensors = Tensors.found(cells, imported, imports.inlined)
        plan.two_streams = needs_two_streams(cells, imported, lab.ranks)
        plan.apart = apart(found, imports, lab, set(plan.own))
        plan.apart_code = plan.apart & code(found)
        plan.apart_in_code = hidden_in_code(cells, plan.apart)
        plan.inherited = process_state.inherited(cells, lab, imports.names)
    values = {name: n for name, n in plan.own.items() if n and not isinstance(n, DEFINITIONS)}
    plan.inherited |= {id(node) for node in values.values()}
    plan.defined_everywhere = defined_everywhere(cells, imports, plan.apart, set(values))


def _check(plan: Plan, found: Sides, all_cells: list[Cell]) -> None:
    """Refuse what would be another program in a script."""
    lab, imports, cells = plan.lab, plan.imports, plan.cells
    left_out.check(all_cells, lab)
    own_taught.check(lab.own, plan.own, found, plan.defined_everywhere)
    names.check(cells, found, lab, imports, set(plan.own))
    names.refuse_builtins(found, [*PARTS.values(), "dict()"])
    if lab.has_ranks:
        can_go = sendable(cells, plan.defined_everywhere)
        sending.check(cells, found, lab, can_go, plan.known_everywhere)
        process_state.check(cells, lab, imports.names)
        identity.check(cells, lab, imports.names)
        hashes.check(cells, found.sent)


def _renamed(plan: Plan, found: Sides) -> dict[str, str]:
    """The preamble's own names that mean something else in the notebook, with new ones."""
    bindings = [*found.kernel.binds.items(), *found.ranks.binds.items()]
    bound = {name for name, those in bindings if not all(is_import(each.node) for each in those)}
    bound |= set(found.pushes) | set(found.pulls) | plan.imports.inlined_names
    imported = plan.imports.names
    starred = any(statement.endswith("import *") for statement in plan.imports.statements)
    used = bound | set(imported) | (plan.all_names - {"display"} if starred else set())
    taken = set(HELPERS & used)
    for name, statement in IMPORTS.items():
        other = name in imported and imported[name] != origin(ast.parse(statement).body[0])
        if name not in FIXED and (name in bound or other):
            taken |= {name}
    return {name: f"{name}_" for name in sorted(taken)}
