"""The cells of a notebook, parsed: which run in the kernel, which on the ranks, and how."""

import ast
import io
import re
import tokenize
from dataclasses import dataclass, field

from IPython.core.inputtransformer2 import TransformerManager

from bookmaker.errors import FormError
from bookmaker.manuscript import programs
from bookmaker.script.read.magics import Targets, px_options
from bookmaker.script.read.scopes import is_import, names_in

_MAGICS = {
    "run_line_magic": "%{}",
    "run_cell_magic": "%%{}",
    "system": "!{}",
    "getoutput": "!{}",
}


# Tags of cells that are not in the script; Jupyter itself does not run the second kind.
LEFT_OUT = frozenset({"notebook-only", "skip-execution"})


@dataclass(frozen=True)
class Place:
    """Where in the notebook something stands, for the sentence of an error."""

    notebook: str
    number: int
    first_line: str

    def refuse(self, why: str) -> FormError:
        """The error that says why this cell has no translation."""
        first = self.first_line.encode("utf-8", "backslashreplace").decode()
        first = first if len(first) <= 60 else first[:57] + "..."
        return FormError(f"{self.notebook}, cell {self.number} (`{first}`): {why}")


@dataclass(frozen=True)
class Prose:
    """A Markdown cell."""

    text: str


@dataclass
class Cell:
    """A code cell. ``body`` is Python: without the ``%%px`` line, if there was one.

    program: the file that it writes, or goes on with (goes_on), which is a script by itself.
    """

    place: Place
    body: str
    tree: ast.Module
    tags: frozenset[str] = frozenset()
    on_ranks: bool = False
    targets: Targets = field(default_factory=Targets)
    silent: bool = False
    program: str = ""
    goes_on: bool = False

    def refuse(self, why: str) -> FormError:
        return self.place.refuse(why)

    @property
    def may_fail(self) -> bool:
        return "raises-exception" in self.tags

    @property
    def mentions(self) -> set[str]:
        """Every name of a module that the cell's code has to do with."""
        code = [node for node in self.tree.body if not is_import(node)]
        return set(names_in(*code).all) if code else set()

    @property
    def notebook_only(self) -> bool:
        return bool(self.tags & LEFT_OUT or self.program)


def read(nb, name: str) -> list[Cell | Prose]:
    """The cells of a notebook; those that the forms themselves put there are left out."""
    cells, number = [], 0
    for raw in nb.cells:
        if raw.metadata.get("ranklab", {}).get("generated"):
            continue
        if raw.cell_type == "markdown":
            cells.append(Prose(raw.source))
        elif raw.cell_type == "code":
            number += 1
            tags = frozenset(raw.metadata.get("tags", ()))
            first = next((line for line in raw.source.splitlines() if line.strip()), "")
            cells.append(_code_cell(Place(name, number, first.strip()), raw.source, tags))
    return cells


def _code_cell(place: Place, source: str, tags: frozenset[str]) -> Cell:
    body, on_ranks, targets, left_out = source, False, Targets(), bool(tags & LEFT_OUT)
    _refuse_odd_characters(place, source)
    first = next((line for line in source.splitlines() if line.strip()), "")
    if first.lstrip().startswith("%%"):
        if first[0].isspace() and not left_out:
            raise place.refuse("spaces stand before `%%`; IPython wants it at the left margin.")
        magic, line, body = _cell_magic(place, source)
        if part := programs.part_of(source):
            return _part_of_program(place, *part, body)
        if magic == "px":
            on_ranks, targets = True, Targets() if left_out else px_options(place, line)
        elif not left_out:
            raise place.refuse(
                f"`%%{magic}` means nothing to Python. Write it without the magic, or tag the "
                "cell `notebook-only`."
            )
    if left_out:
        return Cell(place, body, _parsed_leniently(body), tags, on_ranks, targets)
    body = _plain_python(place, body)
    cell = Cell(place, body, _parsed(place, body), tags, on_ranks, targets, _is_silent(body))
    _refuse_top_level_await(cell)
    return cell


def _part_of_program(place: Place, file: str, goes_on: bool, body: str) -> Cell:
    """A cell that writes a program into a file, or goes on with one: nothing runs here."""
    if not re.fullmatch(r"[a-z]\w*\.py", file):
        raise place.refuse("a program is a file beside the notebook: `%%writefile name.py`.")
    body = _plain_python(place, body.partition("\n")[2])
    tree = _parsed(place, body)
    return Cell(place, body, tree, silent=True, program=file, goes_on=goes_on)


