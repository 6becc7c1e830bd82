"""What the lab borrows of IPython and ipykernel, tried on what is installed."""

import os
import signal
import time
from pathlib import Path

from borrowed import COLOR, Borrowed, answer_to, cell, failure_of, ranks
from traced import on_ranks

from ranklab.doctor import rounds
from ranklab.upstream import ipyparallel, ipython

__all__ = ["ranks"]
HERE = Borrowed(ipython)


@HERE.each
def test_what_is_borrowed_is_there(borrowed, ranks):
    HERE.is_there(borrowed, ranks)


def frames_told(ranks, code):
    """[(header, the line below it)] of the traceback of a cell that fails."""
    lines = COLOR.sub("", failure_of(ranks, code).traceback).splitlines()
    headers = [(ipython.header(line), i) for i, line in enumerate(lines)]
    return [(one, ipython.source_below(lines[i + 1 : i + 12])) for one, i in headers if one]


@HERE.tries(ipython.header, ipython.source_below)
def _(ranks):
    (ran, line), (called, line_called) = frames_told(ranks, "def f(x):\n    return 1 / x\n\nf(0)")
    assert (ran.line, ran.function, ran.file, line) == (4, "", "", "f(0)")
    assert (called.line, called.function, line_called) == (2, "f", "return 1 / x")
    assert ran.cell == called.cell != ""
    *_, (in_file, _) = frames_told(ranks, "import json\njson.loads('{')")
    assert (in_file.cell, Path(in_file.file).name) == ("", "decoder.py")
    (_, line), *_ = frames_told(ranks, "x = = 1")
    assert line == "x = = 1"


@HERE.tries(ipython.is_file_of_cell)
def _(ranks):
    cell(ranks, "import sys; file = sys._getframe().f_code.co_filename").wait(5)
    assert ipython.is_file_of_cell(ranks.client[0]["file"])
    assert not ipython.is_file_of_cell(__file__)


@on_ranks
def frames_that_run():
    import sys

    from ranklab.upstream import ipython

    frame, found = sys._getframe(), 0
    while frame:
        found += ipython.runs_code(frame)
        frame = frame.f_back
    return found


FRAMES = """
import sys
from ranklab.upstream import ipython
def frames_for_which(function):
    frame, found = sys._getframe(), 0
    while frame:
        found += function(frame)
        frame = frame.f_back
    return found
"""


@HERE.tries(ipython.runs_code)
def _(ranks):
    assert ranks.run(frames_that_run)[0] == 1
    cell(ranks, FRAMES + "n = frames_for_which(ipython.runs_code)").wait(5)
    assert ranks.client[0]["n"] >= 1


@HERE.tries(ipython.tells_error)
def _(ranks):
    code = FRAMES + (
        "class Slow(Exception):\n"
        "    def __str__(self):\n"
        "        global n\n"
        "        n += frames_for_which(ipython.tells_error)\n"
        "        return ''\n"
        "n = 0\n"
        "raise Slow"
    )
    failure_of(ranks, code)
    assert ranks.client[0]["n"] >= 1


@HERE.tries(ipython.answer_requests, ipython.in_control_thread)
def _(ranks):
    runs = cell(ranks, "import time; time.sleep(5)")
    time.sleep(1.5)
    report = rounds.where(ranks).reports[0]
    assert (report.state, runs.ready()) == ("running", False)
    assert report.seconds > 0.5  # it was looked at before
    assert "time.sleep" in report.place
    os.kill(ranks.pids[0], signal.SIGINT)
    assert runs.wait(30)


@HERE.tries(ipython.wrap_cells)
def _(ranks):
    ranks.reset()  # an interrupt of the check before may have come late, or broken the group
    result = ranks.client[:].execute("dist.all_reduce(torch.ones(3))", silent=False, block=False)
    assert result.wait(30)
    for _, said in ipyparallel.answers(result):
        assert not isinstance(said, Exception), said
        (made,) = ipyparallel.reply_to_cell(said)["collectives"]
        assert (made["name"], made["sizes"], made["op"]) == ("all_reduce", [[3]], "SUM")


@HERE.tries(ipython.keep_silent_on_exit, ipython.last_traceback)
def _(ranks):
    result = cell(ranks, "\nraise SystemExit(1)")
    result.wait(5)
    result.wait_for_output(5)
    assert result.stderr == ""
    assert "raise SystemExit(1)" in COLOR.sub("", answer_to(result).traceback)


@HERE.tries(ipython.write_short_tracebacks)
def _(ranks):
    told = COLOR.sub("", failure_of(ranks, "try:\n    1 / 0\nfinally:\n    x = 1").traceback)
    assert "line 2\n    1 / 0\n" in told and "x = 1" not in told
