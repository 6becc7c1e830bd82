"""Ranks in a notebook's kernel: `%%px`, what an error looks like, and the kernel's end."""

import os
import signal

import nbclient
import nbformat
import psutil
import pytest
from kernels import Notebook, all_ended, ended_by_a_restart, wait_until

from ranklab.start.guardian import belonging_to, has_ended

START = "from ranklab import Ranks\nranks = Ranks(2, timeout={})"
SLEEP = "import time; time.sleep(60)"


@pytest.fixture(scope="module")
def notebook():
    """A kernel as nbclient starts it for the book, with two ranks."""
    notebook = Notebook(IPP_NONINTERACTIVE="1")
    try:
        shown, error = notebook.run(START.format(2))
        assert error is None, error
        assert shown.strip().startswith("2 ranks · gloo on cpu · ready in ")
        assert len(shown.strip().splitlines()) == 1  # and nothing else in the page
        yield notebook
    finally:
        notebook.close()


@pytest.fixture
def working(notebook):
    assert notebook.run("ranks.reset()") == ("", None)
    return notebook


@pytest.fixture(scope="module")
def reader():
    """A kernel as a reader has it: without IPP_NONINTERACTIVE, output is shown as it comes."""
    notebook = Notebook(IPP_NONINTERACTIVE="")
    try:
        shown, error = notebook.run(START.format(100))
        assert error is None, error
        assert len(shown.strip().splitlines()) == 1
        yield notebook
    finally:
        notebook.close()


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


def test_a_cell_for_the_kernel_too_is_refused(working):
    _, error = working.run("%%px --local\nhere = rank")
    assert error.startswith("ArgumentError: %%px --local would run the cell in this notebook, too")
    assert working.run("ranks['here']")[1].startswith("MissingOnRanks")


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


def test_a_function_of_a_module_that_asks_for_a_name_of_the_cells(working, tmp_path):
    (tmp_path / "of_mine.py").write_text("def twice():\n    return 2 * rank\n")
    look = f"import sys; sys.path.append({str(tmp_path)!r})"
    working.run(f"{look}\nranks.run(lambda: exec({look!r}))\nimport of_mine")
    _, error = working.run("ranks.run(of_mine.twice)")
    assert "NameError: name 'rank' is not defined" in error
    assert "A function that a module defines knows the names of that module alone" in error
    assert "as an argument, or define the function in a cell" in error


def test_ranks_have_the_environment_that_every_launcher_gives(working):
    asked = "ranks.run(lambda: [__import__('os').environ[n] for n in ('RANK', 'WORLD_SIZE')])"
    assert working.value(asked) == [["0", "2"], ["1", "2"]]


def test_a_syntax_error(working):
    _, error = working.run("%%px\nx = 1\nx = = 1")
    assert "ranks 0 and 1 failed:\n    line 3: x = = 1\nSyntaxError: invalid syntax" in error


def test_a_deadlock_names_everybody_and_the_way_on(working):
    _, error = working.run("%%px\nx = torch.zeros(1)\ndist.recv(x, src=1 - rank)")
    assert error.startswith("RankError: No progress: after 2 s the ranks that waited gave up.")
    assert "rank 0 waits to receive float32[1] from rank 1\n    line 3: dist.recv(x" in error
    assert "Ranks 0 and 1 wait in a circle: " in error
    assert "Call ranks.reset()" in error
    assert working.run("ranks.reset()") == ("", None)
    assert working.run("%%px\ndist.barrier()")[1] is None


def test_an_interrupted_cell_fails(working, tmp_path):
    message = working.start_on_ranks(SLEEP, tmp_path)
    working.manager.interrupt_kernel()
    _, error = working.outputs(message)
    assert error.startswith("RankError: Interrupted.\n\nBefore that:\n\nranks 0 and 1 run\n")
    assert f"    line 3: {SLEEP}" in error
    assert "ranks.reset()" in error
    assert working.run("%%px\ndist.barrier()")[1] is None


def test_the_signal_of_an_interrupt_may_be_another(working, tmp_path):
    working.run(
        "%%px\nimport signal\ndef hear(number, frame):\n    raise RuntimeError('heard it')\n"
        "signal.signal(signal.SIGUSR1, hear);"
    )
    message = working.start_on_ranks(SLEEP, tmp_path, "--signal-on-interrupt SIGUSR1")
    working.manager.interrupt_kernel()
    _, error = working.outputs(message)
    assert error.startswith("RankError: ranks 0 and 1 failed:")
    assert "RuntimeError: heard it" in error


