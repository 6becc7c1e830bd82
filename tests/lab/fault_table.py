"""What goes wrong between ranks: one table, which the tests provoke and book/stuck.md shows.

Each `Fault` is one row. Most are a cell for three ranks: with ranklab `Ranks(3)` makes the process
group (test_faults.py), with stock ipyparallel the reader does (test_faults_stock.py). Where a cell
alone does not provoke one, each of the two files has a test of its name. fault_page.py writes the
table into the page.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One row of the table.

    name: what tests call it. what: what the reader did. cell: the code below `%%px`, or "".
    ends: how it ends with ranklab in the default mode, a key of ENDS.
    excerpt: what ranklab says, literally. also: what it says besides (`tests` look for both).
    stock: what stock ipyparallel shows, literally; HANGS if the cell does not end, SILENT if it
    ends without an error. in_words: the same for the page, where that takes more.
    """

    name: str
    what: str
    cell: str
    ends: str
    excerpt: str
    also: tuple = ()
    stock: str = "hangs"
    in_words: str = ""


HANGS, SILENT = "hangs", "no error"
ENDS = {
    "timeout": "nobody has a way on: a report below the cell, an error after the timeout, or at "
    "once with an interrupt",
    "failure": "a rank failed: the others are freed; reset",
    "death": "a process died: the others are freed; restart",
    "finish": "the cell ended, and was wrong",
    "interrupt": "a rank is at work for ever: only an interrupt ends the cell; reset",
    "deaf": "a rank hears nothing: only an interrupt ends the cell; restart",
    "own": "a test of its own",
}
BIG = "2**20"  # numbers: no buffer on the way takes them all

