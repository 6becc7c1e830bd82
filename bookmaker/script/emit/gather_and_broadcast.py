"""In a script, pulls and runs are gathers, and values of the kernel broadcasts: their texts."""

import ast

from bookmaker.script.analyse.operations import Finder, Operation
from bookmaker.script.emit.step import Step
from bookmaker.script.read.source import Source, edits_for


class Expressions:
    """Writes the expressions of one plain cell."""

    def __init__(self, step: Step, source: Source, finder: Finder):
        self.step, self.source, self.finder = step, source, finder

    def call(self, op: Operation, replaced) -> str:
        """The statement's value that rank 0 gets from all, by a pull or a run."""
        gather = self.step.use("to_rank_0")
        if op.kind == "pull":
            return f"{gather}({op.name})"
        return f"{gather}({self.run(op, replaced)})"

    def run(self, op: Operation, replaced) -> str:
        """The call that every rank makes, its arguments rank 0's."""
        callee, *arguments = op.node.args
        text = self.text(callee, replaced)
        if not self.callable_everywhere(callee):
            text = f"{self.step.use('from_rank_0')}(lambda: {text})"
        elif isinstance(callee, ast.Lambda):
            text = f"({text})"
        keywords = op.node.keywords
        plain = all(self.is_plain(a) for a in [*arguments, *(k.value for k in keywords)])
        if plain:
            given = [self.text(a, replaced) for a in arguments]
            named = ((f"{k.arg}=" if k.arg else "**", k.value) for k in keywords)
            given += [name + self.text(value, replaced) for name, value in named]
            return f"{text}({', '.join(given)})"
        self.refuse_naming(*arguments, *(k.value for k in keywords))
        share, given = self.step.use("from_rank_0"), []
        if len(arguments) == 1 and not isinstance(arguments[0], ast.Starred):
            given.append(f"{share}(lambda: {self.text(arguments[0], replaced)})")
        elif arguments:
            inner = ", ".join(self.text(a, replaced) for a in arguments)
            inner += "," if len(arguments) == 1 else ""
            given.append(f"*{share}(lambda: ({inner}))")
        if keywords:
            inner = ", ".join(
                (f"{k.arg}=" if k.arg else "**") + self.text(k.value, replaced) for k in keywords
            )
            given.append(f"**{share}(lambda: dict({inner}))")
        return f"{text}({', '.join(given)})"

    def sends_arguments(self, op: Operation) -> bool:
        """Whether a run needs values that only rank 0 has."""
        callee, *arguments = op.node.args
        values = [*arguments, *(k.value for k in op.node.keywords)]
        return not self.callable_everywhere(callee) or not all(map(self.is_plain, values))

    def callable_everywhere(self, callee: ast.expr) -> bool:
        if isinstance(callee, ast.Lambda):
            return True
        root = callee
        while isinstance(root, ast.Attribute):
            root = root.value
        return isinstance(root, ast.Name) and root.id in self.step.plan.known_everywhere

    def argument(self, value: ast.expr, replaced) -> str:
        """The text of a value that may stand after ``lambda:`` in a call."""
        self.refuse_naming(value)
        text = self.text(value, replaced)
        try:
            arguments = ast.parse(f"f(lambda: {text})", mode="eval").body.args
            if len(arguments) == 1 and isinstance(arguments[0], ast.Lambda):
                return text
        except SyntaxError:
            pass
        return f"({text})"

    def standing(self, value: ast.expr, replaced) -> str:
        """The text of a value that stands behind no bracket: more lines need parentheses."""
        text = self.text(value, replaced)
        try:
            ast.parse(text)
        except SyntaxError:
            return f"({text})"
        return text

    def temporary(self, op: Operation, counts: dict[str, int]) -> str:
        """A name for the values that an operation gives; ``counts``: those of this statement."""
        base = op.name if op.kind == "pull" else _function_name(op.node.args[0])
        name = self.free(f"{base}_by_rank")
        count = counts[name] = counts.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def refuse_naming(self, *values: ast.expr) -> None:
        """Behind ``lambda:`` a name would not live on."""
        if any(isinstance(n, ast.NamedExpr) for value in values for n in ast.walk(value)):
            raise self.finder.cell.refuse(
                "`:=` stands in what all ranks wait for from rank 0; give the name its value on a "
                "line before."
            )

    def free(self, name: str) -> str:
        """A name that the notebook does not use."""
        while name in self.step.plan.all_names:
            name += "_"
        return name

    def text(self, node: ast.expr, replaced) -> str:
        """An expression as its author wrote it, with ``replaced`` nodes and the world size."""
        inside = {id(n) for n in ast.walk(node)}
        mine = [(n, text) for n, text in replaced if id(n) in inside]
        sizes = [(op.node, "world_size") for op in self.finder.within(node) if op.kind == "size"]
        known = {id(n) for n, _ in mine}
        mine += [(n, text) for n, text in sizes if id(n) not in known]
        return self.source.text(node, edits_for(node, self.source, mine))

    def is_plain(self, node: ast.expr) -> bool:
        """Whether every rank can work the value out by itself: literals and the world size."""
        return is_plain(node, self.finder)


def _function_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return "values"


def is_plain(node: ast.expr, finder: Finder) -> bool:
    """Literals, arithmetic and comparisons on them, ``range`` of them, and the world size."""
    match node:
        case ast.Constant():
            return True
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return all(is_plain(part, finder) for part in parts)
        case ast.Dict(keys=keys, values=values):
            return all(key and is_plain(key, finder) for key in [*keys]) and all(
                is_plain(value, finder) for value in values
            )
        case ast.UnaryOp(operand=operand):
            return is_plain(operand, finder)
        case ast.BinOp(left=left, right=right):
            return is_plain(left, finder) and is_plain(right, finder)
        case ast.BoolOp(values=values):
            return all(is_plain(value, finder) for value in values)
        case ast.Compare(left=left, comparators=others):
            return all(is_plain(part, finder) for part in [left, *others])
        case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]):
            return all(is_plain(arg, finder) for arg in args)
        case ast.Call() | ast.Attribute():
            found = finder.operation(node)
            return bool(found) and found.kind == "size"
    return False
