"""Where a script's helpers stand: before the section whose code first uses them.

So the chapter's own code is soon in sight. What its first code needs stands above it, at the top.
"""

import ast
from dataclasses import dataclass

from bookmaker.script.analyse.imports import starts_processes
from bookmaker.script.emit import preamble
from bookmaker.script.emit.step import Step
from bookmaker.script.read.scopes import names_in


@dataclass
class Block:
    """A helper's text. module: ranklab's, from which it comes. before: number of a cell before
    which it has to stand, where that is known; else its names tell."""

    text: str
    module: str = ""
    before: int | None = None


def helpers(lines: dict[int, list[str]], step: Step) -> tuple[list[str], dict[int, list[str]]]:
    """What stands at the top, and what stands above cells: number -> blocks of code.

    lines: number of a cell -> its lines of the script.
    """
    first = next((number for number in lines if lines[number]), 0)
    mentions = {cell.place.number: cell.mentions for cell in step.plan.cells}
    blocks = _blocks(_parts(step, mentions), step, first)
    top, above = [], {}
    for block, number in zip(blocks, _places(blocks, mentions), strict=True):
        (top if number <= first else above.setdefault(number, [])).append(block)
    return _texts(top), {number: _texts(those) for number, those in above.items()}


def _parts(step: Step, mentions: dict[int, set[str]]) -> list[str]:
    """The parts of the preamble, their imports added to those of the script."""
    lab, imports = step.lab, step.plan.imports
    if lab.views:
        step.used |= {"untraced" if name in step.traced else "left_out" for name in lab.shown}
    if any(names & lab.results for names in mentions.values()):
        step.used.add("result")
    if step.plan.stood_in:
        step.used.add("unsampled")
    if starts_processes(imports.names) and not step.plan.program:  # which says when it begins
        step.used.add("hide_file")
    plots = bool(step.draws)
    parts = preamble.needed(step.used, step.plan, plots)
    for statement in preamble.imports(parts, step.plan, plots):
        imports.add(statement)
    return [part for part in parts if part != preamble.BEFORE_PACKAGES]


def _blocks(parts: list[str], step: Step, first: int) -> list[Block]:
    plan, plots = step.plan, bool(step.draws)
    blocks = [
        Block(preamble.text(part, plan, plots), before=_first_use(part, parts, step, first))
        for part in parts
    ]
    at = next((i for i, part in enumerate(parts) if part in ("look", "agg")), len(blocks))
    blocks[at:at] = [Block(code, module) for module, code in plan.imports.inlined]
    same = plan.lab.results - {"result"}
    blocks += [Block(f"{name} = {plan.helper('result')}") for name in sorted(same)]
    return blocks + [Block(text) for text in preamble.stand_ins(plan, step.traced)]


def _first_use(part: str, parts: list[str], step: Step, first: int) -> int | None:
    """The number of the first cell that uses a part; None if only other parts tell."""
    if part in preamble.AT_THE_TOP or (part == "file_beside" and "hide_file" in parts):
        return first
    if part in ("look", "agg"):
        draws = (cell.place.number for cell in step.plan.cells if cell.mentions & step.draws)
        return min(draws, default=None)
    return step.first_used.get(part)


def _places(blocks: list[Block], mentions: dict[int, set[str]]) -> list[int]:
    """For each block of code the number of the cell that needs it first.

    mentions: number of a cell -> the names in its code, in the order of the script. What another
    block needs stands no later than that one.
    """
    last = max(mentions, default=0)
    names = [names_in(*ast.parse(block.text).body) for block in blocks]
    bound = [own.binds | own.later_binds for own in names]
    found = []
    for block, own in zip(blocks, bound, strict=True):
        users = [number for number, used in mentions.items() if own & used]
        before = last if block.before is None else block.before
        found.append(min([*users, before], default=last))
    return _settled(found, bound, names)


def _settled(found: list[int], bound: list, names: list) -> list[int]:
    changed = True
    while changed:
        changed = False
        for index, own in enumerate(names):
            for other, theirs in enumerate(bound):
                if theirs & (own.reads | own.later) and found[other] > found[index]:
                    found[other], changed = found[index], True
    return found


def _texts(blocks: list[Block]) -> list[str]:
    """Their texts; where code is ranklab's, its module is named once for what stands together."""
    texts, before = [], ""
    for block in blocks:
        named = block.module and block.module != before
        texts.append(f"# From {block.module}:\n\n{block.text}" if named else block.text)
        before = block.module
    return texts