def _refuse_odd_characters(place: Place, source: str) -> None:
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise place.refuse(
            f"this cell holds half of a character, {source[error.start]!r}, which no file can. "
            f'Write it as an escape in a string ("\\u{ord(source[error.start]):04x}").'
        ) from None
    if "\r" in source.replace("\r\n", "\n"):
        raise place.refuse(
            "this cell holds a carriage return inside of a line, which Python would take for its "
            "end. Write \\r in the string instead."
        )


def _cell_magic(place: Place, source: str) -> tuple[str, str, str]:
    """Name, rest of the line, and body of a ``%%`` cell, as IPython reads them."""
    tree = ast.parse(TransformerManager().transform_cell(source))
    call = tree.body[0].value
    if call.func.attr != "run_cell_magic":
        raise place.refuse("help on a magic (`?`) is for notebooks; tag the cell `notebook-only`.")
    magic, line, body = (argument.value for argument in call.args)
    return magic, line, body.rstrip("\n") + "\n" if body.strip() else ""


def _plain_python(place: Place, body: str) -> str:
    """The body, if it is Python and nothing else; an error that names the magic otherwise."""
    body = body.replace("\r\n", "\n").strip("\n").rstrip()
    body = body + "\n" if body else ""
    try:
        seen = TransformerManager().transform_cell(body) if body else ""
    except (SyntaxError, tokenize.TokenError):
        return body  # no Python at all, as its parser is about to say
    if seen == body:
        return body
    try:
        tree, own = ast.parse(seen), _mentions(body)
    except SyntaxError:
        raise place.refuse("this is not Python.") from None
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=method),
                args=[ast.Constant(value=str(word)), *rest],
            ) if method in _MAGICS and own < seen.count("get_ipython()"):
                raise place.refuse(_why_not(method, word, rest))
    try:
        if ast.dump(ast.parse(seen)) == ast.dump(ast.parse(body)):
            return body
    except SyntaxError:
        pass
    if _dedented(body) == seen:
        return seen
    raise place.refuse("this cell holds IPython's own syntax; write it in Python.")


def _mentions(body: str) -> int:
    return body.count("get_ipython()")


def _dedented(body: str) -> str:
    lines = body.splitlines(keepends=True)
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "".join(line[margin:] if not line[:margin].strip() else line for line in lines)


def _why_not(method: str, word: str, rest: list) -> str:
    if word in ("pinfo", "pinfo2") and rest:
        about = rest[0].value + ("?" if word == "pinfo" else "??")
        return f"`{about}` asks IPython for help, which a script cannot; take the line out."
    magic = _MAGICS[method].format(word.split("\n")[0])
    if magic == "%px":
        return "`%px` has no translation; write a `%%px` cell."
    if magic.startswith("!"):
        return (
            f"`{magic}` is IPython's. Write subprocess.run(...), or tag the cell `notebook-only`."
        )
    return (
        f"`{magic}` means nothing to Python. Write what it does in Python, or tag the cell "
        "`notebook-only`."
    )


def _parsed(place: Place, body: str) -> ast.Module:
    try:
        tree = ast.parse(body)
        compile(body, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        raise place.refuse(
            f"this is not Python: {error.msg} (line {error.lineno}). A cell that shows a syntax "
            "error is tagged `notebook-only`."
        ) from None
    return tree


def _parsed_leniently(body: str) -> ast.Module:
    try:
        return ast.parse(body)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def _is_silent(body: str) -> bool:
    """Whether the cell's last token is a semicolon: IPython then shows no value."""
    skip = {tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER}
    skip |= {tokenize.INDENT, tokenize.DEDENT}
    tokens = tokenize.generate_tokens(io.StringIO(body).readline)
    kept = [token.string for token in tokens if token.type not in skip]
    return bool(kept) and kept[-1] == ";"


class _Await(ast.NodeVisitor):
    """Finds what needs a running event loop outside of ``async def``."""

    found = False

    def visit_AsyncFunctionDef(self, node):
        pass

    def visit_Await(self, node):
        self.found = True

    visit_AsyncFor = visit_AsyncWith = visit_Await

    def visit_comprehension(self, node):
        self.found = self.found or bool(node.is_async)
        self.generic_visit(node)


def _refuse_top_level_await(cell: Cell) -> None:
    finder = _Await()
    finder.visit(cell.tree)
    if finder.found:
        raise cell.refuse(
            "`await` outside of a function works in notebooks alone; write an `async def` and "
            "asyncio.run(...)."
        )
