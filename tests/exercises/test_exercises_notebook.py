"""Checking answers in a notebook and in a file: what is shown, interrupted, and left behind."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from exercises_made_up import all_of, checkers, made_up_exercises
from kernels import Notebook, all_ended, wait_until

__all__ = ["made_up_exercises"]

CELLS = """
from ranklab.exercises import check
import torch
import torch.distributed as dist

def spread(x, src):
    box = x.clone()
    if dist.get_world_size() > 1:
        dist.recv(box, (dist.get_rank() + 1) % dist.get_world_size())
    return box
"""


@pytest.fixture(scope="module")
def notebook(made_up_exercises):
    notebook = Notebook()
    try:
        _, error = notebook.run(CELLS.strip())
        assert error is None, error
        yield notebook
    finally:
        notebook.close()


def test_a_cell_is_named_by_its_lines_and_its_ranks_are_left_alone(notebook):
    shown, error = notebook.run("from ranklab import Ranks\nranks = Ranks(2, timeout=5)")
    assert error is None, error
    notebook.run("%%px\nkept = rank + 1")
    shown, error = notebook.run('check("spread", spread)')
    assert error is None
    assert "rank 0 waits to receive float32[1] from rank 1 (line 8)" in shown
    assert "    line 8, in spread: dist.recv(box, (dist.get_rank() + 1)" in shown
    assert "ipykernel" not in shown
    assert notebook.value("ranks['kept']") == [1, 2]
    assert notebook.value("ranks.run(lambda: dist.get_world_size())") == [2, 2]


def test_a_notebook_that_is_interrupted_says_so(notebook):
    notebook.run(
        "def endless(x, src):\n    open(x_file, 'a').close()\n    while True:\n        pass"
    )
    mark = Path(os.environ["IPYTHONDIR"]) / "begun"
    notebook.run(f"x_file = {str(mark)!r}")
    message = notebook.start('check("spread", endless)')
    wait_until(mark.exists)
    everything = all_of(checkers(notebook.pid)[0])
    notebook.manager.interrupt_kernel()
    _, error = notebook.outputs(message)
    assert error == (  # and no report: it did not wait for the end of the case
        "CheckInterrupted: Interrupted: the check of spread was ended, and nothing is known of the "
        "answer."
    )
    wait_until(lambda: all_ended(everything))
    shown, error = notebook.run('check("spread", lambda x, src: None)')
    assert error is None
    assert "is a `return` missing?" in shown


@pytest.mark.everything
def test_the_checking_process_listens_nowhere_but_on_loopback(notebook):
    notebook.run('check("spread", lambda x, src: None)')
    checker = checkers(notebook.pid)[0]
    for one in all_of(checker):
        for connection in one.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip in ("127.0.0.1", "::1")
                assert one.pid != checker.pid


@pytest.mark.everything
def test_one_that_died_is_replaced(notebook):
    notebook.run('check("spread", lambda x, src: None)')
    everything = all_of(checkers(notebook.pid)[0])
    everything[0].kill()
    shown, error = notebook.run('check("spread", lambda x, src: None)')
    assert error is None
    assert "is a `return` missing?" in shown
    wait_until(lambda: all_ended(everything))


def ends_with_its_kernel(notebook, sign):
    notebook.run('check("spread", lambda x, src: None)')
    everything = all_of(checkers(notebook.pid)[0])
    assert len(everything) > 6
    os.kill(notebook.pid, sign)
    wait_until(lambda: all_ended(everything))


def test_nothing_outlives_a_kernel_that_is_killed(notebook):
    ends_with_its_kernel(notebook, signal.SIGKILL)  # so this is the last test with that notebook


@pytest.mark.everything
def test_nothing_outlives_a_kernel_that_is_told_to_end(made_up_exercises):
    notebook = Notebook()
    try:
        notebook.run(CELLS.strip())
        ends_with_its_kernel(notebook, signal.SIGTERM)
    finally:
        notebook.close()


FILE = """
import torch
import torch.distributed as dist
from ranklab.exercises import check


def spread(x, src):
    {body}


if __name__ == "__main__":
    raise SystemExit(not check("spread", spread))
"""


@pytest.mark.everything  # tests/maker/test_exercise_forms.py has it with a chapter's exercise
@pytest.mark.parametrize(
    "body, code, says",
    [
        ("raise NotImplementedError()", 1, "spread: not attempted yet."),
        ("x = x.clone(); dist.broadcast(x, src); return x", 0, "Right: 5 cases, 1 to 4 ranks."),
        ("return x / 0 + undefined", 1, "    line 8 of answer.py, in spread: return x / 0"),
    ],
)
def test_a_file_says_what_is_missing_or_wrong(tmp_path, body, code, says):
    file = tmp_path / "answer.py"
    file.write_text(FILE.format(body=body))
    done = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == code, done.stderr
    assert says in done.stdout
    assert not done.stderr


@pytest.mark.everything
def test_a_module_of_the_readers_travels_with_the_answer(tmp_path):
    (tmp_path / "mine.py").write_text("import torch\ndef one(x):\n    return x.clone()\n")
    (tmp_path / "answer.py").write_text(
        textwrap.dedent("""
        import mine, torch.distributed as dist
        from mine import one
        from ranklab.exercises import check
        def spread(x, src):
            box = mine.one(one(x))
            dist.broadcast(box, src)
            return box
        raise SystemExit(not check("spread", spread))
        """)
    )
    done = subprocess.run(
        [sys.executable, "answer.py"], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr


DECORATED = """
import functools
import torch.distributed as dist

class Calls:
    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return self.function(*args)

def plain(x, src):
    box = x.clone()
    dist.broadcast(box, src)
    return box

def wrapper(function):
    return functools.wraps(function)(lambda *args: function(*args))

decorators = functools.cache, Calls, functools.partial, wrapper, lambda f: functools.cache(Calls(f))
answers = [decorate(plain) for decorate in decorators]
"""
CHECKED = """
import importlib, pathlib
import mine
from ranklab.exercises import check

print([check("spread", answer).verdict for answer in answers])
file = pathlib.Path("mine.py")
print([check("spread", answer).verdict for answer in mine.answers])
file.write_text(file.read_text().replace("return box", "return box + 1"))
importlib.reload(mine)
print([check("spread", answer).verdict for answer in mine.answers])
"""


@pytest.mark.everything
def test_what_a_decorator_makes_travels_as_it_is(tmp_path):
    """Of the file itself, of a module, and of the module once it has changed."""
    (tmp_path / "mine.py").write_text(DECORATED)
    (tmp_path / "answer.py").write_text(DECORATED + CHECKED)
    command = [sys.executable, "answer.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=tmp_path)
    found = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert found == [str([verdict] * 5) for verdict in ("right", "right", "wrong")], done.stdout
