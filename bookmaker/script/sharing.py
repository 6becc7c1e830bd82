"""Pushes under their own name: where the script must look that both sides still agree.

After ``ranks["model"] = model`` the kernel and rank 0 have one object in the script, and two in
the notebook. That is the same as long as neither changes it while the other still reads it.
"""

import ast

from bookmaker.script import layout
from bookmaker.script.bindings import DEFINITIONS, Bindings
from bookmaker.script.cells import Cell
from bookmaker.script.layout import Piece
from bookmaker.script.scopes import BUILTINS, Names, changed_in, names_in
from bookmaker.script.step import Step

_OF_NUMBERS = {"int", "float", "str", "bool", "len", "round", "repr", "abs"}
_LOOK_ONLY = BUILTINS - {"exec", "eval", "next", "setattr", "delattr", "map", "filter"}
_KEEP_PARTS = {"list", "tuple", "dict", "set", "sorted", "zip", "enumerate", "reversed", "iter"}
_KEEP_PARTS |= {"next", "min", "max", "memoryview", "deque", "as_tensor", "from_numpy", "asarray"}
_COPY = {"item", "tolist", "clone", "sum", "mean", "max", "min", "norm", "numel", "size", "dim"}
_COPY |= {"all", "any", "count", "index", "format", "join", "split", "backward", "std", "round"}
# Of a generator of random numbers.
_COPY |= {"normal", "standard_normal", "uniform", "integers", "random", "permutation", "randint"}
_COPY |= {"randn", "rand", "exponential", "poisson", "binomial", "standard_t", "gamma", "beta"}
_MODULES = {"math", "time", "torch", "np", "numpy"}


class Reach:
    """What one side's names lead to: through the functions they call and the values they share.

    ``same`` follows names for one object (``b = a``, ``c = [a]``); ``any`` also what was
    computed from another (``opt = SGD(model.parameters())``).
    """

    def __init__(self, flat: set[str]):
        self.flat = flat
        self.functions: dict[str, Names] = {}
        self.same: dict[str, set[str]] = {}
        self.any: dict[str, set[str]] = {}

    def bind(self, node: ast.stmt, names: Names, beside: set[str], sure: bool = True) -> None:
        """Note what a statement's names have to do with each other, those beside left out.

        sure: the statement runs once, so that a name it binds lets go of what it held.
        """
        if sure and isinstance(node, ast.Assign):
            for name in names.binds - names.reads:
                _let_go(self.same, name)
                _let_go(self.any, name)
        for inner in ast.walk(node):
            match inner:
                case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                    _link(self.same, names_in(inner).binds, _held(value) - beside)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=owner)), args=args):
                    _link(self.same, {owner} - beside, set().union(*map(_held, args)) - beside)
        read = names.reads | names.later
        made = names.binds | changed_in(node)
        for name in made:  # an object knows the functions and classes that it was made with
            self.any.setdefault(name, set()).update(read & set(self.functions))
            self.same.setdefault(name, set()).update(read & set(self.functions))
        idle = self.flat - handled(node, set(), self.flat)
        _link(self.any, made - idle, read - beside - set(self.functions) - idle)

    def through(self, names: set[str], links: dict[str, set[str]], code: bool = True) -> set[str]:
        """All names that these lead to; code: also through what functions read."""
        found, todo = set(), list(names)
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                function = self.functions.get(name, Names()) if code else Names()
                todo += function.later | function.later_binds | links.get(name, set())
        return found


def _link(links: dict[str, set[str]], some: set[str], others: set[str]) -> None:
    for one in some:
        for other in others - {one}:
            links.setdefault(one, set()).add(other)
            links.setdefault(other, set()).add(one)


def _let_go(links: dict[str, set[str]], name: str) -> None:
    """A name gets another object; those that had to do with each other through it still do."""
    around = links.pop(name, set())
    for other in around:
        if other in links:
            links[other] = (links[other] | around) - {other, name}


