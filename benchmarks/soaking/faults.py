"""The faults: what can go wrong on ranks, to be provoked for real, at random moments.

A kind of fault is a function of (random numbers, world size, the group's timeout), which returns
one `Fault`. A stuck cell (STUCK) ends in one of several ways (`ways_out`), so that the two sides
multiply.
"""

import re
import signal
from dataclasses import dataclass, field

from .cells import BUSY, DIES, FAILS, MISMATCHES, STUCK

WITHIN = 25.0  # seconds after which a cell that has not ended counts as a hang


@dataclass
class Fault:
    """One cell that goes wrong, and what is done to it from outside meanwhile.

    cells: the last one is the one that is measured. during: [(seconds, method of Notebook,
    arguments), ...]. expect: a pattern that what is shown or raised has to hold; None: no error.
    then: what to call where nothing says so. way: what ended it, for the table.
    """

    cells: list
    during: list = field(default_factory=list)
    expect: str | None = ""
    then: str = ""
    way: str = "by itself"
    within: float = WITHIN


ALL = {}  # name: function


def kind(function):
    """Let `function` be one of the faults."""
    ALL[function.__name__] = function
    return function


def _cell(source, rng, size, options=""):
    """Return the source as a `%%px` cell, with its rank and its size by chance."""
    source = re.sub(r"\bBIG\b", str(rng.choice([8, 1000, 4_000_000])), source)
    for _ in range(rng.randrange(3)):
        source = f"y = {rng.randrange(100)}\n{source}"
    return f"%%px {options}".strip() + "\n" + re.sub(r"\bK\b", str(rng.randrange(size)), source)


def _at_random(rng, longest):
    return round(rng.choice([rng.uniform(0.05, 0.6), rng.uniform(0.5, longest)]), 2)


def _ways_out(rng, cell, size, timeout):
    """Let a cell in which ranks wait end, in one way or another."""
    at = _at_random(rng, timeout * 0.8)
    rank = rng.randrange(size)
    press = (at, "interrupt")
    live = cell.replace("%%px", "%%px --noblock", 1)
    ways = {
        "timeout": Fault([cell]),
        "interrupt": Fault([cell], [press]),
        "two interrupts": Fault([cell], [press, (at + rng.uniform(0, 0.5), "interrupt")]),
        "death": Fault([cell], [(at, "signal_rank", rank, signal.SIGKILL)], "died"),
        "all die": Fault(
            [cell], [(at, "signal_rank", r, signal.SIGKILL) for r in range(size)], "died"
        ),
        "stopped, killed": Fault(
            [cell],
            [
                (at, "signal_rank", rank, signal.SIGSTOP),
                (at + 0.5, "signal_rank", rank, signal.SIGKILL),
            ],
            "died",
        ),
        "stopped, continued": Fault(
            [cell],
            [
                (at, "signal_rank", rank, signal.SIGSTOP),
                (at + 1.5, "signal_rank", rank, signal.SIGCONT),
            ],
        ),
        "stopped, interrupted": Fault(
            [cell], [(at, "signal_rank", rank, signal.SIGSTOP), (at + 1, "interrupt")]
        ),
        "reset": Fault(
            [live, f"import time\ntime.sleep({at})\nprint(ranks.where())"], then="reset"
        ),
        "restart": Fault([live, "print(ranks.where())"], then="restart"),
        "pile": Fault(
            [live, live, "%%px --noblock\nz = rank", "w = ranks.where()\nprint(w)"], then="reset"
        ),
        "cell on top": Fault([live, "%%px\nz = rank"], [(at, "interrupt")]),
        "interrupt in reset": Fault(
            [live, "ranks.reset()"], [(rng.uniform(0, 0.3), "interrupt")], then="reset"
        ),
    }
    way = rng.choice(list(ways))
    ways[way].way = way
    return ways[way]


def _stuck(source):
    return lambda rng, size, timeout: _ways_out(rng, _cell(source, rng, size), size, timeout)


def _busy(source):
    def fault(rng, size, timeout):
        during = [(_at_random(rng, timeout), "interrupt")]
        if rng.random() < 0.3:
            during.append((during[0][0] + rng.uniform(0, 0.5), "interrupt"))
        return Fault([_cell(source, rng, size)], during, way="interrupt")

    return fault


