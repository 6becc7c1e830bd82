"""The preamble of a script: the parts of `template.py` that it needs, and no others."""

import ast
import io
import re
import tokenize

from bookmaker.script.analyse.lab import DEFAULTS, MEASURES
from bookmaker.script.analyse.plan import Plan
from bookmaker.script.parts import HELPERS, IMPORTS, NAMES, PARTS, kept
from bookmaker.script.read.scopes import names_in

# These do something when they run; all others are definitions, and stand where they are needed.
AT_THE_TOP = {"one_process", "never_mpi", "launch_by_mpi", "launch", "join", "hide_file", "play"}
# This one starts the ranks before a package is imported, for to import mpi4py is to start MPI.
BEFORE_PACKAGES = "start_by_mpi"


def words(plan: Plan, plots: bool) -> set[str]:
    """What is true of a script, of the words behind `#:` in the template."""
    true = {
        "ranks": plan.lab.has_ranks,
        "plots": plots,
        "cards": plan.on_cards,  # a rank's device may be one
        "messages": plan.messages,
        "play": plan.plays,  # the kernel and the ranks have each of their own: ...
        "draws": plan.two_streams,
        "apart": plan.apart,
        "code": plan.apart_code,
        "devices": plan.two_devices,
    }
    return {word for word, holds in true.items() if holds}


def needed(used: set[str], plan: Plan, plots: bool) -> list[str]:
    """The parts that a script needs, in the order in which they stand in it."""
    lab, true = plan.lab, words(plan, plots)
    parts = _launch(plan) | used | ({"play"} if plan.plays else set())
    parts |= {"look" if lab.used else "agg"} if plots else set()
    todo = list(parts)
    while todo:
        names = _names(_filled(kept(todo.pop(), true), plan))
        more = {_home(name) for name in (names.reads | names.later) & HELPERS - names.binds}
        todo += more - parts
        parts |= more
    return [name for name in PARTS if name in parts]


def _names(text: str):
    return names_in(*ast.parse(text).body)


def _launch(plan: Plan) -> set[str]:
    """The parts that make ranks of the processes, or one of many."""
    if not plan.lab.has_ranks:
        return set() if plan.program else {"one_process"}
    if plan.by_mpi:
        return {BEFORE_PACKAGES, "launch_by_mpi", "join"}
    return {"launch", "join"} | ({"never_mpi"} if plan.mpi else set())


def _home(name: str) -> str:
    """The part that binds a name."""
    return next(part for part, names in NAMES.items() if name in names.binds | names.later_binds)


def text(part: str, plan: Plan, plots: bool = False) -> str:
    """A part as it stands in the script, with the notebook's settings."""
    return renamed(_filled(kept(part, words(plan, plots)), plan), plan.renamed)


def _filled(text: str, plan: Plan) -> str:
    settings = {**DEFAULTS, **plan.lab.settings}
    text = text.replace('"N"', f'"{settings["n"]}"')
    text = text.replace("seconds=TIMEOUT", f"seconds={settings['timeout']:g}")
    wishes = [f", {key}={settings[key]!r}" for key in ("device", "backend") if settings[key]]
    text = text.replace(", DEVICE, BACKEND)", f"{''.join(wishes)})")
    text = text.replace("(DEVICE), BACKEND", f'("cpu"), "{settings["backend"] or "gloo"}"')
    text = text.replace("APART = NAMES", f"APART = {_listed(plan.apart)}")
    text = text.replace("APART_CODE = NAMES", f"APART_CODE = {_listed(plan.apart_code)}")
    if plan.apart_code:
        text = text.replace("(make())", "(one_named(make()))")
    if settings["debug"]:
        text = text.replace(
            "store = next(",
            'os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"\n'
            "dist.set_debug_level_from_env()\n"
            "store = next(",
        )
    return text


def _listed(names: set[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in sorted(names)) + "]"


def renamed(text: str, names: dict[str, str]) -> str:
    """The text with names of the preamble's own replaced, where the notebook uses them."""
    parameters = {n.arg for n in ast.walk(ast.parse(text)) if isinstance(n, ast.arg)}
    names = {name: new for name, new in names.items() if name not in parameters}
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


def imports(parts: list[str], plan: Plan, plots: bool) -> list[str]:
    """The import statements that these parts need."""
    names = set()
    for part in parts:
        found = _names(_filled(kept(part, words(plan, plots)), plan))
        names |= found.reads | found.later
    statements = []
    for name, statement in IMPORTS.items():
        if name in names:
            other = plan.renamed.get(name)
            statement = statement.removesuffix(f" as {name}") if other else statement
            statements.append(f"{statement} as {other}" if other else statement)
    return statements


def stand_ins(plan: Plan, in_with: set[str]) -> list[str]:
    """The lab's own views, where ranklab is installed; else what stands in for them."""
    by_module: dict[str, list[str]] = {}
    for local, (module, _) in sorted(plan.lab.views.items()):
        by_module.setdefault(module, []).append(local)
    return [_stand_in(plan, module, locals_, in_with) for module, locals_ in by_module.items()]


def _stand_in(plan: Plan, module: str, locals_: list[str], in_with: set[str]) -> str:
    names = {local: plan.lab.views[local][1] for local in locals_}
    spelled = [name if name == local else f"{name} as {local}" for local, name in names.items()]
    lines = [
        "try:",
        f"    from {module} import {', '.join(sorted(spelled))}",
        "except ImportError:",
    ]
    if module == MEASURES:
        absent = [local for local in locals_ if local not in plan.stood_in]
        if absent:
            lines += [f"    {' = '.join(absent)} = None"]
        lines += [f"    {name} = {plan.helper('unsampled')}" for name in sorted(plan.stood_in)]
        words = f'print("What {module} measures is left out, for it is not installed here")'
        lines += (
            ["    if rank == 0:", f"        {words}"] if plan.lab.has_ranks else [f"    {words}"]
        )
        return "\n".join(lines)
    for local, name in names.items():
        if local in in_with:
            lines.append(f"    {local} = {plan.helper('untraced')}")
        else:
            lines.append(f'    {local} = {plan.helper("left_out")}("{name}")')
    return "\n".join(lines)
