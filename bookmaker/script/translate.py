"""From the cells of a notebook to the text of a script."""

import ast
import re
from dataclasses import dataclass

from bookmaker.errors import FormError
from bookmaker.script import (
    identity,
    layout,
    left_out,
    names,
    preamble,
    process_state,
    prose,
    px_cells,
    sending,
    set_order,
)
from bookmaker.script.apart import apart, hidden_in_code
from bookmaker.script.cells import Cell, Prose
from bookmaker.script.comments import comments_at_end
from bookmaker.script.display import names_that_draw
from bookmaker.script.everywhere import defined_everywhere, sendable
from bookmaker.script.first_use import mentioned, placed, without
from bookmaker.script.fstrings import Unwritable
from bookmaker.script.hoist import collect
from bookmaker.script.import_section import grouped, packages
from bookmaker.script.imports import Imports, is_import, origin, starts_processes
from bookmaker.script.lab import Lab, find_ranks
from bookmaker.script.layout import Piece
from bookmaker.script.plain_cells import Kernel
from bookmaker.script.randomness import needs_two_streams
from bookmaker.script.scopes import names_in
from bookmaker.script.sides import Sides, sides
from bookmaker.script.source import Source, rows_inside_strings
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
    found = sides(kept, lab)
    step = _prepared(lab, imports, found, kept)
    _check(code, kept, found, step)
    return _verified(_assembled(cells, _cells(kept, step), step, title), step)


def _check(code: list[Cell], kept: list[Cell], found: Sides, step: Step) -> None:
    """Refuse what would be another program in a script. kept: those of the cells that are in it."""
    lab, imports = step.lab, step.imports
    left_out.check(code, lab)
    names.check(kept, found, lab, imports)
    if not lab.has_ranks:
        return
    names.refuse_builtins(found, [*preamble.PARTS.values(), "dict()"])
    everywhere = step.defined_everywhere
    sending.check(kept, found, lab, sendable(kept, everywhere), step.known_everywhere)
    process_state.check(kept, lab, imports.names)
    identity.check(kept, lab, imports.names)
    set_order.check(kept)


def _prepared(lab: Lab, imports: Imports, found: Sides, kept: list[Cell]) -> Step:
    """What is known before the first cell is translated."""
    every = set(imports.names) | found.kernel.names | found.ranks.names
    for cell in kept:
        every |= names_in(*(node for node in cell.tree.body if not is_import(node))).all
    step = Step(lab, imports, every - lab.names, cells=kept)
    lab.renamed = _renamed(step, found)
    lab.mpi = any(name.split(".")[0] == "mpi4py" for name in imports.names.values())
    step.measured = without(kept, lab.measures)
    step.draws = names_that_draw(imports.names)
    if lab.has_ranks:
        imported = {"torch": "torch", **imports.names}
        lab.two_streams = needs_two_streams(kept, imported, lab.ranks)
        lab.apart = apart(found, imports, lab)
        step.apart_in_code = hidden_in_code(kept, lab.apart)
        step.inherited = process_state.inherited(kept, lab, imports.names)
    step.defined_everywhere = defined_everywhere(kept, imports, lab.apart)
    return step


def _renamed(step: Step, found: Sides) -> dict[str, str]:
    """The preamble's own names that mean something else in the notebook, with new ones."""
    bindings = [*found.kernel.binds.items(), *found.ranks.binds.items()]
    bound = {name for name, those in bindings if not all(is_import(each.node) for each in those)}
    bound |= set(found.pushes) | set(found.pulls)
    starred = any(statement.endswith("import *") for statement in step.imports.statements)
    used = bound | set(step.imports.names) | (step.all_names - {"display"} if starred else set())
    taken = preamble.HELPERS & used
    for name, statement in preamble.IMPORTS.items():
        imported = step.imports.names.get(name)
        other = imported and imported != origin(ast.parse(statement).body[0])
        if name not in preamble.FIXED and (name in bound or other):
            taken |= {name}
    return {name: f"{name}_" for name in sorted(taken)}


def _cells(cells: list[Cell], step: Step) -> dict[int, list[str]]:
    """Number of a cell -> its lines. What it needs of the preamble is noted on the way."""
    lines = {}
    for cell in cells:
        before, step.used = step.used, set()
        lines[cell.place.number] = _cell_lines(cell, step)
        step.first_used.update((part, cell.place.number) for part in step.used - before)
        step.used |= before
    return lines


def _body(cells: list[Cell | Prose], lines: dict, above: dict[int, list[str]]) -> list[str]:
    """The script behind its preamble; above: what stands above a cell and its text."""
    out, text, begun = [], [], False
    for cell in cells:
        if isinstance(cell, Prose):
            text.append(prose.comments(cell.text))
        elif not cell.notebook_only:
            number = cell.place.number
            for code in above.get(number, []) if begun else []:
                _append(out, code.split("\n"))
            for lines_ in [*text, lines[number]]:
                _append(out, lines_)
            text, begun = [], begun or bool(lines[number])
    for lines_ in text:
        _append(out, lines_)
    return out


