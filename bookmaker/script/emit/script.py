"""The text of a script, from its cells and the plan."""

import ast
import re

from bookmaker.errors import FormError
from bookmaker.script.analyse.plan import Plan
from bookmaker.script.emit import layout, preamble, prose, px_cells
from bookmaker.script.emit.display import names_that_draw
from bookmaker.script.emit.head import Title, head
from bookmaker.script.emit.import_section import grouped
from bookmaker.script.emit.layout import Piece
from bookmaker.script.emit.placing import helpers
from bookmaker.script.emit.plain_cells import Kernel
from bookmaker.script.emit.spacing import spaced
from bookmaker.script.emit.step import Step
from bookmaker.script.read.cells import Cell, Prose
from bookmaker.script.read.comments import comments_at_end
from bookmaker.script.read.fstrings import Unwritable
from bookmaker.script.read.source import Source


def script(cells: list[Cell | Prose], plan: Plan, title: Title) -> str:
    """The text of the script."""
    step = Step(plan, draws=names_that_draw(plan.imports.names))
    lines = _cells(cells, step)
    end = ["", f"{step.use('leave_group')}()"] if plan.lab.has_ranks and not step.closed else []
    top, above = helpers(lines, step)
    start = preamble.text(preamble.BEFORE_PACKAGES, plan) if plan.by_mpi else ""
    sections = [head(plan, title), grouped(plan.imports.statements, start), "\n\n\n".join(top)]
    text = "\n\n".join(section for section in sections if section)
    return _verified(spaced([*text.split("\n"), "", "", *_body(cells, lines, above), *end]), step)


def _cells(cells: list[Cell | Prose], step: Step) -> dict[int, list[str]]:
    """Number of a cell -> its lines. What it needs of the preamble is noted on the way."""
    lines = {}
    for cell in cells:
        if isinstance(cell, Prose):
            step.title = prose.title(cell.text) or step.title
        if isinstance(cell, Prose) or cell.notebook_only:
            continue
        before, step.used = step.used, set()
        lines[cell.place.number] = _cell_lines(cell, step)
        step.first_used.update((part, cell.place.number) for part in step.used - before)
        step.used |= before
    return lines


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
        if cell.place.number not in step.plan.measured:
            return _translated(cell, step)
        before = step.state()
        step.nested += 1
        pieces = _translated(cell, step)
        step.nested -= 1
        step.merge(before)  # for the block may be left out
        return [layout.block(f"if {step.plan.measures}:", pieces)] if pieces else []
    except Unwritable as error:
        raise cell.refuse(str(error)) from None
    except FormError:
        raise
    except Exception as error:
        raise cell.refuse(mistake(error)) from error


def _translated(cell: Cell, step: Step) -> list[Piece]:
    return px_cells.pieces(cell, step) if cell.on_ranks else Kernel(cell, step).pieces()


def mistake(error: Exception) -> str:
    """The sentence about an error that the exporter itself made."""
    return (
        f"this is a mistake in the exporter ({type(error).__name__}: {error}). Write the cell in "
        "a simpler way until it is repaired."
    )


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


def _append(out: list[str], lines: list[str]) -> None:
    if lines:
        out += ["", *lines] if out else lines


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