BETWEEN_TWO = [
    Fault(
        "two_receive",
        "two ranks receive from each other",
        "box = torch.zeros(2)\nif rank < 2:\n    dist.recv(box, src=1 - rank)",
        "timeout",
        "Ranks 0 and 1 wait in a circle: rank 0 waits to receive float32[2] from rank 1 (line 4), "
        "rank 1 waits to receive float32[2] from rank 0 (line 4): nobody sends.",
        ("line 4: dist.recv(box, src=1 - rank)", "rank 2 has finished the cell"),
    ),
    Fault(
        "two_send",
        "two ranks send to each other",
        f"if rank < 2:\n    dist.send(torch.ones({BIG}), dst=1 - rank)",
        "timeout",
        "Ranks 0 and 1 wait in a circle: rank 0 waits to send float32[1048576] to rank 1 (line 3), "
        "rank 1 waits to send float32[1048576] to rank 0 (line 3): nobody receives.",
    ),
    Fault(
        "circle_receives",
        "each rank receives from the next, in a circle",
        "box = torch.zeros(2)\ndist.recv(box, src=(rank + 1) % world_size)",
        "timeout",
        "Ranks 0, 1 and 2 wait in a circle: rank 0 waits to receive float32[2] from rank 1 "
        "(line 3), rank 1 waits to receive float32[2] from rank 2 (line 3), rank 2 waits to "
        "receive float32[2] from rank 0 (line 3): nobody sends.",
    ),
    Fault(
        "circle_sends",
        "each rank sends to the next and then receives, in a circle",
        "right = (rank + 1) % world_size\nleft = (rank - 1) % world_size\n"
        f"dist.send(torch.ones({BIG}), dst=right)\ndist.recv(torch.zeros({BIG}), src=left)",
        "timeout",
        "Ranks 0, 1 and 2 wait in a circle: rank 0 waits to send float32[1048576] to rank 1 "
        "(line 4), rank 1 waits to send float32[1048576] to rank 2 (line 4), rank 2 waits to send "
        "float32[1048576] to rank 0 (line 4): nobody receives.",
    ),
    Fault(
        "nobody_sends",
        "a rank receives what nobody sends",
        "if rank == 0:\n    dist.recv(torch.zeros(1), src=2)",
        "timeout",
        "Rank 0 waits to receive float32[1] from rank 2, but rank 2 has finished the cell",
        ("line 3: dist.recv(torch.zeros(1), src=2)",),
    ),
    Fault(
        "nobody_receives",
        "a rank sends what nobody receives",
        f"if rank == 0:\n    dist.send(torch.ones({BIG}), dst=2)",
        "timeout",
        "Rank 0 waits to send float32[1048576] to rank 2, but rank 2 has finished the cell",
    ),
    Fault(
        "no_such_rank",
        "the last rank sends to rank + 1, the first one receives from rank - 1",
        "if rank == 0:\n    dist.recv(torch.zeros(1), src=rank - 1)\n"
        "if rank == 2:\n    dist.send(torch.ones(1), dst=rank + 1)",
        "failure",
        "there is no rank 3: the ranks of this group are 0 to 2",
        ("there is no rank -1", "line 3: dist.recv", "line 5: dist.send"),
        in_words="hangs, or a process crashes",
    ),
    Fault(
        "other_tag",
        "sender and receiver name different tags",
        f"if rank == 0:\n    dist.send(torch.ones({BIG}), dst=1, tag=1)\n"
        f"if rank == 1:\n    dist.recv(torch.zeros({BIG}), src=0, tag=2)",
        "timeout",
        "Rank 0 sends to rank 1 with tag 1 (line 3), and rank 1 receives from rank 0 with tag 2 "
        "(line 5): that is another message.",
    ),
    Fault(
        "handle_of_receive",
        "a rank waits for its `irecv`, which nobody answers",
        "if rank == 0:\n    handle = dist.irecv(torch.zeros(4), src=1)\n    handle.wait()",
        "timeout",
        "Rank 0 waits for its irecv of float32[4] from rank 1, but rank 1 has finished the cell",
        ("line 4: handle.wait()",),
    ),
    Fault(
        "handle_of_send",
        "a rank waits for its `isend`, which nobody receives",
        f"if rank == 0:\n    handle = dist.isend(torch.ones({BIG}), dst=1)\n    handle.wait()",
        "timeout",
        "Rank 0 waits for its isend of float32[1048576] to rank 1, but rank 1 has finished the "
        "cell",
        ("line 4: handle.wait()",),
    ),
    Fault(
        "from_anyone",
        "a rank receives from anyone, and nobody sends",
        "if rank == 0:\n    dist.recv(torch.zeros(1))",
        "timeout",
        "Rank 0 waits to receive float32[1] from anyone, but ranks 1 and 2 have finished the cell",
    ),
    Fault(
        "small_box",
        "a message is larger than its box",
        "if rank == 0:\n    dist.send(torch.ones(8), dst=1)\n"
        "if rank == 1:\n    dist.recv(torch.zeros(4), src=0)",
        "death",
        "Gloo got a message from rank 0 of 32 bytes, and 16 fit.",
        ("rank 1 died", "line 5: dist.recv(torch.zeros(4), src=0)"),
        # The engine's log is read as soon as the process is gone: the reason is in it, or not yet.
        stock="AlreadyDisplayedError",
        in_words="a process is gone; the reason may stand in 30 lines of an engine's log, or not",
    ),
]

