"""The symbol table of a piece of Python, the same for every version of Python."""

import ast
import symtable
from functools import lru_cache


@lru_cache(maxsize=8192)  # each check of a script asks for the same statements again
def table(source: str) -> symtable.SymbolTable:
    """The symbol table of the module ``source``, in which every comprehension is a scope.

    From Python 3.12 on, ``[i for i in x]`` has no scope of its own in the table: its ``i`` would
    look like one of the module's names. A generator expression means the same and has one.
    """
    tree = _Generators().visit(ast.parse(source))
    return symtable.symtable(ast.unparse(tree), "<code>", "exec")


class _Generators(ast.NodeTransformer):
    """Makes every comprehension a generator expression."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)