def test_an_interrupted_deadlock_says_where_everybody_was(working):
    """A group with a longer timeout, so that the interrupt comes first."""
    slow = "from datetime import timedelta\nslow = dist.new_group(timeout=timedelta(seconds=5))"
    assert working.run(f"%%px\n{slow}")[1] is None
    wait = "dist.recv(torch.zeros(1), src=1 - rank, group=slow)"
    message = working.start(f"%%px\n{wait}")
    working.outputs(message, until="in a circle")
    working.manager.interrupt_kernel()
    _, error = working.outputs(message)
    assert error.startswith(
        "RankError: Interrupted.\n\nRanks 0 and 1 wait in a circle: rank 0 waits"
    )
    assert "Ranks 0 and 1 wait in a circle: " in error
    assert "ranks.reset()" in error
    assert working.run("ranks.reset()") == ("", None)
    assert working.run("%%px\ndist.barrier()")[1] is None


def test_a_rank_that_is_killed_ends_the_cell_and_restart_goes_on(working):
    before = ended_by_a_restart(working.value("ranks._guardian.folder"))
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
    assert all_ended(before)
    shown, error = working.run("%%px --targets 0\nprint('I am', rank)")
    assert error is None
    assert "I am 0" in shown
    assert working.value("ranks['rank']") == [0, 1]


def test_what_went_with_a_restart_is_told_so(working):
    working.run("%%px\nmade_early = 1")
    assert working.run("ranks.restart()")[1] is None
    _, error = working.run("%%px\nmade_early + 1")
    assert "If an earlier cell made `made_early`: ranks.restart() started fresh processes" in error


def test_a_group_of_an_ended_process_group_is_told_so(working):
    working.run("%%px\nboth = dist.new_group([0, 1])")
    assert working.run("ranks.reset()")[1] is None
    _, error = working.run("%%px\ndist.broadcast(torch.ones(1), 0, group=both)")
    assert "This group was made before ranks.reset() or ranks.restart(), which ended it" in error


def test_what_run_prints_is_shown_in_rank_order(working):
    working.run(
        "def late():\n    import time\n    time.sleep(0.5 * (world_size - rank))\n"
        "    print('rank', rank)\n    return rank"
    )
    shown, error = working.run("print(ranks.run(late))")
    assert error is None
    assert shown.split() == ["[stdout:0]", "rank", "0", "[stdout:1]", "rank", "1", "[0,", "1]"]
    shown, error = working.run("ranks.run(lambda: print('before') or 1 / 0)")
    assert shown.count("before") == 2
    assert "ZeroDivisionError" in error


LATE = """%%px
import time
time.sleep(0.3 * (world_size - rank))
print("late", rank)
rank + 10
"""


IN_RANK_ORDER = ["[stdout:0] late 0", "[stdout:1] late 1", "[output:0] 10", "[output:1] 11"]


def test_what_a_cell_prints_is_shown_in_rank_order_and_then_its_values(working, reader):
    shown, error = working.run(LATE)
    assert error is None and shown.splitlines() == IN_RANK_ORDER
    reader.on_screen.clear()
    assert reader.run(LATE)[1] is None
    (shown,) = reader.on_screen.values()
    assert shown.splitlines() == IN_RANK_ORDER


@pytest.mark.parametrize("name", ["rank", "dist", "box"])
def test_a_forgotten_px_is_told(working, name):
    working.run("%%px\nbox = 1\nthere = 2")
    _, error = working.run(f"{name}")
    assert error == f"NameError: name '{name}' is not defined"
    assert f"`{name}` lives on the ranks" in working.traceback
    assert "Should it begin with %%px?" in working.traceback
    _, error = working.run("nowhere_at_all")
    assert "lives on the ranks" not in working.traceback
    assert "No cell that has run here defines `nowhere_at_all`." in working.traceback
    _, error = working.run("def f():\n    (lambda: late)()\n    late = 1\n\n\nf()")
    assert "free variable" in error and "No cell" not in working.traceback