COLLECTIVES = [
    Fault(
        "one_missing",
        "one rank leaves out an `all_reduce`",
        "if rank != 1:\n    dist.all_reduce(torch.ones(4))",
        "timeout",
        "Ranks 0 and 2 wait in all_reduce of float32[4], but rank 1 has finished the cell",
        ("line 3: dist.all_reduce(torch.ones(4))",),
    ),
    Fault(
        "barrier_left_out",
        "one rank leaves out a barrier",
        "if rank != 2:\n    dist.barrier()",
        "timeout",
        "Ranks 0 and 1 wait in barrier, but rank 2 has finished the cell",
    ),
    Fault(
        "one_step_ahead",
        "one rank makes a step more than the others",
        "for step in range(3 + (rank == 0)):\n    dist.all_reduce(torch.ones(1))",
        "timeout",
        "Rank 0 waits in all_reduce of float32[1], but ranks 1 and 2 have finished the cell",
    ),
    Fault(
        "subgroup",
        "two ranks of a subgroup wait for each other",
        "pair = dist.new_group([0, 1])\nif rank < 2:\n"
        "    dist.recv(torch.zeros(1), src=1 - rank, group=pair)",
        "timeout",
        "Ranks 0 and 1 wait in a circle: rank 0 waits to receive float32[1] from rank 1 (line 4), "
        "rank 1 waits to receive float32[1] from rank 0 (line 4): nobody sends.",
    ),
    Fault(
        "new_group_by_one",
        "only one rank calls `new_group`",
        "if rank == 0:\n    pair = dist.new_group([0, 1])",
        "timeout",
        "Rank 0 waits in new_group, but ranks 1 and 2 have finished the cell",
    ),
    Fault(
        "swapped",
        "one rank makes two collectives in the other order",
        "x, y = torch.ones(4), torch.ones(4)\nif rank == 0:\n    dist.all_reduce(x)\n"
        "    dist.broadcast(y, src=0)\nelse:\n    dist.broadcast(y, src=0)\n"
        "    dist.all_reduce(x)",
        "timeout",
        "rank 0 calls all_reduce of float32[4] (SUM), and rank 1 calls broadcast of float32[4] "
        "(root 0).",
        ("line 4: dist.all_reduce(x)", "line 7: dist.broadcast(y, src=0)"),
    ),
    Fault(
        "other_collective",
        "one rank calls `all_reduce`, the others `all_gather`",
        "x = torch.ones(4)\nif rank == 1:\n    dist.all_reduce(x)\nelse:\n"
        "    dist.all_gather([torch.zeros(4) for _ in range(world_size)], x)",
        "timeout",
        "rank 0 calls all_gather of float32[4], and rank 1 calls all_reduce of float32[4] (SUM).",
    ),
    Fault(
        "other_root",
        "`broadcast` from different ranks",
        "x = torch.full((4,), float(rank))\ndist.broadcast(x, src=1 if rank == 2 else 0)",
        "timeout",
        "rank 0 calls broadcast of float32[4] (root 0), and rank 2 calls broadcast of float32[4] "
        "(root 1).",
    ),
    Fault(
        "other_size",
        "`all_reduce` of different sizes",
        "x = torch.ones(1000 + 1000 * rank)\ndist.all_reduce(x)",
        "death",
        "rank 0 calls all_reduce of float32[1000] (SUM), and rank 1 calls all_reduce of "
        "float32[2000] (SUM).",
        ("The collectives do not match", "line 3: dist.all_reduce(x)"),
        stock="by peer",
        in_words="a process is gone, *Connection reset by peer* on the others; the reason may "
        "stand in an engine's log, or not",
    ),
    Fault(
        "other_bytes",
        "`all_reduce` of `float32` and `float64`",
        "x = torch.ones(1000, dtype=torch.float64 if rank == 1 else torch.float32)\n"
        "dist.all_reduce(x)",
        "death",
        "rank 0 calls all_reduce of float32[1000] (SUM), and rank 1 calls all_reduce of "
        "float64[1000] (SUM).",
        ("The collectives do not match", "line 3: dist.all_reduce(x)"),
        stock="by peer",
        in_words="the same",
    ),
    Fault(
        "other_dtype",
        "`all_reduce` of `float32` and `int32`",
        "x = torch.ones(1000, dtype=torch.int32 if rank == 1 else torch.float32)\n"
        "dist.all_reduce(x)",
        "finish",
        "rank 0 calls all_reduce of float32[1000] (SUM), and rank 1 calls all_reduce of "
        "int32[1000] (SUM).",
        ("the results are wrong",),
        stock=SILENT,
        in_words="no error, wrong numbers",
    ),
    Fault(
        "other_op",
        "`all_reduce` with MAX on one rank, SUM on the others",
        "op = dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM\n"
        "x = torch.full((4,), float(rank))\ndist.all_reduce(x, op)",
        "finish",
        "rank 0 calls all_reduce of float32[4] (SUM), and rank 1 calls all_reduce of float32[4] "
        "(MAX).",
        ("the results are wrong",),
        stock=SILENT,
        in_words="no error, wrong numbers",
    ),
]

