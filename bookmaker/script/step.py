"""What a translation needs to know while it goes through the cells, one after the other."""

import ast
from dataclasses import dataclass, field

from bookmaker.script import layout
from bookmaker.script.cells import Cell
from bookmaker.script.imports import Imports
from bookmaker.script.lab import Lab
from bookmaker.script.layout import Piece


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
    """all_names: every name in the notebook. defined_everywhere: functions and classes of plain
    cells that all ranks define. draws: names that stand for something that draws. cells: those
    of the script. inherited: ``id`` of kernel statements that hold for the ranks, too.

    sendable: those of defined_everywhere that always mean the same on all ranks.
    plain: names that only ever hold what nothing can change.
    checks: number of a cell, or id of a statement -> shared names to compare before it.
    noted: ids of the pushes whose value such a check needs.
    first_used: part of the preamble -> number of the cell that first asks for it.
    measured: numbers of the cells that need `ranklab.gpu`, or a value that comes from it."""

    lab: Lab
    imports: Imports
    all_names: set[str]
    defined_everywhere: set[str] = field(default_factory=set)
    sendable: set[str] = field(default_factory=set)
    draws: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    first_used: dict[str, int] = field(default_factory=dict)
    measured: set[int] = field(default_factory=set)
    waiting: Waiting = field(default_factory=Waiting)
    two_streams: bool = False
    playing: str = "kernel"
    loops: int = 0
    nested: int = 0
    closed: bool = False
    copied: list[tuple[Cell, ast.stmt]] = field(default_factory=list)
    traced: set[str] = field(default_factory=set)
    plain: set[str] = field(default_factory=set)
    checks: dict[int, set[str]] = field(default_factory=dict)
    noted: set[int] = field(default_factory=set)
    cells: list[Cell] = field(default_factory=list)
    inherited: set[int] = field(default_factory=set)

    @property
    def known_everywhere(self) -> set[str]:
        """Names that every rank of the script has from its imports and definitions."""
        imports = self.imports
        return self.defined_everywhere | set(imports.names) | imports.inlined_names

    def use(self, helper: str) -> str:
        """The script's name for one of the preamble's functions, which is thereby needed."""
        self.used.add(helper)
        return self.lab.helper(helper)

    def before_kernel(self) -> list[Piece]:
        """Let rank 0 wait until the others are done with the last cell on the ranks."""
        wait = self._wait() if self.waiting.unseen else []
        self.waiting.kernel_ran = self.lab.has_ranks and not self.closed
        return wait + self._play("kernel", everywhere=False)

    def before_cell_on_ranks(self) -> list[Piece]:
        """Let all ranks begin a cell together."""
        ahead = self.waiting
        wait = self._wait() if ahead.kernel_ran or ahead.ranks_ran or ahead.unseen else []
        self.waiting = Waiting(ranks_ran=True, unseen=True)
        return wait + self._play("ranks", everywhere=True)

    def before_run(self, pushed: bool) -> list[Piece]:
        """The same for ranks.run(), which may bring rank 0's arguments along."""
        if pushed and not self.waiting.ranks_ran and not self.waiting.unseen:
            self.waiting = Waiting(ranks_ran=True, unseen=True)
            return self._play("ranks", everywhere=True)
        return self.before_cell_on_ranks()

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

    def _play(self, part: str, everywhere: bool) -> list[Piece]:
        """Give rank 0 the random numbers of its other part, if that could matter."""
        if not self.two_streams or self.playing == part or self.closed:
            return []
        self.playing = part
        return [layout.line(f'{self.use("play")}("{part}")', everywhere)]

    def _wait(self) -> list[Piece]:
        self.waiting = Waiting()
        if not self.lab.has_ranks or self.closed:
            return []
        return [layout.line(f"{self.use('everyone')}()", everywhere=True)]
