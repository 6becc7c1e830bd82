"""From the cells of a notebook to the text of a script."""

import ast
import re
from dataclasses import dataclass

from bookmaker.errors import FormError
from bookmaker.script import (
    builtin_names,
    identity,
    layout,
    left_out,
    names,
    on_ranks,
    preamble,
    process_state,
    prose,
)
from bookmaker.script.cells import Cell, Prose
from bookmaker.script.display import names_that_draw
from bookmaker.script.fstrings import Unwritable
from bookmaker.script.hoist import collect
from bookmaker.script.import_section import grouped, packages
from bookmaker.script.imports import Imports, is_import, origin, starts_processes
from bookmaker.script.kernel import Kernel
from bookmaker.script.lab import Lab, find_ranks
from bookmaker.script.layout import Piece
from bookmaker.script.operations import Finder
from bookmaker.script.randomness import needs_two_streams
from bookmaker.script.scopes import names_in
from bookmaker.script.source import Source, rows_inside_strings
from bookmaker.script.statements import comments_at_end
from bookmaker.script.step import Step


@dataclass(frozen=True)
class Title:
    """name: the script's, without ``.py``. origin: the sentence that says where it is from."""

    name: str
    origin: str


def script(cells: list[Cell | Prose], title: Title) -> str:
    """The text of the script."""
    lab, code = Lab(), [cell for cell in cells if isinstance(cell, Cell)]
    kept = [cell for cell in code if not cell.notebook_only]
    imports = collect(kept, lab)
    find_ranks(lab, kept)
    step = _prepared(lab, imports, code, kept)
    names.check(code, step)
    _check_processes(code, kept, step)
    body = _body(cells, step)
    return _verified(_assembled(body, step, title), step)


def _check_processes(code: list[Cell], kept: list[Cell], step: Step) -> None:
    """Refuse what one process for the kernel and rank 0 would change."""
    lab, imported = step.lab, step.imports.names
    left_out.check(code, lab)
    process_state.check(kept, lab, imported)
    identity.check(kept, lab, imported)
    if lab.has_ranks:
        builtin_names.check(kept, lab, builtin_names.read_in([*preamble.PARTS.values(), "dict()"]))


def _prepared(lab: Lab, imports: Imports, code: list[Cell], kept: list[Cell]) -> Step:
    """What is known before the first cell is translated."""
    every = set(imports.names)
    for cell in kept:
        every |= names_in(*(node for node in cell.tree.body if not is_import(node))).all
        every |= _moved(cell, lab)
    step = Step(lab, imports, every - lab.names)
    step.cells = kept
    step.inherited = process_state.inherited(kept, lab, imports.names) if lab.has_ranks else set()
    lab.renamed = _renamed(step, kept)
    imported = {"torch": "torch", **imports.names}
    step.two_streams = lab.has_ranks and needs_two_streams(kept, imported, lab.ranks)
    lab.two_streams = step.two_streams
    step.draws = names_that_draw(imports.names)
    step.defined_everywhere = names.defined_everywhere(kept, step)
    return step


def _renamed(step: Step, kept: list[Cell]) -> dict[str, str]:
    """The preamble's own names that mean something else in the notebook, with new ones."""
    bound = set()
    for cell in kept:
        bound |= _moved(cell, step.lab)
        for node in cell.tree.body:
            if not is_import(node):
                names_ = names_in(node)
                bound |= names_.binds | names_.later_binds
    starred = any(statement.endswith("import *") for statement in step.imports.statements)
    used = bound | set(step.imports.names) | (step.all_names - {"display"} if starred else set())
    taken = preamble.HELPERS & used
    for name, statement in preamble.IMPORTS.items():
        imported = step.imports.names.get(name)
        other = imported and imported != origin(ast.parse(statement).body[0])
        if name not in preamble.FIXED and (name in bound or other):
            taken |= {name}
    return {name: f"{name}_" for name in sorted(taken)}


def _moved(cell: Cell, lab: Lab) -> set[str]:
    """The names that a plain cell pulls and pushes."""
    if cell.on_ranks or not lab.ranks:
        return set()
    finder = Finder(cell, lab)
    operations = (op for node in cell.tree.body for op in finder.within(node))
    return {op.name for op in operations if op.name}


def _body(cells: list[Cell | Prose], step: Step) -> list[str]:
    """The lines of the script behind its preamble."""
    out: list[str] = []
    for cell in cells:
        if isinstance(cell, Prose):
            _append(out, prose.comments(cell.text))
        elif not cell.notebook_only:
            for code in step.imports.inlined.get(cell.place.number, []):
                _append(out, code.split("\n"))
            _append(out, _cell_lines(cell, step))
    return [*out, *_end(step)]


def _cell_lines(cell: Cell, step: Step) -> list[str]:
    pieces = _pieces(cell, step)
    if pieces and re.match(r"#\s*@save\b", " ".join(pieces[0].above[:1])):
        pieces[0].above = pieces[0].above[1:]
    rest = comments_at_end(Source(cell.body), cell.tree.body)
    lines = layout.lines(pieces, guarded=step.lab.has_ranks)
    while lines and not lines[0]:
        lines.pop(0)
    return lines + ([line for line in rest if line] if rest else [])


def _pieces(cell: Cell, step: Step) -> list[Piece]:
    """The translation of a cell; any error in it becomes a sentence about the cell."""
    try:
        pieces = on_ranks.pieces(cell, step) if cell.on_ranks else Kernel(cell, step).pieces()
        return _inherited(pieces, cell, step)
    except Unwritable as error:
        raise cell.refuse(str(error)) from None
    except FormError:
        raise
    except Exception as error:
        raise cell.refuse(mistake(error)) from error


