"""Ranks in a notebook's kernel: `%%px`, what an error looks like, and the kernel's end."""

import contextlib
import os
import queue
import signal
import time

import nbclient
import nbformat
import psutil
import pytest
from jupyter_client.manager import KernelManager

from ranklab.guardian import belonging_to

pytestmark = pytest.mark.timeout(120)

START = "from ranklab import Ranks\nranks = Ranks(2, timeout={})"


class Notebook:
    """A kernel, and cells run in it one after the other."""

    def __init__(self, **environment):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**os.environ, **environment})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.pid = self.manager.provisioner.process.pid

    def start(self, code):
        return self.client.execute(code)

    def outputs(self, message_id, timeout=60):
        """Return (all that was shown as text, the error as "name: value" or None)."""
        shown, error = [], None
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != message_id:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                shown.append(content["text"])
            elif message["msg_type"] in ("display_data", "execute_result", "update_display_data"):
                shown.append(content["data"].get("text/plain", ""))
            elif message["msg_type"] == "error":
                error = f"{content['ename']}: {content['evalue']}"
                self.traceback = "\n".join(content["traceback"])
            elif content.get("execution_state") == "idle":
                return "\n".join(shown), error
        raise TimeoutError(f"the cell is still running after {timeout} s")

    def run(self, code, timeout=60):
        return self.outputs(self.start(code), timeout)

    def value(self, expression):
        """Return the value of an expression, by its repr."""
        shown, error = self.run(f"print(repr({expression}))")
        assert error is None, error
        return eval(shown)

    def close(self):
        self.client.stop_channels()
        with contextlib.suppress(Exception):
            self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook():
    """A kernel as nbclient starts it for the book, with two ranks."""
    notebook = Notebook(IPP_NONINTERACTIVE="1")
    shown, error = notebook.run(START.format(2))
    assert error is None, error
    assert shown.strip().startswith("2 ranks · gloo on cpu · ready in ")
    assert len(shown.strip().splitlines()) == 1  # and nothing else in the page
    yield notebook
    notebook.close()


@pytest.fixture
def working(notebook):
    assert notebook.run("ranks.reset()") == ("", None)
    return notebook


def alive(pids):
    return [p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != "zombie"]


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so within {seconds} s"
        time.sleep(0.1)


def everybody(folder):
    return [process.pid for process in belonging_to(folder)]


# %%px


def test_px_runs_on_all_ranks(working):
    shown, error = working.run("%%px\nx = torch.ones(2)\ndist.all_reduce(x)\nprint('rank', rank)")
    assert error is None
    assert "rank 0" in shown
    assert "rank 1" in shown
    assert working.value("[x.tolist() for x in ranks['x']]") == [[2.0, 2.0]] * 2


def test_targets_are_ranks(working):
    shown, error = working.run("%%px --targets 1\nprint('only', rank)")
    assert error is None
    assert "only 1" in shown
    assert "only 0" not in shown
    assert working.run("%%px --targets 7\n1")[1] == (
        "ArgumentError: There is no rank 7: the ranks are 0 to 1."
    )


def test_an_error_names_rank_and_line_once(working):
    shown, error = working.run("%%px\ny = 1\nif rank == 1:\n    raise ValueError('no good')")
    expected = "rank 1 failed:\n    line 4: raise ValueError('no good')\nValueError: no good"
    assert error == f"RankError: {expected}"
    assert "no good" not in shown  # said once, by the error
    assert working.traceback.count("no good") == 2  # the line, and the message
    assert len(working.traceback.splitlines()) < 6


def test_an_error_inside_functions_shows_the_way(working):
    working.run("%%px\ndef half(k):\n    return k / 0")
    _, error = working.run("%%px\n\ndef again(k):\n    return half(k)\nagain(1)")
    assert error.splitlines() == [
        "RankError: ranks 0 and 1 failed:",
        "    line 5: again(1)",
        "    line 4, in again: return half(k)",
        "    line 3 of an earlier cell, in half: return k / 0",
        "ZeroDivisionError: division by zero",
    ]


def test_an_error_of_run_names_the_line_of_the_kernels_cell(working):
    _, error = working.run("def f(k):\n    return k / 0\nranks.run(f, 1)")
    assert "line 2, in f: return k / 0" in error
    assert "ranks 0 and 1 failed" in error


def test_a_name_that_only_the_kernel_has(working):
    working.run("here_only = 1")
    _, error = working.run("%%px\nhere_only + 1")
    assert "`here_only` is there in this notebook, but not on the ranks" in error
    _, error = working.run("%%px\nnowhere + 1")
    assert "in this notebook" not in error


def test_a_syntax_error(working):
    _, error = working.run("%%px\nx = 1\nx = = 1")
    assert "ranks 0 and 1 failed:\n    line 3: x = = 1\nSyntaxError: invalid syntax" in error


def test_a_deadlock_names_everybody_and_the_way_on(working):
    _, error = working.run("%%px\nx = torch.zeros(1)\ndist.recv(x, src=1 - rank)")
    assert error.startswith("RankError: ranks 0 and 1 waited for another rank in vain:")
    assert "line 3: dist.recv(x, src=1 - rank)" in error
    assert "Call ranks.reset()" in error
    assert working.run("ranks.reset()") == ("", None)
    assert working.run("%%px\ndist.barrier()")[1] is None


