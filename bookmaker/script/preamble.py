"""The preamble of a script: the parts of `template.py` that it needs, and no others."""

import ast
import io
import re
import tokenize
from pathlib import Path

from bookmaker.script.lab import DEFAULTS, MEASURES, Lab
from bookmaker.script.scopes import names_in

_TEMPLATE = Path(__file__).with_name("template.py").read_text()
FIXED = frozenset({"rank", "world_size", "device", "torch", "dist", "__file__"})


# These do something when they run; all others are definitions, and stand where they are needed.
AT_THE_TOP = frozenset(
    {
        "one_process",
        "only_mpi",
        "never_mpi",
        "launch",
        "play_streams",
        "play_apart",
        "play_both",
        "hide_file",
    }
)


_AS_KERNEL = {"from_rank_0": "from_rank_0_as_kernel", "in_step": "in_step_as_kernel"}
_GENERAL = {"may_fail_alone": "may_fail", "show_figure": "show"}
_GENERAL |= {special: part for part, special in _AS_KERNEL.items()}
_GENERAL |= dict.fromkeys(("play_streams", "play_apart", "play_both"), "play")


def _parts() -> dict[str, str]:
    pieces = re.split(r"^#: (\w+)\n", _TEMPLATE, flags=re.MULTILINE)[1:]
    return {name: text.strip("\n") for name, text in zip(pieces[::2], pieces[1::2], strict=True)}


PARTS = _parts()


def _template_imports() -> dict[str, str]:
    """name -> the statement that imports it."""
    found = {}
    for node in ast.parse(_TEMPLATE).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                single = type(node)(**{**vars(node), "names": [alias]})
                found[alias.asname or alias.name] = ast.unparse(single)
    return found


IMPORTS = _template_imports()
_BINDS = {name: names_in(*ast.parse(text).body) for name, text in PARTS.items()}
HELPERS = (
    frozenset(name for names in _BINDS.values() for name in names.binds | names.later_binds) - FIXED
)


def needed(used: set[str], lab: Lab, plots: bool) -> list[str]:
    """The parts that a script needs, in the order in which they stand in it."""
    parts = {"launch"} if lab.has_ranks else {"one_process"}
    if lab.mpi and lab.has_ranks:
        parts.add("only_mpi" if lab.settings["engines"] == "mpi" else "never_mpi")
    parts |= used - {"play"} | ({"play_streams"} if lab.two_streams or lab.apart else set())
    parts |= {"look" if lab.used else "agg"} if plots else set()
    todo = list(parts)
    while todo:
        names = _BINDS[_variant(todo.pop(), lab, plots)]
        for name in (names.reads | names.later) & HELPERS - names.binds:
            home = _home(name)
            if home not in parts:
                parts.add(home)
                todo.append(home)
    return [name for name in PARTS if name in {_variant(part, lab, plots) for part in parts}]


def _variant(part: str, lab: Lab, plots: bool) -> str:
    """Which of the parts that bind the same name a script needs."""
    if part == "may_fail" and not lab.has_ranks:
        return "may_fail_alone"
    if part in _AS_KERNEL and (lab.two_streams or lab.apart):
        return _AS_KERNEL[part]
    if part == "play_streams" and lab.apart:
        return "play_both" if lab.two_streams else "play_apart"
    return "show_figure" if part == "show" and plots else part


def _home(name: str) -> str:
    """The part that binds a name."""
    return next(part for part, names in _BINDS.items() if name in names.binds | names.later_binds)


def text(part: str, lab: Lab) -> str:
    """A part as it stands in the script, with the notebook's settings."""
    return renamed(_filled(PARTS[part], lab), lab.renamed)


def general(part: str) -> str:
    """The name by which a translation asks for a part, of which there may be two."""
    return _GENERAL.get(part, part)


def _filled(text: str, lab: Lab) -> str:
    settings = {**DEFAULTS, **lab.settings}
    text = text.replace('"N"', f'"{settings["n"]}"')
    text = text.replace("seconds=TIMEOUT", f"seconds={settings['timeout']:g}")
    wishes = [f"{key}={settings[key]!r}" for key in ("device", "backend") if settings[key]]
    text = text.replace("choose_device(DEVICE, BACKEND)", f"choose_device({', '.join(wishes)})")
    names = ", ".join(f'"{name}"' for name in sorted(lab.apart))
    text = text.replace("APART = NAMES", f"APART = [{names}]")
    if settings["debug"]:
        text = text.replace(
            "device, backend = choose",
            'os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"\n'
            "dist.set_debug_level_from_env()\n"
            "device, backend = choose",
        )
    return text


def renamed(text: str, names: dict[str, str]) -> str:
    """The text with names of the preamble's own replaced, where the notebook uses them."""
    if not names:
        return text
    lines = text.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for token in reversed(tokens):
        if token.type == tokenize.NAME and token.string in names and not _is_keyword(lines, token):
            row, column = token.start
            line = lines[row - 1]
            new = names[token.string]
            lines[row - 1] = line[:column] + new + line[column + len(token.string) :]
    return "".join(lines)


def _is_keyword(lines: list[str], token) -> bool:
    """Whether a name is an attribute (``.store``) or an argument's name (``store=``)."""
    line = lines[token.start[0] - 1]
    before, after = line[: token.start[1]], line[token.end[1] :]
    return before.endswith(".") or bool(re.match(r"=[^=]", after))


def imports(parts: list[str], lab: Lab) -> list[str]:
    """The import statements that these parts need."""
    names = set()
    for part in parts:
        names |= _BINDS[part].reads | _BINDS[part].later
    statements = []
    for name, statement in IMPORTS.items():
        if name in names:
            other = lab.renamed.get(name)
            statement = statement.removesuffix(f" as {name}") if other else statement
            statements.append(f"{statement} as {other}" if other else statement)
    return statements


def stand_ins(lab: Lab, in_with: set[str]) -> list[str]:
    """The lab's own views, where ranklab is installed; else what stands in for them."""
    by_module: dict[str, list[str]] = {}
    for local, (module, _) in sorted(lab.views.items()):
        by_module.setdefault(module, []).append(local)
    return [_stand_in(lab, module, locals_, in_with) for module, locals_ in by_module.items()]


def _stand_in(lab: Lab, module: str, locals_: list[str], in_with: set[str]) -> str:
    names = {local: lab.views[local][1] for local in locals_}
    spelled = [name if name == local else f"{name} as {local}" for local, name in names.items()]
    lines = [
        "try:",
        f"    from {module} import {', '.join(sorted(spelled))}",
        "except ImportError:",
    ]
    if module == MEASURES:
        lines += [f"    {' = '.join(locals_)} = None"]
        lines += [f'    print("What {module} measures is left out, for it is not installed here")']
        return "\n".join(lines)
    for local, name in names.items():
        if local in in_with:
            lines.append(f"    {local} = {lab.helper('untraced')}")
        else:
            lines.append(f'    {local} = {lab.helper("left_out")}("{name}")')
    return "\n".join(lines)