def _held(value: ast.expr) -> set[str]:
    """Names whose object a value is, or holds."""
    match value:
        case ast.Name(id=name):
            return {name}
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            return _held(inner)
        case ast.NamedExpr(value=inner):
            return _held(inner)
        case ast.Call(func=ast.Name(id=name), args=parts) if name in _KEEP_PARTS:
            return set().union(*map(_held, parts))
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=parts):
            kept = parts if method in _KEEP_PARTS else []
            owners = set() if method in _COPY else _held(owner)
            return owners.union(*map(_held, kept))
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return set().union(*map(_held, parts))
        case ast.Dict(values=parts) | ast.BoolOp(values=parts):
            return set().union(*map(_held, parts))
        case ast.IfExp(body=one, orelse=other):
            return _held(one) | _held(other)
    return set()


def handled(node: ast.AST, harmless: set[str], flat: set[str]) -> set[str]:
    """Names whose object code may change, or keep, in a way that its syntax need not show.

    harmless: functions that only look. flat: names of lists of numbers, which have no parts
    that could be changed.
    """
    found = changed_in(node)
    for inner in ast.walk(node):
        match inner:
            case ast.Call() if not _only_looks(inner, harmless):
                given = [inner.func, *inner.args, *(keyword.value for keyword in inner.keywords)]
                found |= set().union(*map(_held, given)) | (_read(inner) - flat)
            case ast.For(iter=values) | ast.comprehension(iter=values):
                found |= _read(values) - flat
            case ast.Assign(value=value) | ast.NamedExpr(value=value):
                found |= _held(value)
            case ast.With(items=items):
                found |= set().union(*(_read(item.context_expr) for item in items))
    return found


def _read(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _only_looks(call: ast.Call, harmless: set[str]) -> bool:
    match call.func:
        case ast.Name(id=name):
            return name in _LOOK_ONLY | harmless
        case ast.Attribute(value=ast.Name(id=owner), attr=method):
            writes = any(keyword.arg == "out" for keyword in call.keywords)
            return owner in _MODULES | harmless and not method.endswith("_") and not writes
    return False


class Sharing:
    """Who may have changed a shared object since it was pushed, or since it was last checked.

    kernel, ranks: name -> numbers of the cells that had it in their hands.
    pushes: name -> the pushes that its value may come from.
    """

    def __init__(self, found: Bindings, step: Step):
        self.step = step
        self.watched = {name for name in found.shared if not plain(found, name)}
        self.flat = {name for name in self.watched if _flat(found, name)}
        self.in_kernel, self.on_ranks = Reach(self.flat), Reach(self.flat)
        self.kernel: dict[str, set[int]] = {}
        self.ranks: dict[str, set[int]] = {}
        self.pushes: dict[str, set[int]] = {}
        self.depth = 0

    def kernel_reads(self, cell: Cell, at: ast.stmt, names: set[str]) -> None:
        """A statement of the kernel reads these: the ranks must not have changed them."""
        seen = self.in_kernel.through(names, self.in_kernel.same)
        self._read(cell, at, seen, self.ranks)

    def kernel_acts(self, cell: Cell, names: set[str]) -> None:
        """A statement of the kernel may change what these lead to."""
        self._touched(cell, self.in_kernel.through(names, self.in_kernel.any), self.kernel)

    def ranks_read(self, cell: Cell, at: ast.stmt | None, names: set[str]) -> None:
        """Ranks read these: the kernel must not have changed them."""
        seen = self.on_ranks.through(names, self.on_ranks.same)
        self._read(cell, at, seen, self.kernel)

    def ranks_act(self, cell: Cell, names: set[str]) -> None:
        """Ranks may change what these lead to."""
        self._touched(cell, self.on_ranks.through(names, self.on_ranks.any), self.ranks)

    def push(self, cell: Cell, name: str, node: ast.stmt) -> None:
        """A push: both sides have the same again."""
        if name not in self.watched:
            return
        same = self.in_kernel.through({name}, self.in_kernel.same, code=False) & set(
            self.pushes
        ) - {name}
        for other in sorted(same & self.watched):
            raise cell.refuse(
                f"`{name}` and `{other}` may hold the same object. In the notebook the ranks get "
                f"a copy of each, in the script rank 0 would keep the one. Push `{name}` under a "
                f'name of its own, as in `ranks["{name}_there"] = {name}`.'
            )
        if self.depth:
            self.pushes.setdefault(name, set()).add(id(node))
            return
        self.pushes[name] = {id(node)}
        self.kernel.pop(name, None)
        self.ranks.pop(name, None)

    def _touched(self, cell: Cell, names: set[str], by: dict[str, set[int]]) -> None:
        for name in names & self.watched & set(self.pushes):
            by.setdefault(name, set()).add(cell.place.number)

    def _read(self, cell: Cell, at: ast.stmt | None, names: set[str], by: dict) -> None:
        for name in sorted(names & set(by)):
            here = self.depth or cell.place.number in by[name]
            key = id(at) if here and at is not None else cell.place.number
            self.step.checks.setdefault(key, set()).add(name)
            self.step.noted |= self.pushes[name]
            if not self.depth:
                del by[name]


def checks(step: Step, key: int) -> list[Piece]:
    """The check before a cell (by its number) or before a statement (by its id)."""
    names = sorted(step.checks.pop(key, set()))
    if not names:
        return []
    step.waiting.kernel_ran = True  # comparing takes time, so a cell on the ranks waits for it
    given = ", ".join(f"{name}={name}" for name in names)
    return [layout.line(f"{step.use('unchanged')}({given})", everywhere=False)]


def plain(found: Bindings, name: str, above: frozenset = frozenset()) -> bool:
    """Whether a variable of the kernel's only ever holds what nothing can change: a number."""
    if name in above or name not in found.kernel:
        return False
    above |= {name}
    for binding in found.kernel[name]:
        bound = sum(
            isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
            for n in ast.walk(binding.node)
        )
        for node in ast.walk(binding.node):
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=target)], value=value)
                    | ast.AugAssign(target=ast.Name(id=target), value=value)
                ) if target == name:
                    bound -= _plain(value, found, above)
                case ast.For(target=ast.Name(id=target), iter=values) if target == name:
                    bound -= _plain_items(values, found, above)
        if bound or isinstance(binding.node, DEFINITIONS) or binding.meaning:
            return False
    return True