def test_an_interrupted_cell_fails(working):
    message = working.start("%%px\nimport time\ntime.sleep(60)")
    time.sleep(1)  # not for luck: an interrupt before the cell runs would end it, too
    working.manager.interrupt_kernel()
    _, error = working.outputs(message, timeout=20)
    assert error.startswith(
        "RankError: ranks 0 and 1 got the interrupt:\n    line 3: time.sleep(60)"
    )
    assert "KeyboardInterrupt" in error
    assert "ranks.reset()" in error
    assert working.run("%%px\ndist.barrier()")[1] is None


def test_an_interrupted_deadlock_says_who_does_not_listen(working):
    """A group with a long timeout, so that the interrupt comes first."""
    code = (
        "from datetime import timedelta\n"
        "slow = dist.new_group(timeout=timedelta(seconds=8))\n"
        "dist.recv(torch.zeros(1), src=1 - rank, group=slow)"
    )
    message = working.start(f"%%px\n{code}")
    time.sleep(1)
    working.manager.interrupt_kernel()
    _, error = working.outputs(message, timeout=20)
    assert error.startswith("RankError: Interrupted, but ranks 0 and 1 did not hear it.")
    assert "ranks.reset()" in error
    _, error = working.run("import ranklab.answers\nranklab.answers.MARGIN = 10\nranks.reset()")
    assert error is None, error
    assert working.run("%%px\ndist.barrier()")[1] is None


def test_a_rank_that_is_killed_ends_the_cell_and_restart_goes_on(working):
    before = working.value("ranks.pids")
    _, error = working.run(
        "%%px\nimport os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.all_reduce(torch.zeros(1))",
        timeout=15,
    )
    assert error.startswith("RankError: rank 1 died: the process is gone (killed by SIGKILL).")
    assert "Call ranks.restart()" in error
    _, error = working.run("%%px\n1")
    assert error.startswith("RankError: rank 1 died")
    assert working.run("ranks.restart()")[1] is None
    assert not alive(before)
    shown, error = working.run("%%px --targets 0\nprint('I am', rank)")
    assert error is None
    assert "I am 0" in shown
    assert working.value("ranks['rank']") == [0, 1]


def test_a_reader_sees_the_same_while_output_streams():
    """Without IPP_NONINTERACTIVE, ipyparallel shows output, and errors, as they come."""
    notebook = Notebook(IPP_NONINTERACTIVE="")
    try:
        shown, error = notebook.run(START.format(2))
        assert error is None, error
        assert len(shown.strip().splitlines()) == 1
        shown, error = notebook.run("%%px\nprint('rank', rank)\nif rank == 1:\n    1 / 0")
        assert "rank 0" in shown
        assert "rank 1" in shown
        assert error.startswith("RankError: rank 1 failed:\n    line 4: 1 / 0\n")
        assert "ZeroDivisionError" not in shown
        message = notebook.start("%%px\nimport time\ntime.sleep(60)")
        time.sleep(3)  # longer than ipyparallel waits until it shows a progress bar
        notebook.manager.interrupt_kernel()
        shown, error = notebook.outputs(message, timeout=20)
        assert "KeyboardInterrupt" in error
        assert shown == ""
    finally:
        notebook.close()


# The end


def test_a_second_ranks_replaces_the_first(working):
    folder = working.value("ranks._guardian.folder")
    before = everybody(folder)
    assert working.run("ranks = Ranks(0)")[1].startswith("ArgumentError: Ranks(0)")
    assert everybody(folder) == before  # nonsense replaces nothing
    assert working.run(START.format(2))[1] is None
    assert not alive(before)
    assert not os.path.exists(folder)
    assert working.run("%%px\ndist.barrier()")[1] is None


def test_the_kernels_end_is_the_ranks_end(notebook):
    folder = notebook.value("ranks._guardian.folder")
    before = everybody(folder)
    assert len(before) > 4
    notebook.manager.shutdown_kernel(now=False)
    wait_until(lambda: not alive(before) and not os.path.exists(folder), 10)


@pytest.fixture
def doomed():
    notebook = Notebook(IPP_NONINTERACTIVE="1")
    yield notebook
    notebook.close()


def test_a_killed_kernel_leaves_nothing_even_with_ranks_stuck(doomed):
    assert doomed.run(START.format(100))[1] is None
    folder = doomed.value("ranks._guardian.folder")
    doomed.start("%%px\nprint('stuck')\ndist.recv(torch.zeros(1), src=1 - rank)")
    time.sleep(1)
    before = everybody(folder)
    os.kill(doomed.pid, signal.SIGKILL)
    wait_until(lambda: not alive(before) and not os.path.exists(folder), 10)


def test_a_kernel_killed_while_ranks_start_leaves_nothing(doomed):
    doomed.start(START.format(20))
    kernel = psutil.Process(doomed.pid)

    def guardians():
        return [c.cmdline()[-1] for c in kernel.children() if "guardian.py" in str(c.cmdline())]

    wait_until(guardians, 10)
    (folder,) = guardians()
    wait_until(lambda: len(everybody(folder)) > 3, 20)
    os.kill(doomed.pid, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(folder), 10)
    time.sleep(1)  # an engine that was just being started would show up now
    assert not everybody(folder)


def test_a_hanging_notebook_is_reported_as_failed():
    cells = ["from ranklab import Ranks\nranks = Ranks(2, timeout=60)", "%%px\nwhile True: pass"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    patience = {cells[0]: 60, cells[1]: 3}
    client = nbclient.NotebookClient(
        book, timeout_func=lambda cell: patience[cell.source], interrupt_on_timeout=True
    )
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="KeyboardInterrupt"):
        client.execute()