@pytest.mark.parametrize(
    "above, what", [("# all ranks:", "the comment"), ("\ny = 1\n", "what stands above it")]
)
def test_what_stands_above_px_is_told(working, above, what):
    _, error = working.run(f"{above}\n%%px\nx = 1")
    assert f"%%px must be the first line of its cell: move {what} below it" in error
    assert working.run('text = """\n%%px\nx = 1"""')[1] is None


def test_a_check_before_its_answer_is_told(working):
    working.run("from ranklab.exercises import check\ncheck('own_ring', not_yet_defined)")
    assert "The cell that defines `not_yet_defined`, above this one" in working.traceback


def test_where_tells_how_a_cell_without_blocking_ended(working):
    working.run("%%px --noblock\nif rank == 1:\n    1 / 0")
    shown, _ = working.run(
        "import time\nwhile not ranks.last_result.ready():\n    time.sleep(0.05)\nranks.where()"
    )
    assert "The last cell, with --noblock, has ended." in shown
    assert "rank 1 failed" in shown and "ZeroDivisionError" in shown
    working.run("%%px --noblock\nx = 1")
    shown, _ = working.run("ranks.last_result.wait(10); ranks.where()")
    assert "The last cell, with --noblock, has ended on every rank." in shown
    working.run("%%px\nx = 2")
    assert "--noblock" not in working.run("ranks.where()")[0]


def test_an_object_of_a_class_that_only_the_ranks_have_comes_with_it(working):
    working.run("%%px\nclass Net:\n    def of(self):\n        return here\nnet = Net()")
    assert working.value("(here := 3) and [one.of() for one in ranks['net']]") == [3, 3]


def test_what_cannot_be_rebuilt_here_is_told(working):
    working.run(
        "%%px\nimport sys, types\nsys.modules['there'] = types.ModuleType('there')\n"
        "class Net:\n    pass\nNet.__module__, sys.modules['there'].Net = 'there', Net\nnet = Net()"
    )
    _, error = working.run("ranks['net']")
    assert "ranks 0 and 1 sent something that cannot be rebuilt here" in error
    assert working.value("ranks['rank']") == [0, 1]  # and the ranks are there


DATACLASS = """
from dataclasses import dataclass

@dataclass
class Size:
    n: int

    def on_rank(self):
        return rank * self.n
"""


def test_instances_of_the_notebooks_classes_go_to_the_ranks_and_back(working):
    working.run(DATACLASS)
    assert working.run("ranks['size'] = Size(3)\nranks['Size'] = Size")[1] is None
    shown, error = working.run("%%px\nprint(size, size == Size(3), size.on_rank())\nsize.n = rank")
    assert error is None
    assert "Size(n=3) True 3" in shown
    assert working.value("ranks['size'] == [Size(0), Size(1)]")
    assert working.value("ranks.run(lambda one: one.on_rank(), Size(5))") == [0, 5]
    assert working.value("ranks.run(Size(5).on_rank)") == [0, 5]


def test_a_class_of_the_notebook_stays_as_it_is_when_an_instance_comes_back(working):
    working.run("class Counted:\n    made = 0\none = Counted()\nranks['one'] = one")
    working.run("%%px\ntype(one).made = 5")
    assert working.value("[type(had) is Counted for had in ranks['one']]") == [True, True]
    assert working.value("Counted.made") == 0


COUNTED = """
def counted(f):
    def inner(*args):
        inner.calls += 1
        return f(*args), inner.calls
    inner.calls = 0
    return inner

@counted
def twice(x):
    return 2 * x + rank
"""


def test_a_function_that_knows_itself_goes_to_the_ranks(working):
    working.run(COUNTED)
    assert working.value("ranks.run(twice, 3)") == [(6, 1), (7, 1)]


@pytest.mark.parametrize("length", [3, 200_000])  # packed with the rest, and apart from it
def test_arrays_can_be_written_to(working, length):
    working.run(f"import numpy\na = numpy.zeros({length})\nranks['a'] = a")
    assert working.run("%%px\na += 1 + rank")[1] is None
    assert working.value("[float(one.sum()) for one in ranks['a']]") == [
        length,
        2 * length,
    ]
    working.run("def add(x):\n    x += 1\n    return float(x[0])")
    assert working.value("ranks.run(add, a)") == [1.0, 1.0]
    assert working.run("back = ranks['a'][0]\nback += 1")[1] is None


def test_what_cannot_be_sent(working):
    _, error = working.run("ranks['file'] = open('/dev/null')")
    assert error.startswith("ArgumentError: `file` cannot go to another process")


