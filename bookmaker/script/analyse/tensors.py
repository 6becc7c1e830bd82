"""Which code may make tensors? In the script rank 0 is the kernel, too, and makes them on the CPU.

Tensors that are there stay where they are, whatever is computed with them: so to pull, print and
draw does not count.
"""

import ast
import sys
from dataclasses import dataclass, field

from bookmaker.script.analyse.process_state import full_name
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import names_in

_MAKE_NONE = frozenset({*sys.stdlib_module_names, "numpy", "matplotlib", "altair", "IPython"})
# Of torch: what makes no tensor, or beside those that it is given.
_TORCH_MAKES_NONE = {"equal", "allclose", "cat", "stack", "no_grad", "manual_seed", "Tensor"}
_TORCH_MAKES_NONE |= {"float32", "float64", "bfloat16", "int64", "bool", "float", "double", "long"}


@dataclass
class Tensors:
    """imported: local name -> full name. makers: functions and classes of the notebook's that may
    make tensors; holding: variables that may do so when they are called or looped over. in_kernel:
    whether a plain cell may make any."""

    imported: dict[str, str] = field(default_factory=dict)
    makers: set[str] = field(default_factory=set)
    holding: set[str] = field(default_factory=set)
    in_kernel: bool = False

    @classmethod
    def found(cls, cells: list[Cell], imported: dict[str, str], inlined) -> "Tensors":
        """inlined: (module, code) of what the script takes over from ranklab."""
        own = cls(imported)
        plain = [node for cell in cells if not cell.on_ranks for node in cell.tree.body]
        taken = [node for _, code in inlined for node in ast.parse(code).body]
        for _ in range(4):  # what calls what calls what makes some
            for node in [*taken, *plain]:
                own._learn(node)
        own.in_kernel = own.made_by(*plain)
        return own

    def _learn(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.makers |= {node.name} if self._in(node) else set()
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.With) and self._in(node):
            self.holding |= names_in(node).binds

    def made_by(self, *code: ast.AST) -> bool:
        """Whether this code may make tensors when it runs, which a definition does not."""
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return any(self._in(node) for node in code if not isinstance(node, definitions))

    def _in(self, code: ast.AST) -> bool:
        return any(map(self._makes, ast.walk(code)))

    def _makes(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return self._uses(node.func)
        if isinstance(node, ast.For | ast.comprehension):
            return self._uses(node.iter)
        if isinstance(node, ast.Attribute | ast.Name):
            if isinstance(node, ast.Name) and node.id in self.makers:
                return True
            package, _, rest = full_name(node, self.imported).partition(".")
            if package == "torch":
                return rest not in {"", *_TORCH_MAKES_NONE}
            return package not in {"", "ranklab", *_MAKE_NONE}
        return False

    def _uses(self, node: ast.AST) -> bool:
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.holding
