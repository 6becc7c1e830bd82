"""The first lines of a script: where it comes from, how to run it, what to install."""

from dataclasses import dataclass

from bookmaker.script.analyse.plan import Plan
from bookmaker.script.emit.import_section import packages

DEVICE = "The ranks use the GPUs that are there; RANKLAB_DEVICE=cpu (or cuda) decides otherwise."


@dataclass(frozen=True)
class Title:
    """name: the script's, without ``.py``. origin: the sentence that says where it is from."""

    name: str
    origin: str


def head(plan: Plan, title: Title) -> str:
    """The comment at the top of a script."""
    lines = [title.origin, ""] if title.origin else []
    lines += _how_to_run(plan, f"{title.name}.py")
    code = [code for _, code in plan.imports.inlined] + [cell.body for cell in plan.cells]
    needed = packages(plan.imports.statements, code)
    if plan.by_mpi or (plan.program and plan.mpi):
        lines += ["", f"pip install {' '.join(sorted({*needed, 'mpi4py', 'mpich'}))}"]
    elif plan.lab.has_ranks:
        lines += ["", f"pip install {' '.join(needed)}  (for mpiexec also: mpich mpi4py)"]
    elif needed:
        lines += ["", f"pip install {' '.join(needed)}"]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _how_to_run(plan: Plan, name: str) -> list[str]:
    if plan.program and plan.mpi:
        return [
            "Run it on 4 ranks, or on another number of them:",
            f"    mpiexec -n 4 python {name}",
        ]
    if not plan.lab.has_ranks:
        return [f"Run it: python {name}"]
    n = plan.lab.settings["n"]
    ways = [f"python {name}"]
    if not plan.by_mpi:
        ways += [
            f"torchrun --standalone --nproc-per-node {n} {name}",
            f"torchrun --nnodes 2 --nproc-per-node {n} --rdzv-backend c10d "
            f"--rdzv-endpoint HOST:29500 {name}",
        ]
    if plan.by_mpi or not plan.mpi:  # else each rank is to be an MPI world of its own
        ways.append(f"mpiexec -n {n} python {name}")
    return [
        f"Run it on {n} ranks, or on another number of them, in one of these ways:",
        *(f"    {way}" for way in ways),
        *([DEVICE] if plan.lab.settings["device"] is None else []),
    ]
