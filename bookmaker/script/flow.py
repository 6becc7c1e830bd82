"""The order of things: is a name there, and still the same, where it is read?"""

import ast
from copy import deepcopy
from dataclasses import dataclass, field

from bookmaker.script import sentences
from bookmaker.script.bindings import DEFINITIONS, Bindings
from bookmaker.script.callees import refuse_code, refuse_defaults, refuse_made
from bookmaker.script.cells import Cell
from bookmaker.script.operations import Finder, Operation
from bookmaker.script.scopes import Names, changed_in, names_in
from bookmaker.script.sharing import Sharing, handled
from bookmaker.script.step import Step
from bookmaker.script.uses import called_in, passed_on, read_in_lambdas, used_as_values

GIVEN = {"rank", "world_size", "device", "torch", "dist"}
_COLLECTIVE = {"pull", "push", "run"}


@dataclass
class State:
    """made: names on all ranks. partial: names on some, with the targets of the cells.
    stale: pushed names that the kernel has changed since. changed: that the ranks have.
    maybe: pushed in a loop that may not run."""

    made: set[str] = field(default_factory=set)
    partial: dict[str, list] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)

    def join(self, other: "State") -> None:
        self.made |= other.made
        self.partial.update(other.partial)
        self.stale |= other.stale
        self.changed |= other.changed
        self.maybe |= other.maybe


