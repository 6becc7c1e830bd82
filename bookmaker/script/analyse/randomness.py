"""Do the kernel and the ranks both use random numbers? In the script rank 0 is both.

What seeds, draws, or may draw *touches* a stream: torch's, NumPy's or Python's own.
"""

import ast

from bookmaker.script.analyse.process_state import full_name
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import names_in

_SEEDS = {"torch.manual_seed": "torch", "numpy.random.seed": "numpy", "random.seed": "random"}
_TORCH = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"}
_TORCH |= {"normal", "bernoulli", "multinomial", "poisson", "binomial", "dropout", "seed"}
_TORCH |= {"manual_seed", "initial_seed", "get_rng_state", "set_rng_state", "default_generator"}
_TORCH |= {"alpha_dropout", "feature_dropout", "rrelu"}
_TORCH_PACKAGES = ("torch.distributions.", "torch.random.", "torch.utils.data.", "torch.cuda.")
_CUDA = ("rng_state", "rng_state_all", "seed", "seed_all")
_INIT_IS_FIXED = {"zeros_", "ones_", "constant_", "eye_", "dirac_"}
# Of torch.nn: what neither draws when it is made nor when it is called.
_NN_IS_FIXED = {"Module", "Sequential", "ModuleList", "ModuleDict", "Parameter", "Buffer"}
_NN_IS_FIXED |= {"Flatten", "Unflatten", "Identity", "ReLU", "GELU", "SiLU", "ELU", "Tanh"}
_NN_IS_FIXED |= {"Sigmoid", "Softmax", "LogSoftmax", "LeakyReLU", "Softplus", "LayerNorm"}
_NN_IS_FIXED |= {"BatchNorm1d", "BatchNorm2d", "GroupNorm", "RMSNorm", "MaxPool2d", "AvgPool2d"}
_NN_IS_FIXED |= {"MSELoss", "L1Loss", "CrossEntropyLoss", "NLLLoss", "BCELoss"}
_NN_IS_FIXED |= {"BCEWithLogitsLoss", "HuberLoss", "SmoothL1Loss", "KLDivLoss"}
_FUNCTIONS_DRAW = ("dropout", "rrelu", "gumbel_softmax", "fractional_max_pool")
_METHODS = {"normal_", "uniform_", "bernoulli_", "random_", "exponential_", "log_normal_"}
_METHODS |= {"cauchy_", "geometric_", "bernoulli", "multinomial", "trunc_normal_"}
_METHODS |= {"reset_parameters", "init_weights"}  # of a module
# Of any object: pandas' frames draw from NumPy, distributions from torch, estimators from either.
_ANYBODYS = {"sample", "sample_n", "rsample", "shuffle", "random_split", "fit", "fit_transform"}
_OWN_GENERATORS = {"default_rng", "Generator", "RandomState", "SeedSequence", "PCG64", "Philox"}
_OWN_GENERATORS |= {"Random", "SystemRandom", "MT19937", "SFC64", "BitGenerator"}
_OTHERS = ("sklearn.", "torchvision.", "scipy.stats.", "transformers.", "networkx.")
_OF_OBJECTS = ("torch.nn.", "torch.utils.data.", "torch.distributions.", *_OTHERS)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_UNKNOWN = "unknown"


def needs_two_streams(cells: list[Cell], imported: dict[str, str], ranks: str | None) -> bool:
    """Whether the random numbers of one side could shift those of the other.

    cells: those of the script. imported: local name -> full name. ranks: the variable.

    They cannot if only one side touches a stream, or if every cell that does seeds first.
    """
    own = _Own(cells, imported)
    sides, seeded = set(), True
    for cell in cells:
        found = [(node, own.touched(node)) for node in cell.tree.body]
        touching = [(node, streams) for node, streams in found if streams]
        if touching:
            sides.add(cell.on_ranks)
            seeded = seeded and _seeds_first(touching, imported)
        if not cell.on_ranks and _goes_there(cell, own, ranks):
            sides.add(True)
            seeded = False
    return len(sides) == 2 and not seeded


def _seeds_first(touching: list[tuple[ast.stmt, set[str]]], imported: dict[str, str]) -> bool:
    """Whether the first statements that touch streams seed all those of the cell."""
    seeds: set[str] = set()
    for node, streams in touching:
        call = node.value if isinstance(node, ast.Expr) else None
        name = full_name(call.func, imported) if isinstance(call, ast.Call) else ""
        if name in _SEEDS and len(streams) == 1:
            seeds.add(_SEEDS[name])
        elif not streams <= seeds:
            return False
    return True


def _goes_there(cell: Cell, own: "_Own", ranks: str | None) -> bool:
    """Whether a plain cell sends something that touches streams to the ranks."""
    for node in ast.walk(cell.tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="run")):
                if name == ranks and own.touched(ast.Expr(node)):
                    return True
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))], value=value):
                if name == ranks and names_in(value).reads & own.holding:
                    return True
    return False