def _inherited(pieces: list[Piece], cell: Cell, step: Step) -> list[Piece]:
    """The pieces, with those for all ranks that the notebook's ranks inherit from the kernel."""
    source, nodes = Source(cell.body), [n for n in cell.tree.body if id(n) in step.inherited]
    texts = {source.statement(node, 0): node for node in nodes}
    texts |= {f"{step.lab.helper('show')}({text})": node for text, node in texts.items()}
    found: list[Piece] = []
    for piece in pieces:
        node = texts.get(piece.render(0)) if texts else None
        if node is None:
            found.append(piece)
            continue
        if isinstance(node, ast.Expr):  # rank 0 may first have to make the folder
            found.append(layout.line(f"{step.use('everyone')}()", everywhere=True))
        text = source.statement(node, 0)
        found.append(layout.line(text, everywhere=True, above=piece.above))
        found[-1].behind = piece.behind
    return found


def mistake(error: Exception) -> str:
    """The sentence about an error that the exporter itself made."""
    return (
        f"this is a mistake in the exporter ({type(error).__name__}: {error}). Write the cell in "
        "a simpler way until it is repaired."
    )


def _append(out: list[str], lines: list[str]) -> None:
    if lines:
        out += ["", *lines] if out else lines


def _end(step: Step) -> list[str]:
    if not step.lab.has_ranks or step.closed:
        return []
    return ["", f"{step.use('leave_group')}()"]


def _assembled(body: list[str], step: Step, title: Title) -> str:
    lab, imports = step.lab, step.imports
    in_with = step.traced
    if lab.views:
        step.used |= {"untraced" if name in in_with else "left_out" for name in lab.views}
    if lab.results:
        step.used.add("result")
    plots = bool(step.draws)
    if starts_processes(imports.names):
        step.used.add("hide_file")
    parts = preamble.needed(step.used, lab, plots)
    for statement in preamble.imports(parts, lab):
        imports.add(statement)
    code = preamble.texts(parts, lab)
    if 0 in imports.inlined:
        at = parts.index("look") if "look" in parts else len(code)
        code.insert(at, "\n\n\n".join(imports.inlined[0]))
    code += [f"{name} = {lab.helper('result')}" for name in sorted(lab.results - {"result"})]
    code += [preamble.stand_ins(lab, in_with)] if lab.views else []
    sections = [_header(step, title), grouped(imports.statements), "\n\n\n".join(code)]
    if not lab.has_ranks:
        builtin_names.check(step.cells, lab, builtin_names.read_in(code))
    text = "\n\n".join(section for section in sections if section)
    return _spaced([*text.split("\n"), "", "", *body])


def _header(step: Step, title: Title) -> str:
    lab, name = step.lab, f"{title.name}.py"
    lines = [title.origin, ""] if title.origin else []
    if lab.has_ranks:
        n = lab.settings["n"]
        lines += [
            f"Run it on {n} ranks, or on another number of them, in one of these ways:",
            f"    python {name}",
            f"    torchrun --standalone --nproc-per-node {n} {name}",
            f"    torchrun --nnodes 2 --nproc-per-node {n} --rdzv-backend c10d "
            f"--rdzv-endpoint HOST:29500 {name}",
            f"    mpiexec -n {n} python {name}",
        ]
    else:
        lines += [f"Run it: python {name}"]
    code = [code for codes in step.imports.inlined.values() for code in codes]
    code += [cell.body for cell in step.cells]
    needed = packages(step.imports.statements, code)
    if lab.has_ranks:
        lines += ["", f"pip install {' '.join(needed)}  (for mpiexec also: mpich mpi4py)"]
    elif needed:
        lines += ["", f"pip install {' '.join(needed)}"]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _spaced(lines: list[str]) -> str:
    """Two empty lines around definitions, never more; none at the end."""
    strings = rows_inside_strings("\n".join(lines) + "\n")
    out: list[str] = []
    defined = False
    for row, line in enumerate(lines, 1):
        code = row not in strings
        if code and _begins_definition(line) and out and not out[-1].startswith(("@", "#")):
            while out and not out[-1]:
                out.pop()
            out += ["", ""] if out else []
        elif code and defined and _at_margin(line) and not out[-1].startswith("@"):
            missing = 2 - sum(not before for before in out[-2:])
            out += [""] * (missing if out[-1] or out[-2] else 0)
        if code and _at_margin(line) and not line.startswith("@"):
            defined = _begins_definition(line)
        out.append(line)
    return "\n".join(out).rstrip("\n") + "\n"


def _at_margin(line: str) -> bool:
    """Whether a statement or a comment begins here, at the left."""
    return bool(line) and not line[0].isspace() and line[0] not in ")]}"


def _begins_definition(line: str) -> bool:
    return bool(re.match(r"(async def|def|class)\b|@", line))


def _verified(text: str, step: Step) -> str:
    """The text, if every statement that was to be copied is in it, unchanged."""
    found = {ast.dump(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)}
    for cell, node in step.copied:
        if ast.dump(node) not in found:
            raise cell.refuse(
                f"the script would not hold line {node.lineno} of this cell as it is written. "
                "This is a mistake in the exporter; write the line in a simpler way until it is "
                "repaired."
            )
    return text