ALL_REDUCE = "dist.all_reduce(torch.ones(1))"
DEATHS = [
    Fault(
        "exception",
        "an exception on one rank, while the others wait for it",
        f"if rank == 1:\n    1 / 0\n{ALL_REDUCE}",
        "failure",
        "rank 1 failed:\n    line 3: 1 / 0\nZeroDivisionError: division by zero",
        ("Ranks 0 and 2 wait in all_reduce of float32[1], but rank 1 has failed",),
    ),
    Fault(
        "sys_exit",
        "`sys.exit` on one rank",
        f"import sys\nif rank == 1:\n    sys.exit(3)\n{ALL_REDUCE}",
        "failure",
        "rank 1 failed:\n    line 4: sys.exit(3)\nSystemExit: 3",
    ),
    Fault(
        "memory_error",
        "a rank asks for more memory than there is",
        f"if rank == 1:\n    x = torch.empty(2**60)\n{ALL_REDUCE}",
        "failure",
        "you tried to allocate 4611686018427387904 bytes",
        ("rank 1 failed:\n    line 3: x = torch.empty(2**60)",),
    ),
    Fault(
        "os_exit",
        "`os._exit` on one rank",
        f"import os\nif rank == 1:\n    os._exit(3)\n{ALL_REDUCE}",
        "death",
        "rank 1 died: the process is gone (exit code 3).",
        stock="by peer",  # closed; or reset, where it died with words of another unread
        in_words="*Connection closed by peer* (or *reset*) on the others, below an engine's log of "
        "30 lines",
    ),
    Fault(
        "sigkill",
        "a rank's process is killed",
        f"import os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n{ALL_REDUCE}",
        "death",
        "rank 1 died: the process is gone (killed by SIGKILL).",
        stock="by peer",
        in_words="the same",
    ),
    Fault(
        "segfault",
        "a rank reads memory that is not its own",
        f"import ctypes\nif rank == 1:\n    ctypes.string_at(0)\n{ALL_REDUCE}",
        "death",
        "rank 1 died: the process is gone (killed by SIGSEGV).",
        ("line 4: ctypes.string_at(0)",),
        stock="by peer",
        in_words="the same",
    ),
    Fault(
        "out_of_memory",
        "the machine runs out of memory, and the system kills a rank",
        "",
        "own",
        "rank 1 died: the process is gone (killed by SIGKILL).",
        stock="by peer",
        in_words="the same",
    ),
]

AT_WORK = [
    Fault(
        "endless_loop",
        "a rank is in an endless loop",
        f"if rank == 1:\n    while True:\n        pass\n{ALL_REDUCE}",
        "interrupt",
        "rank 1 runs",
        ("ranks 0 and 2 wait in all_reduce of float32[1]",),
    ),
    Fault(
        "sleeps",
        "a rank sleeps",
        f"import time\nif rank == 1:\n    time.sleep(1000)\n{ALL_REDUCE}",
        "interrupt",
        "line 4: time.sleep(1000)",
        ("rank 1 runs",),
    ),
    Fault(
        "long_c_call",
        "a rank is in a long call of C, which keeps Python's lock",
        f"if rank == 1:\n    sum(range(10**11))\n{ALL_REDUCE}",
        "deaf",
        "rank 1 does not answer\n    line 3: sum(range(10**11))",
    ),
    Fault(
        "stopped",
        "a rank's process is stopped (SIGSTOP)",
        f"import os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGSTOP)\n{ALL_REDUCE}",
        "deaf",
        "its process is stopped (SIGSTOP); it goes on with kill -CONT",
    ),
]

READERS = [
    Fault(
        "interrupt",
        "the reader interrupts a stuck cell",
        "",
        "own",
        "Interrupted.",
        stock="Received Keyboard Interrupt. Sending signal SIGINT to engines...",
        in_words="the cell ends as if nothing were wrong, the ranks stay stuck, the next one hangs",
    ),
    Fault(
        "cell_after_failure",
        "the reader runs the next cell without a reset",
        "",
        "own",
        "call ranks.reset(), then run this cell again",
        in_words="hangs behind the cell before",
    ),
    Fault(
        "closed",
        "a `%%px` after the ranks were closed",
        "",
        "own",
        "These ranks are closed. Call ranks.restart() to start others.",
    ),
    Fault(
        "kernel_killed",
        "the notebook's kernel dies while ranks are stuck",
        "",
        "own",
        "",
        stock="",
        in_words="every process lives on: the controller's, and two for each rank",
    ),
]

GROUPS = {
    "Messages": BETWEEN_TWO,
    "Collectives and groups": COLLECTIVES,
    "A rank fails or dies": DEATHS,
    "A rank is at work for ever": AT_WORK,
    "What a reader does": READERS,
}
FAULTS = [fault for group in GROUPS.values() for fault in group]
CELLS = [fault for fault in FAULTS if fault.cell]
BY_NAME = {fault.name: fault for fault in FAULTS}