def _while_others_wait(source, expect, way):
    def fault(rng, size, timeout):
        wait = rng.choice(
            [
                "dist.barrier()",
                "dist.all_reduce(torch.ones(BIG))",
                "dist.recv(torch.ones(BIG), src=K)",
                "dist.broadcast(torch.ones(BIG), src=K)",
                "import time; time.sleep(1.5)",
                "pass",
            ]
        )
        nap = rng.choice(["", f"    import time; time.sleep({_at_random(rng, 1.5)})\n"])
        cell = f"if rank == K:\n{nap}    {source}\nelse:\n    {wait}"
        return Fault([_cell(cell, rng, size)], expect=expect, way=way)

    return fault


ALL.update({name: _stuck(source) for name, source in STUCK.items()})
ALL.update({name: _busy(source) for name, source in BUSY.items()})
ALL.update({n: _while_others_wait(source, "failed|got", "error") for n, source in FAILS.items()})
ALL.update({n: _while_others_wait(source, "died", "death") for n, source in DIES.items()})
ALL.update(
    {
        name: lambda rng, size, timeout, source=source: Fault(
            [_cell(source, rng, size)], then="reset", way="mismatch"
        )
        for name, source in MISMATCHES.items()
    }
)


@kind
def by_run(rng, size, timeout):
    """A function that waits, called by ranks.run."""
    cell = (
        "def waits(n):\n    import torch, torch.distributed as dist\n"
        "    return dist.recv(torch.zeros(n), src=(dist.get_rank() + 1) % dist.get_world_size())\n"
        "ranks.run(waits, 3)"
    )
    at = rng.choice([None, _at_random(rng, timeout)])
    return Fault([cell], [(at, "interrupt")] if at else [], way="interrupt" if at else "timeout")


@kind
def targets(rng, size, timeout):
    """A collective on some of the ranks; the others have nothing to do."""
    some = sorted(rng.sample(range(size), rng.randrange(1, size)))
    cell = _cell("dist.barrier()", rng, size, f"--targets {','.join(map(str, some))}")
    return _ways_out(rng, cell, size, timeout)


@kind
def between_cells(rng, size, timeout):
    """Ranks are killed while they have nothing to do."""
    during = [
        (0.1, "signal_rank", r, signal.SIGKILL)
        for r in rng.sample(range(size), rng.randrange(1, size + 1))
    ]
    idle = "import time\ntime.sleep(0.6)\n"
    then = rng.choice(["%px rank", "ranks['rank']", "ranks.run(len, 'a')", "ranks.reset()"])
    return Fault([f"{idle}{then}"], during, "died", way="death between cells")


@kind
def controller(rng, size, timeout):
    """The controller is killed, while ranks work or wait, or between two cells."""
    idle = "import time\ntime.sleep(0.6)\n%px rank"
    work = _cell(rng.choice([STUCK["recv_circle"], BUSY["sleep"]]), rng, size)
    during = [(rng.uniform(0.1, 0.5), "kill", "ipyparallel.controller")]
    if rng.random() < 0.5:  # parts of it live on for a while, and may even answer
        return Fault([idle], during, then="restart", way="controller")
    return Fault([work], during, "restart", way="controller")


@kind
def fork_server(rng, size, timeout):
    """The parent of all ranks is killed."""
    work = _cell(rng.choice([STUCK["recv_circle"], BUSY["sleep"]]), rng, size)
    return Fault([work], [(_at_random(rng, 1.5), "kill_fork_server")], "died", way="death")


@kind
def guardian(rng, size, timeout):
    """Who looks after the end is killed; the end has to come all the same."""
    idle = "import time\ntime.sleep(0.5)"
    return Fault([idle], [(0.1, "kill", "guardian.py")], None, "restart", way="guardian")


@kind
def importer(rng, size, timeout):
    """What makes the next start faster is killed; that has to come all the same."""
    idle = "import time\ntime.sleep(0.5)"
    return Fault(
        [idle], [(0.1, "kill", "ranklab.start.importer_main")], None, "restart", way="importer"
    )


@kind
def interrupt_at_the_end(rng, size, timeout):
    """An interrupt just when the cell is done."""
    at = rng.uniform(0.3, 0.6)
    cell = f"%%px\nimport time\ntime.sleep({at})\ndist.barrier()"
    return Fault(
        [cell], [(at + rng.uniform(-0.02, 0.06), "interrupt")], then="reset", way="interrupt"
    )


@kind
def interrupt_a_start(rng, size, timeout):
    """An interrupt while ranks start or start again."""
    call = rng.choice(["ranks.restart()", f"ranks = Ranks({size}, timeout={timeout})"])
    during = [(rng.uniform(0, 2.0), "interrupt")]
    return Fault([call], during, then="restart", way="interrupt in a start")


