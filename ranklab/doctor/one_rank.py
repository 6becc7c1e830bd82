"""What is known of one rank, as plain data: `Report`, and of a dead one its `Death`."""

from dataclasses import dataclass, field

from ranklab.start.exits import Exit

UNDER_WAY = ("running", "failing")
ENDED = ("died", "failed", "finished", "idle")  # the gravest first


@dataclass(frozen=True)
class Death:
    """What ended a rank. exit: how its process ended, None where nobody here was told.

    lines: the last lines of Python at a fault, "f (file.py, line 3)", innermost first.
    """

    exit: Exit | None = None
    lines: tuple = ()


@dataclass(frozen=True)
class Report:
    """What is known of one rank. `state`: "silent", or one of UNDER_WAY or of ENDED.

    place: "    line 3: y = f(x)", one line for each function of the reader that it is in.
    call: the communication that it waits in, as calls.current gives it, or None.
    seconds: for how long it has been there. recent: its last collectives (witness.py).
    silence: why it does not answer, a key of sentences.SILENCE, or an error of the lab's own.
    pid: of the process of one that is stopped. line: "line 3", where one that waits is in its cell.
    """

    rank: int
    state: str
    place: str = ""
    call: dict | None = None
    seconds: float = 0.0
    recent: tuple = ()
    numbers: dict = field(default_factory=dict)  # {group: of its last collective there}
    silence: str = ""
    pid: int | None = None
    line: str = ""
    death: Death | None = None
