"""The table of faults, provoked with ranklab: what the reader is told, how soon, and the way back.

The book promises how long each takes on a machine that has nothing else to do. Here they may take
some times as long, as other tests run beside these; what was measured stands, with what is
promised, at the end of the tests' output.
"""

import os
import statistics
import time

import pytest
from fault_page import EXAMPLE
from fault_table import BY_NAME, FAULTS
from kernels import Notebook, wait_until
from memory_limit import limited
from tiers import few

from ranklab.start.guardian import belonging_to, has_ended

TIMEOUT = 3  # seconds, of ranks that are to run out of time
PATIENCE = 8  # of ranks that are to be freed before that
# Seconds, as the issue has them. "notice": how long a stuck cell says nothing.
BOUNDS = {"freed": 3.0, "interrupt": 2.0, "reset": 1.0, "restart": 3.0}
BUSY = 30  # so many times as long it may take: the machine has other things to do, and much
WORKS = "%%px\nx = torch.ones(1)\ndist.all_reduce(x)\nassert x.item() == world_size"
THE_SAME = "\nassert kept == 7\nimport os\nassert os.getpid() == pid"
# One of each kind: what follows an interrupt does not depend on what the ranks waited in.
INTERRUPTED = ("circle_receives", "from_anyone", "barrier_left_out", "subgroup", "new_group_by_one")
SCARCE = "if rank == 1:\n    x = torch.ones(2**29)\ndist.all_reduce(torch.ones(1))"
measured = {what: [] for what in BOUNDS}
tested = set()  # the names of faults that a test of this file has as parameters


def rows(*ends, few_are=None):
    """Parameters of a test; few_are: the names of those that are not left to `make test-all`."""
    found = [fault for fault in FAULTS if fault.ends in ends]
    tested.update(fault.name for fault in found)
    left = pytest.mark.everything
    return [
        pytest.param(
            fault, id=fault.name, marks=left if few_are and fault.name not in few_are else ()
        )
        for fault in found
    ]


def within(what, seconds):
    """Note how long `what` took; assert that it did not hang."""
    measured[what].append(seconds)
    assert seconds < BOUNDS[what] * BUSY, f"{what}: {seconds:.2f} s"


def timed(what, function, *args, **kwargs):
    began = time.monotonic()
    returned = function(*args, **kwargs)
    within(what, time.monotonic() - began)
    return returned


@pytest.fixture(scope="module", autouse=True)
def report(request):
    yield
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        for what, seconds in measured.items():
            if seconds:
                middle, most = statistics.median(seconds), max(seconds)
                of = f"{len(seconds)} times, median {middle:.2f} s, at most {most:.2f} s"
                print(f"\n{what}: {of} (promised: {BOUNDS[what]:g} s)", end="")


class Ranked(Notebook):
    """A notebook with three ranks that have a variable."""

    def __init__(self, **options):
        super().__init__(IPP_NONINTERACTIVE="1")
        given = "".join(f", {name}={value}" for name, value in options.items())
        _, error = self.run(f"from ranklab import Ranks\nranks = Ranks(3{given})")
        assert error is None, error
        self.be_well()

    def get_well(self):
        """Have ranks that work, whatever the test before did to them."""
        if not self.well:
            self.manager.interrupt_kernel()
            self.run("pass")  # now it has come, and does not end the restart
            self.run("ranks.restart()", 90)
            self.be_well()
        self.well = False
        return self

    def be_well(self):
        _, error = self.run("%%px\nimport os\nkept, pid = 7, os.getpid()")
        assert error is None, error
        self.pids = self.value("ranks.pids")
        self.well = True

    def reset(self):
        """Reset, in time, after which the ranks work."""
        assert timed("reset", self.run, "ranks.reset()") == ("", None)
        self.still_works()

    def still_works(self):
        """Assert that the ranks work, in the same processes, with their variables."""
        assert self.run(WORKS + THE_SAME)[1] is None
        self.well = True

    def restart(self):
        """Restart, in time; then the ranks work."""
        shown, error = timed("restart", self.run, "ranks.restart()")
        assert error is None
        assert shown.startswith("3 ranks · gloo on cpu · ready in ")
        assert self.run(WORKS)[1] is None
        self.be_well()

    def go_on(self, error):
        """Do what the error says."""
        if "Call ranks.restart()" in error:
            assert "Call ranks.reset()" not in error
            self.restart()
        elif "ranks.reset()" in error:
            self.reset()
        else:  # nobody waited
            self.still_works()

    def stuck(self, fault, says="No progress."):
        """Start the cell of `fault`; return its message once the notebook has said so by itself."""
        message = self.start(f"%%px\n{fault.cell}")
        shown, error = self.outputs(message, until=says)
        assert error is None, error
        assert says in shown, f"the cell ended without it:\n{shown}"
        return message, shown

    def interrupted(self, message):
        """Interrupt, in time; return the error."""
        began = time.monotonic()
        self.manager.interrupt_kernel()
        shown, error = self.outputs(message)
        within("interrupt", time.monotonic() - began)
        assert error, f"no error:\n{shown}"
        assert error.startswith("RankError: Interrupted.")
        return error