@kind
def interrupt_where(rng, size, timeout):
    """An interrupt while ranks are asked where they are."""
    live = _cell(STUCK["recv_circle"], rng, size, "--noblock")
    ask = "for _ in range(200):\n    w = ranks.where()"
    return Fault([live, ask], [(_at_random(rng, 0.6), "interrupt")], then="reset", way="interrupt")


@kind
def where_idle(rng, size, timeout):
    """Asked where they are, ranks that have nothing to do say so."""
    return Fault(["print(ranks.where())"], expect=None, way="where")


@kind
def where_closed(rng, size, timeout):
    """Asked where they are, ranks that are closed say what to call."""
    return Fault(["ranks.close()\nranks.where()"], expect="closed.*restart", way="where")


@kind
def large_messages(rng, size, timeout):
    """A rank dies amid messages of 64 MB."""
    cell = (
        "big = torch.ones(16_000_000)\nfor _ in range(100):\n    if rank % 2:\n"
        "        dist.recv(big, src=rank - 1)\n    elif rank + 1 < world_size:\n"
        "        dist.send(big, dst=rank + 1)\n    dist.all_reduce(big)"
    )
    rank = rng.randrange(size)
    during = [(_at_random(rng, 1.5), "signal_rank", rank, signal.SIGKILL)]
    return Fault([f"%%px\n{cell}"], during, "died", way="death")


@kind
def terminated(rng, size, timeout):
    """A rank is asked to end (SIGTERM), while it works or waits."""
    work = _cell(rng.choice([STUCK["recv_circle"], BUSY["sleep"], BUSY["steps"]]), rng, size)
    at = _at_random(rng, 1.5)
    during = [(at, "signal_rank", rng.randrange(size), signal.SIGTERM), (at + 1.5, "interrupt")]
    return Fault([work], during, then="restart", way="SIGTERM, interrupt")


@kind
def quits(rng, size, timeout):
    """A rank leaves in order, once its cell is done."""
    cell = _cell("if rank == K:\n    quit()\nimport time\ntime.sleep(0.2)", rng, size)
    return Fault([cell], then="restart", way="left behind")


@kind
def thread_left(rng, size, timeout):
    """The cell ends, and a thread of it goes on waiting."""
    cell = (
        "import threading\n"
        "t = threading.Thread(target=lambda: dist.recv(torch.zeros(1), rank ^ 1))\n"
        "t.start()"
    )
    return Fault([f"%%px\n{cell}"], expect=None, then="reset", way="left behind")


@kind
def thread_fails(rng, size, timeout):
    """An exception in a thread ends nothing."""
    cell = "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()"
    return Fault([f"%%px\n{cell}"], expect=None, way="left behind")


@kind
def handles_dropped(rng, size, timeout):
    """Messages are posted, and nobody waits for them."""
    cell = "\n".join(
        [
            "for _ in range(20):",
            "    dist.irecv(torch.zeros(3), src=(rank + 1) % world_size)",
            "    dist.isend(torch.zeros(3), dst=(rank + 1) % world_size, tag=5)",
            "    if rank:",
            "        dist.all_reduce(torch.ones(3), async_op=True)",
        ]
    )
    return Fault([f"%%px\n{cell}"], then="reset", way="left behind")


@kind
def much_output(rng, size, timeout):
    """Ranks print a lot, and then fail."""
    cell = "for i in range(20_000):\n    print(rank, i, 'x' * 50)\nif rank == K:\n    1 / 0"
    return Fault([_cell(cell, rng, size)], expect="ZeroDivisionError", way="error", within=60)


@kind
def syntax(rng, size, timeout):
    """A cell that is no Python."""
    return Fault(["%%px\nx = = 1"], expect="SyntaxError", way="error")


@kind
def another_size(rng, size, timeout):
    """Other ranks take the place of these, get stuck, and are interrupted."""
    n, seconds = rng.choice([(1, 3), (2, 0.5), (8, 3), (3, 300), (5, 1)])
    at = round(rng.uniform(0.6, 1.5), 2)
    cell = "%%px\nimport time\nif rank == 0:\n    time.sleep(100)\ndist.barrier()"
    return Fault(
        [f"ranks = Ranks({n}, timeout={seconds})", cell],
        [(at, "interrupt")],
        then=f"ranks = Ranks({size}, timeout={timeout})",
        way="interrupt",
    )