def test_a_reader_sees_the_same_while_output_streams(reader, tmp_path):
    shown, error = reader.run("%%px\nprint('rank', rank)\nif rank == 1:\n    1 / 0")
    assert "rank 0" in shown
    assert "rank 1" in shown
    assert error.startswith("RankError: rank 1 failed:\n    line 4: 1 / 0\n")
    assert "ZeroDivisionError" not in shown
    # ipyparallel's own %%px would show a progress bar at once.
    message = reader.start_on_ranks(SLEEP, tmp_path, "--progress-after 0")
    reader.manager.interrupt_kernel()
    shown, error = reader.outputs(message)
    assert error.startswith("RankError: Interrupted.")
    assert shown == ""


# The end


def test_a_second_ranks_replaces_the_first(working):
    folder = working.value("ranks._guardian.folder")
    before = belonging_to(folder)
    assert working.run("ranks = Ranks(0)")[1].startswith("ArgumentError: Ranks(0)")
    assert set(belonging_to(folder)) == set(before)  # nonsense replaces nothing
    before = ended_by_a_restart(folder)
    assert working.run(START.format(2))[1] is None
    assert all_ended(before)
    assert working.run("%%px\ndist.barrier()")[1] is None


def test_the_kernels_end_is_the_ranks_end(notebook):
    folder = notebook.value("ranks._guardian.folder")
    before = belonging_to(folder)
    assert len(before) > 4
    notebook.manager.shutdown_kernel(now=False)
    wait_until(lambda: all_ended(before) and not os.path.exists(folder))


def test_a_killed_kernel_leaves_nothing_even_with_ranks_stuck(reader, tmp_path):
    folder = reader.value("ranks._guardian.folder")
    reader.start_on_ranks("dist.recv(torch.zeros(1), src=1 - rank)", tmp_path)
    before = belonging_to(folder)
    assert len(before) > 4
    os.kill(reader.pid, signal.SIGKILL)
    wait_until(lambda: all_ended(before) and not os.path.exists(folder))


@pytest.fixture
def doomed():
    notebook = Notebook(IPP_NONINTERACTIVE="1")
    yield notebook
    notebook.close()


def test_a_kernel_killed_while_ranks_start_leaves_nothing(doomed):
    doomed.start(START.format(20))
    kernel = psutil.Process(doomed.pid)

    def guardians():
        return [child for child in kernel.children() if "guardian.py" in str(child.cmdline())]

    wait_until(guardians)
    (guardian,) = guardians()
    folder = guardian.cmdline()[-1]
    wait_until(lambda: len(belonging_to(folder)) > 3)
    os.kill(doomed.pid, signal.SIGKILL)
    wait_until(lambda: has_ended(guardian))  # it looks twice: an engine may show up late
    assert not belonging_to(folder)
    assert not os.path.exists(folder)


INTERRUPTED = """
import gc, ipyparallel, os, signal, time
from unittest import mock
from ranklab import Ranks
connect = ipyparallel.Client._connect
def slowly(*args, **options):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.5)
    connect(*args, **options)
with mock.patch("ipyparallel.Client._connect", slowly):
    ranks = Ranks(2)
"""


def test_an_interrupt_while_a_client_is_made_leaves_none_open():
    notebook = Notebook(IPP_NONINTERACTIVE="1")
    try:
        assert "Interrupted while the ranks were starting" in notebook.run(INTERRUPTED)[1]
        made = "[client for client in gc.get_objects() if type(client) is ipyparallel.Client]"
        assert notebook.value(f"[client._closed for client in {made}]") in ([], [True])
    finally:
        notebook.close()


@pytest.mark.everything
def test_a_hanging_notebook_is_reported_as_failed():
    cells = ["from ranklab import Ranks\nranks = Ranks(2, timeout=60)", "%%px\nwhile True: pass"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    patience = {cells[0]: 60, cells[1]: 3}
    client = nbclient.NotebookClient(
        book, timeout_func=lambda cell: patience[cell.source], interrupt_on_timeout=True
    )
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="Interrupted"):
        client.execute()


def test_px_before_there_are_ranks():
    notebook = Notebook()
    try:
        notebook.run("from ranklab import Ranks")
        _, error = notebook.run("%%px\n1 + 1")
        assert "There are no ranks yet" in error
    finally:
        notebook.close()
