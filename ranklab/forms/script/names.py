"""Names: in the notebook the kernel's and the ranks' are apart, in the script they are not."""

import ast

from ranklab.forms.script.scopes import names_in


def check(cells, step):
    pass


def defined_everywhere(cells, step):
    found = set()
    known = set(step.imports.names)
    for cell in cells:
        if cell.on_ranks:
            continue
        for node in cell.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names = names_in(node)
                if names.reads <= known | found | {node.name}:
                    found.add(node.name)
    return found
