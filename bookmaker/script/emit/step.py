"""What a translation needs to know while it goes through the cells, one after the other."""

import ast
import json
from dataclasses import dataclass, field

from bookmaker.script.analyse.lab import Lab
from bookmaker.script.analyse.plan import Plan
from bookmaker.script.emit import layout
from bookmaker.script.emit.layout import Piece
from bookmaker.script.read.cells import Cell
from bookmaker.script.read.scopes import names_in


@dataclass
class Waiting:
    """Who may be ahead of whom.

    In a notebook a cell begins when all ranks, and the kernel, are done with the one before. In
    a script somebody must wait where that could be seen.
    """

    kernel_ran: bool = False  # the other ranks may be ahead of rank 0
    ranks_ran: bool = False  # ranks may be ahead of each other
    unseen: bool = False  # rank 0 may be ahead of the others


@dataclass
class Step:
    """used: parts of the preamble that are needed so far. first_used: such a part -> number of the
    cell that first asks for it. draws: names that stand for something that draws. playing: the
    part that rank 0 has ("either" after a loop or a condition). loops: those that all ranks are
    in. nested: how deep in loops and conditions. copied: statements that are in the script as they
    are. traced: views in the head of a ``with``. title: of a section that has begun, until the
    script says so."""

    plan: Plan
    draws: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    first_used: dict[str, int] = field(default_factory=dict)
    waiting: Waiting = field(default_factory=Waiting)
    playing: str = "kernel"
    loops: int = 0
    nested: int = 0
    closed: bool = False
    copied: list[tuple[Cell, ast.stmt]] = field(default_factory=list)
    traced: set[str] = field(default_factory=set)
    title: str = ""

    @property
    def lab(self) -> Lab:
        return self.plan.lab

    def use(self, helper: str) -> str:
        """The script's name for one of the preamble's functions, which is thereby needed."""
        self.used.add(helper)
        return self.plan.helper(helper)

    def before_kernel(self, *code: ast.AST) -> list[Piece]:
        """Let rank 0 wait until the others are done with the last cell on the ranks.

        code: what it is going to run.
        """
        wait = self._wait() if self.waiting.unseen else []
        self.waiting.kernel_ran = self.lab.has_ranks and not self.closed
        return wait + self._heading() + self.play("kernel", *code)

    def before_cell_on_ranks(self, *code: ast.AST) -> list[Piece]:
        """Let all ranks begin a cell together."""
        ahead = self.waiting
        wait = self._wait() if ahead.kernel_ran or ahead.ranks_ran or ahead.unseen else []
        self.waiting = Waiting(ranks_ran=True, unseen=True)
        return wait + self._heading() + self.play("ranks", *code)

    def before_run(self, pushed: bool, *code: ast.AST) -> list[Piece]:
        """The same for ranks.run(), which may bring rank 0's arguments along."""
        if pushed and not self.waiting.ranks_ran and not self.waiting.unseen:
            self.waiting = Waiting(ranks_ran=True, unseen=True)
            return self._heading() + self.play("ranks", *code)
        return self.before_cell_on_ranks(*code)

    def pulled(self) -> None:
        self.waiting.unseen = False

    def pushed(self) -> None:
        self.waiting.kernel_ran = False

    def reset(self) -> None:
        self.waiting = Waiting()

    def unknown(self) -> None:
        """A loop's body begins or ends: it may have run before, or not at all."""
        self.waiting = Waiting(True, True, True)
        self.playing = "either"

    def state(self) -> Waiting:
        return Waiting(**vars(self.waiting))

    def restore(self, state: Waiting) -> None:
        self.waiting = state
        self.playing = "either"

    def merge(self, other: Waiting) -> None:
        """After a condition: what either branch may have left."""
        self.playing = "either"
        mine = self.waiting
        self.waiting = Waiting(
            mine.kernel_ran or other.kernel_ran,
            mine.ranks_ran or other.ranks_ran,
            mine.unseen or other.unseen,
        )

    def close(self, cell: Cell) -> None:
        if self.nested:
            raise cell.refuse(
                "`ranks.close()` in a loop or a condition may run never or often; put it at the "
                "top level of a cell."
            )
        self.closed = True
        self.waiting = Waiting()

    def play(self, part: str, *code: ast.AST) -> list[Piece]:
        """Let rank 0 go on as the kernel, or as a rank, with what that part has of its own: a
        stream of random numbers, names that are apart, a default device; if it could matter."""
        plan = self.plan
        on_device = plan.two_devices and (part == "ranks" or plan.tensors.made_by(*code))
        if self.playing == part or not (plan.two_streams or self.apart_in(*code) or on_device):
            return []
        self.playing = part
        return [layout.line(f'{self.use("play")}("{part}")', everywhere=part == "ranks")]

    def apart_in(self, *code: ast.AST) -> bool:
        """Whether code may have to do with a name that is apart."""
        used = set().union(*(_all_names(node) for node in code), set())
        return bool(self.plan.apart) and (self.plan.apart_in_code or bool(used & self.plan.apart))

    def _heading(self) -> list[Piece]:
        """Say which section begins, so that what is printed reads like the chapter."""
        title, self.title = self.title, ""
        return [layout.line(f"print({_quoted(title)})", everywhere=False)] if title else []

    def _wait(self) -> list[Piece]:
        self.waiting = Waiting()
        if not self.lab.has_ranks or self.closed:
            return []
        return [layout.line(f"{self.use('everyone')}()", everywhere=True)]


def _quoted(title: str) -> str:
    return json.dumps(f"\n## {title}\n", ensure_ascii=False)


def _all_names(code: ast.AST) -> set[str]:
    """All names in it: the builtins among them, and those that imports and patterns bind."""
    parts = code.body if isinstance(code, ast.Module) else [code]
    named = {node.id for node in ast.walk(code) if isinstance(node, ast.Name)}
    return named | (names_in(*parts).all if parts else set())