class _Own:
    """The notebook's functions that touch streams, and variables that do when they are used."""

    def __init__(self, cells: list[Cell], imported: dict[str, str]):
        self.imported = imported
        self.functions: dict[str, set[str]] = {}
        self.holding: set[str] = set()
        self.generators: set[str] = set()
        statements = [node for cell in cells for node in cell.tree.body]
        for _ in range(3):  # what calls what calls what draws
            for node in statements:
                self._learn(node)

    def _learn(self, node: ast.stmt) -> None:
        if isinstance(node, _DEFINITIONS):
            streams = self._streams(node)
            if streams:
                self.functions[node.name] = streams | {_UNKNOWN}
        elif isinstance(node, ast.Assign) and _is_generator(node.value, self.imported):
            self.generators |= names_in(node).binds
        elif isinstance(node, ast.Assign) and self._makes_what_draws(node.value):
            self.holding |= names_in(node).binds

    def _makes_what_draws(self, value: ast.expr) -> bool:
        """Whether a value may be an object that draws when it is called or looped over."""
        for node in ast.walk(value):
            name = full_name(node, self.imported)
            fixed = name.rpartition(".")[2] in _NN_IS_FIXED | {"Linear"}
            if name.startswith(_OF_OBJECTS) and not fixed:
                return True
            if isinstance(node, ast.Name) and node.id in {*self.functions, *self.holding}:
                return True
        return False

    def touched(self, node: ast.stmt) -> set[str]:
        """The streams that a statement of a cell touches when it runs."""
        return set() if isinstance(node, _DEFINITIONS) else self._streams(node)

    def _streams(self, tree: ast.AST) -> set[str]:
        found: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and not _has_generator(node):
                found |= self._of_call(node)
            if isinstance(node, ast.Name) and node.id in self.functions:
                found |= self.functions[node.id]
            if isinstance(node, ast.For | ast.comprehension):
                found |= self._of_use(node.iter)
        passed = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        for node in ast.walk(tree):  # handed on: `map(torch.rand, sizes)`
            if isinstance(node, ast.Attribute | ast.Name) and id(node) not in passed:
                found |= {_UNKNOWN} if _draws(full_name(node, self.imported)) else set()
        return found

    def _of_call(self, call: ast.Call) -> set[str]:
        name = full_name(call.func, self.imported)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        own = {"torch"} if method in _METHODS else set()
        if method in _ANYBODYS and not _own_generator(call.func.value, self.generators):
            own = {_UNKNOWN}
        used = [call.func, *call.args, *(keyword.value for keyword in call.keywords)]
        return own | _draws(name) | set().union(*(self._of_use(node) for node in used))

    def _of_use(self, node: ast.AST) -> set[str]:
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        holds = isinstance(node, ast.Name) and node.id in self.holding
        return {_UNKNOWN} if holds else set()


def _is_generator(value: ast.expr, imported: dict[str, str]) -> bool:
    """Whether a value is a generator of random numbers, with a stream of its own."""
    made = full_name(value.func, imported) if isinstance(value, ast.Call) else ""
    return made.rpartition(".")[2] in _OWN_GENERATORS | {"Generator"}


def _own_generator(owner: ast.expr, generators: set[str]) -> bool:
    return isinstance(owner, ast.Name) and owner.id in generators


def _has_generator(call: ast.Call) -> bool:
    """Whether a call says which generator it draws from."""
    return any(
        keyword.arg == "generator" and not isinstance(keyword.value, ast.Constant)
        for keyword in call.keywords
    )


def _draws(name: str) -> set[str]:
    """The stream that something of this full name touches, or may touch."""
    package, _, last = name.rpartition(".")
    if not package:
        return set()
    if name.startswith("torch."):
        return {"torch"} if _torch_draws(name, package, last) else set()
    if name.startswith("numpy.random."):
        return set() if _OWN_GENERATORS & set(name.split(".")) else {"numpy"}
    if package == "random":
        return set() if last in _OWN_GENERATORS else {"random"}
    return {_UNKNOWN} if name.startswith(_OTHERS) else set()


def _torch_draws(name: str, package: str, last: str) -> bool:
    if package == "torch":
        return last in _TORCH or last.endswith("dropout_")
    if package == "torch.nn.init":
        return last not in _INIT_IS_FIXED
    if package == "torch.nn.functional":
        return any(word in last for word in _FUNCTIONS_DRAW)
    if package.startswith("torch.nn"):
        return last[:1].isupper() and last not in _NN_IS_FIXED
    if package == "torch.cuda":
        return last.endswith(_CUDA)
    if name.startswith("torch.utils.data."):
        return last in {"DataLoader", "random_split", "RandomSampler", "DistributedSampler"}
    return name.startswith(_TORCH_PACKAGES)