def _cell_lines(cell: Cell, step: Step) -> list[str]:
    pieces = _pieces(cell, step)
    first = next((piece for piece in pieces if piece.above), None)
    if first and re.match(r"#\s*@save\b", first.above[0]):
        first.above = first.above[1:]
    rest = comments_at_end(Source(cell.body), cell.tree.body)
    lines = layout.lines(pieces, guarded=step.lab.has_ranks)
    while lines and not lines[0]:
        lines.pop(0)
    return lines + ([line for line in rest if line] if rest else [])


def _pieces(cell: Cell, step: Step) -> list[Piece]:
    """The translation of a cell; any error in it becomes a sentence about the cell."""
    try:
        pieces = px_cells.pieces(cell, step) if cell.on_ranks else Kernel(cell, step).pieces()
        if pieces and cell.place.number in step.measured:
            return [layout.block(f"if {min(step.lab.measures)}:", pieces)]
        return pieces
    except Unwritable as error:
        raise cell.refuse(str(error)) from None
    except FormError:
        raise
    except Exception as error:
        raise cell.refuse(mistake(error)) from error


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


def _assembled(cells, lines: dict[int, list[str]], step: Step, title: Title) -> str:
    end = _end(step)
    top, above = _helpers(lines, step)
    if not step.lab.has_ranks:
        own = [*top, *(text for texts in above.values() for text in texts)]
        names.refuse_builtins(sides(step.cells, step.lab), own)
    sections = [_header(step, title), grouped(step.imports.statements), "\n\n\n".join(top)]
    text = "\n\n".join(section for section in sections if section)
    return _spaced([*text.split("\n"), "", "", *_body(cells, lines, above), *end])


def _helpers(lines: dict[int, list[str]], step: Step) -> tuple[list[str], dict[int, list[str]]]:
    """What stands at the top, and what stands above cells: number -> blocks of code."""
    lab, imports, in_with, uses = step.lab, step.imports, step.traced, step.first_used
    plots, numbers = bool(step.draws), list(lines)
    first = next((number for number in numbers if lines[number]), 0)
    mentions = {cell.place.number: mentioned(cell) for cell in step.cells}
    if lab.views:
        step.used |= {"untraced" if name in in_with else "left_out" for name in lab.shown}
    if any(names & lab.results for names in mentions.values()):
        step.used.add("result")
    if starts_processes(imports.names):
        step.used.add("hide_file")
    parts = preamble.needed(step.used, lab, plots)
    for statement in preamble.imports(parts, lab):
        imports.add(statement)
    # A part, or a block of ranklab's: its text, and the first cell that is known to use it.
    blocks = [(preamble.text(part, lab), _first(part, parts, uses, step, first)) for part in parts]
    taken = [(code, None) for _, code in imports.inlined]
    modules = {code: module for module, code in imports.inlined}
    at = next((i for i, part in enumerate(parts) if part in ("look", "agg")), len(blocks))
    blocks[at:at] = taken
    blocks += [(f"{name} = {lab.helper('result')}", None) for name in lab.results - {"result"}]
    blocks += [(stand_in, None) for stand_in in preamble.stand_ins(lab, in_with)]
    forced = {index: number for index, (_, number) in enumerate(blocks) if number is not None}
    texts = [text for text, _ in blocks]
    top, above = [], {}
    for text, number in zip(texts, placed(texts, mentions, forced)):
        (top if number <= first else above.setdefault(number, [])).append(text)
    _name_modules([top, *above.values()], modules)
    return top, above


def _first(part: str, parts: list[str], uses: dict[str, int], step: Step, first: int) -> int | None:
    """The number of the first cell that uses a part; None if only other parts tell."""
    if part in preamble.AT_THE_TOP or (part == "file_beside" and "hide_file" in parts):
        return first
    if part in ("look", "agg"):
        draws = (c.place.number for c in step.cells if mentioned(c) & step.draws)
        return min(draws, default=None)
    return uses.get(preamble.general(part))


def _name_modules(places: list[list[str]], modules: dict[str, str]) -> None:
    """Say where code comes from, once for what stands together."""
    for texts in places:
        before = ""
        for index, text in enumerate(texts):
            module = modules.get(text, "")
            if module and module != before:
                texts[index] = f"# From {module}:\n\n{text}"
            before = module


def _header(step: Step, title: Title) -> str:
    lab, name = step.lab, f"{title.name}.py"
    lines = [title.origin, ""] if title.origin else []
    if lab.has_ranks:
        n = lab.settings["n"]
        ways = [
            f"python {name}",
            f"torchrun --standalone --nproc-per-node {n} {name}",
            f"torchrun --nnodes 2 --nproc-per-node {n} --rdzv-backend c10d "
            f"--rdzv-endpoint HOST:29500 {name}",
            f"mpiexec -n {n} python {name}",
        ]
        if lab.mpi:  # a launcher of the other kind makes other MPI worlds
            ways = ways[3:] if lab.settings["engines"] == "mpi" else ways[:3]
        one = "this way" if len(ways) == 1 else "one of these ways"
        lines += [f"Run it on {n} ranks, or on another number of them, in {one}:"]
        lines += [f"    {way}" for way in ways]
    else:
        lines += [f"Run it: python {name}"]
    code = [code for _, code in step.imports.inlined] + [cell.body for cell in step.cells]
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