def notebook_of(**options):
    """Return the fixture of a notebook for all tests of this file."""

    @pytest.fixture(scope="module")
    def notebook():
        notebook = Ranked(**options)
        yield notebook
        notebook.close()

    return notebook


in_time = notebook_of(timeout=TIMEOUT)
in_patience = notebook_of(timeout=PATIENCE)
in_debug = notebook_of(timeout=PATIENCE, debug=True)


@pytest.fixture
def quick(in_time):
    return in_time.get_well()


@pytest.fixture
def patient(in_patience):
    return in_patience.get_well()


@pytest.fixture
def checking(in_debug):
    return in_debug.get_well()


def says(error, fault):
    for text in (fault.excerpt, *fault.also):
        assert text in error, f"not said: {text}\n\n{error}"


# Nobody has a way on


@pytest.mark.parametrize("fault", rows("timeout"))
def test_the_timeout_ends_it_with_a_diagnosis(quick, fault):
    message, shown = quick.stuck(fault)
    began = time.monotonic()
    _, error = quick.outputs(message)
    assert fault.excerpt in shown  # before the timeout
    assert "after 3 s the ranks that waited gave up" in error
    assert time.monotonic() - began < TIMEOUT + 5
    says(error, fault)
    assert "Timed out waiting 3000ms" in error or fault.name == "new_group_by_one"
    assert "Call ranks.reset()" in error
    quick.reset()


def test_the_report_below_the_cell_gives_way_to_the_error(quick):
    quick.on_screen.clear()
    message, _ = quick.stuck(BY_NAME["two_receive"])
    (before,) = quick.on_screen.values()
    assert before.startswith("No progress. A rank that waits gives up after 3 s")
    _, error = quick.outputs(message)
    assert error.startswith(f"RankError: {EXAMPLE}")
    assert list(quick.on_screen.values()) == [""]
    quick.reset()


@pytest.mark.parametrize("fault", rows("timeout", few_are=INTERRUPTED))
def test_an_interrupt_ends_it_at_once(patient, fault):
    message, _ = patient.stuck(fault)
    error = patient.interrupted(message)
    says(error, fault)
    patient.reset()


def test_interrupt(patient):
    """Twice, in quick succession; and `ranks.run` as well as a cell."""
    patient.run(
        "def wait():\n    dist.recv(torch.zeros(2), src=(dist.get_rank() + 1) % world_size)"
    )
    message = patient.start("ranks.run(wait)")
    patient.outputs(message, until="No progress.")
    began = time.monotonic()
    patient.manager.interrupt_kernel()
    patient.manager.interrupt_kernel()
    _, error = patient.outputs(message)
    within("interrupt", time.monotonic() - began)
    assert "KeyboardInterrupt" in error or BY_NAME["interrupt"].excerpt in error
    patient.reset()


# A rank is at work for ever


AT_WORK = {"endless_loop", "stopped"}


@pytest.mark.parametrize("fault", rows("interrupt", "deaf", few_are=AT_WORK))
def test_a_rank_that_works_for_ever_is_shown_and_an_interrupt_ends_the_cell(patient, fault):
    message, shown = patient.stuck(fault, "Ranks wait for others that still run.")
    assert fault.excerpt in shown
    error = patient.interrupted(message)
    says(error, fault)
    if fault.ends == "interrupt":
        patient.reset()
    else:
        assert "ranks.restart()" in error
        patient.restart()


# Mismatches that Gloo does not notice


