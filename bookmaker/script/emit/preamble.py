"""The preamble of a script: the parts of `template.py` that it needs, and no others."""

import io
import re
import tokenize

from bookmaker.script.analyse.lab import DEFAULTS, MEASURES
from bookmaker.script.analyse.plan import Plan
from bookmaker.script.parts import HELPERS, IMPORTS, NAMES, PARTS

# These do something when they run; all others are definitions, and stand where they are needed.
AT_THE_TOP = {"one_process", "never_mpi", "launch_by_mpi", "launch", "join", "hide_file"}
AT_THE_TOP |= {"play_streams", "play_apart", "play_both"}
# This one starts the ranks before a package is imported, for to import mpi4py is to start MPI.
BEFORE_PACKAGES = "start_by_mpi"
# Of some parts there are several: what a translation asks for is one of them.
_AS_KERNEL = {"from_rank_0": "from_rank_0_as_kernel", "in_step": "in_step_as_kernel"}
_GENERAL = {"may_fail_alone": "may_fail", "show_figure": "show"}
_GENERAL |= {"to_rank_0_as_ranks": "to_rank_0"}
_GENERAL |= {special: part for part, special in _AS_KERNEL.items()}
_GENERAL |= dict.fromkeys(("play_streams", "play_apart", "play_both"), "play")


def needed(used: set[str], plan: Plan, plots: bool) -> list[str]:
    """The parts that a script needs, in the order in which they stand in it."""
    lab = plan.lab
    parts = _launch(plan)
    parts |= used - {"play"} | ({"play_streams"} if plan.two_streams or plan.apart else set())
    parts |= {"look" if lab.used else "agg"} if plots else set()
    todo = list(parts)
    while todo:
        part = _variant(todo.pop(), plan, plots)
        names = NAMES[part]
        more = {_home(name) for name in (names.reads | names.later) & HELPERS - names.binds}
        if part == "from_rank_0_as_kernel" and plan.apart_code:
            more.add("packed")
        todo += more - parts
        parts |= more
    return [name for name in PARTS if name in {_variant(part, plan, plots) for part in parts}]


def _launch(plan: Plan) -> set[str]:
    """The parts that make ranks of the processes, or one of many."""
    if not plan.lab.has_ranks:
        return set() if plan.program else {"one_process"}
    if plan.by_mpi:
        return {BEFORE_PACKAGES, "launch_by_mpi", "join"}
    return {"launch", "join"} | ({"never_mpi"} if plan.mpi else set())


def _variant(part: str, plan: Plan, plots: bool) -> str:
    """Which of the parts that bind the same name a script needs."""
    if part == "may_fail" and not plan.lab.has_ranks:
        return "may_fail_alone"
    if part == "to_rank_0" and plan.apart_code:
        return "to_rank_0_as_ranks"
    if part in _AS_KERNEL and (plan.two_streams or plan.apart):
        return _AS_KERNEL[part]
    if part == "play_streams" and plan.apart:
        return "play_both" if plan.two_streams else "play_apart"
    return "show_figure" if part == "show" and plots else part


def _home(name: str) -> str:
    """The part that binds a name."""
    return next(part for part, names in NAMES.items() if name in names.binds | names.later_binds)


def text(part: str, plan: Plan) -> str:
    """A part as it stands in the script, with the notebook's settings."""
    return renamed(_filled(PARTS[part], plan), plan.renamed)


def general(part: str) -> str:
    """The name by which a translation asks for a part, of which there may be two."""
    return _GENERAL.get(part, part)


def _filled(text: str, plan: Plan) -> str:
    settings = {**DEFAULTS, **plan.lab.settings}
    text = text.replace('"N"', f'"{settings["n"]}"')
    text = text.replace("seconds=TIMEOUT", f"seconds={settings['timeout']:g}")
    wishes = [f"{key}={settings[key]!r}" for key in ("device", "backend") if settings[key]]
    text = text.replace("choose_device(DEVICE, BACKEND)", f"choose_device({', '.join(wishes)})")
    text = text.replace("APART = NAMES", f"APART = {_listed(plan.apart)}")
    text = text.replace("APART_CODE = NAMES", f"APART_CODE = {_listed(plan.apart_code)}")
    if plan.apart_code:
        text = text.replace("pickle.dumps(make())", "packed(make())")
    if settings["debug"]:
        text = text.replace(
            "device, backend = choose",
            'os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"\n'
            "dist.set_debug_level_from_env()\n"
            "device, backend = choose",
        )
    return text


def _listed(names: set[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in sorted(names)) + "]"


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


def imports(parts: list[str], plan: Plan) -> list[str]:
    """The import statements that these parts need."""
    names = set()
    for part in parts:
        names |= NAMES[part].reads | NAMES[part].later
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
        lines += [f"    {' = '.join(locals_)} = None"]
        lines += [f'    print("What {module} measures is left out, for it is not installed here")']
        return "\n".join(lines)
    for local, name in names.items():
        if local in in_with:
            lines.append(f"    {local} = {plan.helper('untraced')}")
        else:
            lines.append(f'    {local} = {plan.helper("left_out")}("{name}")')
    return "\n".join(lines)