class Flow:
    """Walks through the cells as the notebook runs them."""

    def __init__(self, found: Bindings, step: Step):
        self.found, self.step, self.lab = found, step, step.lab
        self.shared = found.shared
        self.state = State(made=set(GIVEN), stale=set(self.shared))
        self.functions: dict[str, Names] = {}
        self.on_ranks: dict[str, Names] = {}
        self.changes: dict[str, set[str]] = {}
        self.unsure: list[tuple[Cell, str, str]] = []
        self.passed: set[str] = set()
        self.run_there: set[str] = set()
        self.sharing = Sharing(found, step)
        self.at: ast.stmt | None = None
        self.statement: ast.stmt | None = None
        self.kinds: dict[str, ast.stmt] = {}
        self.harmless = self.lab.names | step.imports.inlined_names

    def run(self, cells: list[Cell]) -> None:
        plain = [cell for cell in cells if not cell.on_ranks]
        self.passed, called = passed_on(plain), called_in(plain)
        for cell in cells:
            if cell.on_ranks:
                self._cell_on_ranks(cell)
            else:
                for node in cell.tree.body:
                    self._kernel(cell, node)
        for cell, function, name in self.unsure:
            if function in called and function not in self.run_there:
                raise sentences.only_on_ranks(cell, self.found, name)

    # ---- on the ranks ------------------------------------------------------------------

    def _cell_on_ranks(self, cell: Cell) -> None:
        names, lambdas = names_in(*cell.tree.body), set()
        for node in cell.tree.body:
            own = names_in(node)
            if isinstance(node, DEFINITIONS):
                self.on_ranks[node.name] = own
                self.changes[node.name] = (changed_in(node) & own.later) | own.later_binds
            else:
                lambdas |= own.later
        for name in sorted(names.reads | lambdas):
            self._read_on_ranks(cell, name, own=names.binds)
        for name in names.binds | names.later_binds:
            self._made(cell, name)
        self._ranks_share(cell, names)

    def _ranks_share(self, cell: Cell, names: Names) -> None:
        """What a cell on the ranks does to values that it shares with the kernel."""
        reach, beside = self.sharing.on_ranks, GIVEN | set(self.step.imports.names)
        run = [node for node in cell.tree.body if not isinstance(node, DEFINITIONS)]
        for node in run:
            reach.bind(node, names_in(node), beside)
        for node in cell.tree.body:
            if isinstance(node, DEFINITIONS):
                reach.functions[node.name] = names_in(node)
        read = names_in(*run) if run else Names()
        used = read.reads | read.later | read.binds
        self.sharing.ranks_read(cell, None, used)
        changed = set().union(*(changed_in(node) for node in run), set())
        for name in self._called(used, self.on_ranks):
            changed |= self.changes.get(name, set())
        self.state.changed |= changed & self.shared
        for node in run:
            changed |= handled(node, set(), self.sharing.flat)
        self.sharing.ranks_act(cell, changed)

    def _called(self, names: set[str], functions: dict[str, Names]) -> set[str]:
        """Functions that these names may lead to, also by way of other functions."""
        found, todo = set(), list(names & set(functions))
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += functions[name].later & set(functions)
        return found

    def _made(self, cell: Cell, name: str) -> None:
        if cell.targets.chosen is None:
            self.state.made.add(name)
        else:
            self.state.partial.setdefault(name, []).append(cell.targets)

    def _read_on_ranks(self, cell: Cell, name: str, through="", own=(), seen=frozenset()) -> None:
        """Check a name that ranks read here, and those that a function of theirs then reads."""
        of = f" (in `{through}`)" if through else ""
        for inner in sorted(self.on_ranks.get(name, Names()).later - seen - {name}):
            self._read_on_ranks(cell, inner, name, own, seen | {name, inner})
        if name in own:
            return
        if name in self.shared and name in self.state.stale:
            never = name not in self.state.made
            why = "is not pushed before this" if never else "has changed since it was pushed"
            if name in self.state.maybe:
                why = "is pushed in a loop that may not run at all, or is left before"
            raise cell.refuse(
                f"the ranks read `{name}`{of}, which {why}: on the ranks and in the kernel it "
                f'would differ. Put `ranks["{name}"] = {name}` before this.'
            )
        if name in GIVEN | set(self.found.ranks) | set(self.found.pushes):
            return
        if name in self.found.hidden:
            raise sentences.hidden(cell, self.found, name)
        sentences.refuse_notebooks_own(cell, self.found, name)
        if name in self.found.kernel:
            raise sentences.kernel_only(cell, self.found, self.step, name, of)

    # ---- in the kernel -----------------------------------------------------------------

    def _kernel(self, cell: Cell, node: ast.stmt) -> None:
        finder, self.statement = Finder(cell, self.lab), node
        if self.lab.makes_ranks(node) or finder.shows_ranks(node):
            return
        operations = finder.within(node)
        collective = [op for op in operations if op.kind in _COLLECTIVE]
        if isinstance(node, DEFINITIONS):
            self._define(cell, node)
        elif collective and isinstance(node, ast.For | ast.While | ast.If):
            self._branches(cell, node)
        else:
            self._simple(cell, node, collective)

    def _define(self, cell: Cell, node: ast.stmt) -> None:
        names = names_in(node)
        self.functions[node.name] = self.sharing.in_kernel.functions[node.name] = names
        self.changes[node.name] = (changed_in(node) & names.later) | names.later_binds
        for name in sorted(names.reads - {node.name}):
            self._read_in_kernel(cell, name)
        for name in sorted(names.later):
            if name not in self.found.kernel and name in self._ranks_own():
                self.unsure.append((cell, node.name, name))
            elif name in self.found.hidden:
                raise sentences.hidden(cell, self.found, name)
            sentences.refuse_notebooks_own(cell, self.found, name)
        self._bound(names.binds)
        self.kinds[node.name] = node

    def _branches(self, cell: Cell, node) -> None:
        self.sharing.depth += 1
        self._branch(cell, node)
        self.sharing.depth -= 1

    def _branch(self, cell: Cell, node) -> None:
        head = node.iter if isinstance(node, ast.For) else node.test
        at, self.at = self.at, self.at or node
        self._simple(cell, ast.Expr(head), self._collective(cell, head))
        self.at, before = at, deepcopy(self.state)
        for _ in range(1 if isinstance(node, ast.If) else 2):
            if isinstance(node, ast.For):
                self._bound(names_in(ast.Assign([node.target], ast.Constant(0), lineno=1)).binds)
            for inner in node.body:
                self._kernel(cell, inner)
        if isinstance(node, ast.If):
            after, self.state = self.state, before
        elif _surely_runs(node):
            after = self.state
        else:
            after = before
            after.maybe |= before.stale - self.state.stale
        is_elif = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
        self.at = (at or node) if is_elif else at
        for inner in node.orelse:
            self._kernel(cell, inner)
        self.at = at
        self.state.join(after)

    def _collective(self, cell: Cell, node: ast.AST) -> list[Operation]:
        found = Finder(cell, self.lab).within(node)
        return [op for op in found if op.kind in _COLLECTIVE]

    def _simple(self, cell: Cell, node: ast.stmt, operations: list[Operation]) -> None:
        names, at = names_in(node), self.at or node
        read = names.reads | read_in_lambdas(node, names, operations)
        for name in sorted(read - names.binds):
            self._read_in_kernel(cell, name)
        pushed = [op for op in operations if op.kind == "push"]
        if not pushed:
            self.sharing.kernel_reads(cell, at, read)
        for op in operations:
            if op.kind == "pull":
                self._pull(cell, op.name)
            elif op.kind == "run":
                self._run(cell, op)
        for op in pushed:
            self._push(cell, op.name, node)
        self._bound(names.binds | names.later_binds)
        changed = changed_in(node)
        for name in self._called(read, self.functions):
            changed |= self.changes.get(name, set())
        self._bound(changed)
        if not pushed:
            beside = GIVEN | set(self.step.imports.names) | self.lab.names
            self.sharing.in_kernel.bind(node, names, beside, sure=not self.sharing.depth)
            changed |= handled(node, self.harmless, self.sharing.flat)
            self.sharing.kernel_acts(cell, changed)

    def _bound(self, names: set[str]) -> None:
        self.state.stale |= names & self.shared
        self.state.changed -= names

    def _read_in_kernel(self, cell: Cell, name: str) -> None:
        if name in self.lab.names:
            return
        sentences.refuse_notebooks_own(cell, self.found, name)
        if name in self.found.kernel:
            inner = self.sharing.in_kernel.through({name}, {})
            for read in sorted(({name} | inner) & self.state.changed):
                raise cell.refuse(
                    f"the kernel reads `{read}`, which a `%%px` cell has changed in place since "
                    "it was pushed. The kernel's own is unchanged in the notebook, but in the "
                    f'script rank 0 has one `{read}`. Pull it (`{read}_there = ranks["{read}"]`), '
                    "or push it under another name."
                )
        elif name in self.found.hidden:
            raise sentences.hidden(cell, self.found, name)
        elif name in self._ranks_own():
            raise sentences.only_on_ranks(cell, self.found, name)

    def _ranks_own(self) -> set[str]:
        given = GIVEN if self.lab.has_ranks else set()
        return given | set(self.found.ranks) | set(self.found.pushes)

    def _pull(self, cell: Cell, name: str) -> None:
        state = self.state
        if name in self.shared and name in state.stale:
            self._read_on_ranks(cell, name)
        refuse_code(cell, self.found, name)
        self.sharing.ranks_read(cell, self.at or self.statement, {name})
        if name in state.made or self._made_by_all(name):
            return
        if name in state.partial:
            raise cell.refuse(
                f"`{name}` was made in a `%%px --targets` cell, and not on every rank. Give it a "
                f"value on all ranks first (`{name} = None`, say), so that all can be pulled."
            )
        if name in self.found.hidden:
            raise sentences.hidden(cell, self.found, name)
        if self.found.unknowable:
            return
        if name in self.found.kernel:
            raise cell.refuse(
                f"`{name}` is a variable of the kernel; no rank has it. Use it as it is, or push "
                "it first."
            )
        later = self.found.ranks.get(name) or self.found.pushes.get(name)
        when = f"before cell {later[0].cell.place.number}" if later else "in any cell"
        raise cell.refuse(f"`{name}` is pulled here, and no rank has made it {when}.")

    def _made_by_all(self, name: str) -> bool:
        """Whether cells with targets have made it, together, on all ranks of any world size."""
        targets = self.state.partial.get(name, [])
        return bool(targets) and all(
            set().union(*(t.ranks(n) for t in targets)) == set(range(n)) for n in range(2, 9)
        )

    def _run(self, cell: Cell, op: Operation) -> None:
        callee = op.node.args[0]
        if isinstance(callee, ast.Lambda):
            self._run_lambda(cell, callee)
            return
        root = callee
        while isinstance(root, ast.Attribute):
            root = root.value
        name = root.id if isinstance(root, ast.Name) else ""
        if name in self.functions:
            self._goes_there(cell, name)
        elif name not in self.step.imports.names:
            refuse_made(cell, self.found.kernel.get(name, []), name, self.kinds)
            for passed in sorted(self.passed & set(self.functions)):
                self._goes_there(cell, passed)

    def _run_lambda(self, cell: Cell, callee: ast.Lambda) -> None:
        names = names_in(callee)
        safe = self.step.known_everywhere - self.step.defined_everywhere | self.step.sendable
        refuse_defaults(cell, callee, names.reads - safe)
        for name in sorted(names.later):
            self._read_on_ranks(cell, name, "the lambda")
        self._shared_there(cell, names.later)

    def _shared_there(self, cell: Cell, names: set[str]) -> None:
        """A function of the kernel's runs on the ranks, and reads these names there."""
        self.sharing.ranks_read(cell, self.at or self.statement, names)
        self.sharing.ranks_act(cell, names)

    def _goes_there(self, cell: Cell, name: str) -> None:
        """A function of the kernel's is used on the ranks."""
        self.run_there.add(name)
        if name not in self.step.defined_everywhere:
            raise sentences.reads_when_made(cell, name)
        if name not in self.step.sendable:
            raise sentences.holds_a_value(cell, name)
        for read in sorted(self.functions[name].later - {name}):
            self._read_on_ranks(cell, read, name)
        changed = set().union(*(self.changes[f] for f in self._called({name}, self.functions)))
        self.state.changed |= changed & self.shared
        self._shared_there(cell, self.functions[name].later | changed)

    def _push(self, cell: Cell, name: str, node: ast.stmt) -> None:
        value = getattr(node, "value", None) or ast.Constant(None)
        if any(isinstance(inner, ast.Lambda) for inner in ast.walk(value)):
            raise cell.refuse("a lambda cannot be sent to other processes; write it with `def`.")
        for inner in sorted(names_in(value).reads & set(self.functions)):
            if isinstance(value, ast.Name) or inner in used_as_values(value):
                self._goes_there(cell, inner)
        self.state.made.add(name)
        self.state.stale.discard(name)
        self.state.changed.discard(name)
        self.state.maybe.discard(name)
        self.sharing.push(cell, name, node)


def _surely_runs(node: ast.stmt) -> bool:
    """Whether a loop's body runs at least once: it goes over a literal that is not empty."""
    return (
        isinstance(node, ast.For)
        and isinstance(node.iter, ast.List | ast.Tuple | ast.Set)
        and (any(not isinstance(item, ast.Starred) for item in node.iter.elts))
        and not any(isinstance(n, ast.Break | ast.Continue) for n in ast.walk(node))
    )