def _plain(value: ast.expr, found: Bindings, above: frozenset) -> bool:
    match value:
        case ast.Constant() | ast.JoinedStr() | ast.Compare():
            return True
        case ast.Name(id=name):
            return plain(found, name, above)
        case ast.UnaryOp(operand=part):
            return _plain(part, found, above)
        case ast.BinOp(left=left, right=right):
            return _plain(left, found, above) and _plain(right, found, above)
        case ast.Tuple(elts=parts):
            return all(_plain(part, found, above) for part in parts)
        case ast.Call(func=ast.Name(id=name)):
            return name in _OF_NUMBERS and name not in found.kernel
    return False


def _plain_items(values: ast.expr, found: Bindings, above: frozenset) -> bool:
    match values:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return all(_plain(part, found, above) for part in parts)
        case ast.Call(func=ast.Name(id="range")):
            return "range" not in found.kernel
        case ast.Name(id=name):
            return _flat(found, name, above)
        case ast.ListComp(elt=item, generators=[ast.comprehension(target=ast.Name(), iter=inner)]):
            made = isinstance(item, ast.BinOp | ast.Name | ast.Constant)
            return made and _plain_items(inner, found, above)
    return False


def _flat(found: Bindings, name: str, above: frozenset = frozenset()) -> bool:
    """Whether a variable of the kernel's is a list of numbers, which is written once."""
    nodes = [binding.node for binding in found.kernel.get(name, [])]
    if len(nodes) != 1 or not isinstance(nodes[0], ast.Assign):
        return False
    assigned = isinstance(nodes[0].targets[0], ast.Name) and nodes[0].targets[0].id == name
    return assigned and name not in above and _plain_items(nodes[0].value, found, above | {name})