@pytest.mark.parametrize("fault", rows("finish"))
def test_a_mismatch_that_gives_wrong_results_is_an_error(patient, fault):
    _, error = patient.run(f"%%px\n{fault.cell}", 20)
    says(error or "no error", fault)
    patient.reset()


@pytest.mark.parametrize(
    "name",
    few(
        ["swapped", "other_collective", "other_size", "other_bytes", "other_dtype"],
        lambda name: name == "other_size",
    ),
)
def test_debug_finds_a_mismatch_at_once_and_everybody_lives(checking, name):
    fault = BY_NAME[name]
    _, error = timed("freed", checking.run, f"%%px\n{fault.cell}", 20)
    assert "The collectives do not match" in error
    assert "rank 0 calls" in error
    assert "rank 1 calls" in error
    assert "fingerprint" not in error.lower()
    checking.reset()


# A rank fails, or dies


@pytest.mark.parametrize("fault", rows("failure", "death"))
def test_everybody_is_freed_and_the_rank_is_named(patient, fault):
    shown, error = timed("freed", patient.run, f"%%px\n{fault.cell}", 20)
    says(error or "no error", fault)
    assert "terminate called" not in shown
    if fault.ends == "death":
        assert "died: " in error
        assert "Call ranks.restart()" in error
    patient.go_on(error)


def test_out_of_memory(patient):
    with limited(patient.pids[1]):
        _, error = timed("freed", patient.run, f"%%px\n{SCARCE}", 20)
    says(error, BY_NAME["out_of_memory"])
    patient.go_on(error)


# What a reader does


def test_cell_after_failure(quick):
    """Half of a notebook again, in ranks whose group is dead: told at once, and what to call."""
    quick.outputs(quick.stuck(BY_NAME["two_receive"])[0], 20)
    for _ in range(2):
        _, error = timed("freed", quick.run, WORKS, 20)
        assert BY_NAME["cell_after_failure"].excerpt in error
    assert quick.run("%%px\nassert kept == 7")[1] is None  # what needs nobody else still works
    quick.reset()


def test_where_after_noblock(patient):
    fault = BY_NAME["two_receive"]
    assert patient.run(f"%%px --noblock\n{fault.cell}")[1] is None
    wait_until(lambda: patient.value("ranks.where().stuck"))
    assert patient.value("ranks.where().circle") == [0, 1]
    facts = "[(r.state, r.line, r.call and (r.call['name'], r.call['peer'], r.seconds > 0.3))"
    assert patient.value(f"{facts} for r in ranks.where().reports.values()]") == [
        ("running", "line 4", ("recv", 1, True)),
        ("running", "line 4", ("recv", 0, True)),
        ("finished", "", None),
    ]
    shown, error = patient.run("ranks.where()")
    assert error is None
    assert fault.excerpt in shown
    assert "line 4: dist.recv(box, src=1 - rank)" in shown
    patient.reset()


def test_where_says_who_has_gone_ahead(patient):
    cell = (
        "import time\nfor step in range(2):\n    dist.barrier()\n    if rank == 1 and step == 1:\n"
        "        time.sleep(1000)\ndist.all_reduce(torch.ones(1))"
    )
    assert patient.run(f"%%px --noblock\n{cell}")[1] is None
    ahead = "[r for r, report in ranks.where().reports.items() if report.line == 'line 7']"
    wait_until(lambda: patient.value(ahead) == [0, 2])
    shown, _ = patient.run("ranks.where()")
    assert "ranks 0 and 2 wait in all_reduce of float32[1]" in shown
    assert "rank 1 runs" in shown
    assert "line 6: time.sleep(1000)" in shown
    patient.go_on("Call ranks.restart()")


# The last two use the ranks up.


def test_closed(quick):
    assert quick.run("ranks.close()") == ("", None)
    for cell in ("%%px\nrank", "ranks.where()", "ranks.reset()", "ranks['kept']"):
        _, error = quick.run(cell)
        assert BY_NAME["closed"].excerpt in error
    assert quick.run("ranks.restart()")[1] is None
    assert quick.run(WORKS)[1] is None


def test_kernel_killed(patient):
    folder = patient.value("ranks._guardian.folder")
    patient.stuck(BY_NAME["two_receive"])
    processes = belonging_to(folder)
    assert len(processes) > 4
    os.kill(patient.pid, 9)
    wait_until(lambda: all(map(has_ended, processes)) and not os.path.exists(folder))
