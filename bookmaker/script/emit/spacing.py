"""Empty lines of a script, as a person would set them."""

import re

from bookmaker.script.read.source import rows_inside_strings


def spaced(lines: list[str]) -> str:
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
