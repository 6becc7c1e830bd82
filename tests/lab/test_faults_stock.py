"""The table of faults, provoked with stock ipyparallel: what a reader has without ranklab.

Every cell of the table runs when the first test asks for it: one that hangs takes its time, so
several hang at once, each in a group of its own.
"""

import os
import signal

import pytest
from fault_page import PAGE, whole
from fault_table import BY_NAME, CELLS, FAULTS, HANGS, SILENT
from memory_limit import limited
from stock import Stock
from test_faults import SCARCE, WORKS

DEADLY = ["other_size", "other_bytes", "small_box", "os_exit", "sigkill", "segfault"]
# What hangs in these does not let go of its processes.
FINAL = ["subgroup", "new_group_by_one", "no_such_rank", "from_anyone", "long_c_call"]
OTHERS = [fault.name for fault in CELLS if fault.name not in (*DEADLY, *FINAL)]
OF_THREE = [list(range(first, first + 3)) for first in range(0, 18, 3)]
OF_FINAL = [[first, first + 1] for first in range(0, 10, 2)]
POOL, READERS = list(range(8)), [8, 9]


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    stock = Stock(10, tmp_path_factory.mktemp("stock"))
    yield stock
    stock.close()


@pytest.fixture(scope="module")
def seen_alive(tmp_path_factory):
    """{fault: what was shown, or None if it hung} for the cells of which nobody dies."""
    forked = Stock(18, tmp_path_factory.mktemp("forked"), forked=True)
    try:
        seen = {}
        for first in range(0, len(OTHERS), len(OF_THREE)):
            names = OTHERS[first : first + len(OF_THREE)]
            forked.join(*OF_THREE[: len(names)])
            cells = [(group, BY_NAME[name].cell) for name, group in zip(names, OF_THREE)]
            seen |= zip(names, forked.see_at_once(cells))
        forked.join(*OF_FINAL)
        cells = [(group, BY_NAME[name].cell) for name, group in zip(FINAL, OF_FINAL)]
        return seen | dict(zip(FINAL, forked.see_at_once(cells, final=True)))
    finally:
        forked.close()  # at once: one of them computes for ever


@pytest.fixture(scope="module")
def seen(seen_alive, stock):
    """The same for every cell of the table."""
    seen, alive = dict(seen_alive), list(POOL)
    for name in [*DEADLY, "out_of_memory"]:
        stock.join(alive[:2])
        if name == "out_of_memory":
            with limited(stock.pids[alive[1]], skip=False) as can:
                seen[name] = stock.see(alive[:2], SCARCE) if can else ""
        else:
            seen[name] = stock.see(alive[:2], BY_NAME[name].cell)
        alive = stock.value(f"[i for i in rc.ids if i in {alive}]")
    return seen


@pytest.mark.everything
@pytest.mark.parametrize("name", [fault.name for fault in CELLS])
def test_what_is_seen_without_ranklab(seen, name):
    check(BY_NAME[name], seen[name])


def check(fault, said):
    if fault.stock == HANGS:
        assert said is None
    elif fault.stock == SILENT:
        assert said is not None
        assert "rror" not in said
    else:
        assert said is not None, "hung"
        assert fault.stock in said


@pytest.mark.everything
def test_out_of_memory(seen):
    if not seen["out_of_memory"]:
        pytest.skip("this user may not limit the memory of a process here")
    check(BY_NAME["out_of_memory"], seen["out_of_memory"])


# What a reader does; each goes on where the one before left the ranks


@pytest.fixture(scope="module")
def stuck(stock, seen):
    """Two ranks that receive from each other, the cell interrupted: once for all of these."""
    stock.join(READERS)
    targets = ",".join(map(str, READERS))
    message = stock.notebook.start(f"%%px --targets {targets}\n{BY_NAME['two_receive'].cell}")
    with pytest.raises(TimeoutError):
        stock.notebook.outputs(message, 3)
    stock.notebook.manager.interrupt_kernel()
    stock.interrupted = stock.notebook.outputs(message, 20)
    return stock


@pytest.mark.everything
def test_interrupt(stuck):
    shown, error = stuck.interrupted
    assert BY_NAME["interrupt"].stock in shown
    assert error is None  # as if nothing were wrong


@pytest.mark.everything
def test_cell_after_failure(stuck):
    check(BY_NAME["cell_after_failure"], stuck.see(READERS, WORKS))
    stuck.notebook.manager.interrupt_kernel()


@pytest.mark.everything
def test_kernel_killed(stuck):
    os.kill(stuck.notebook.pid, signal.SIGKILL)
    # Not one of them notices: after as long as ranklab may take, they are all there.
    stuck.notebook.manager.provisioner.process.wait(10)
    with pytest.raises(TimeoutError):
        stuck.notebook.outputs("", 10)
    assert {stuck.pids[r] for r in READERS} <= {process.pid for process in stuck.processes()}


@pytest.mark.everything
def test_closed(tmp_path):
    stock = Stock(1, tmp_path)
    try:
        stock.must("cluster.stop_cluster_sync()")
        check(BY_NAME["closed"], stock.see([0], "1"))
    finally:
        stock.close()


def test_every_row_is_tested_with_and_without_ranklab():
    import test_faults

    own = [fault.name for fault in FAULTS if not fault.cell]
    assert [name for name in own if f"test_{name}" not in globals()] == []
    assert [name for name in own if not hasattr(test_faults, f"test_{name}")] == []
    assert test_faults.tested == {fault.name for fault in CELLS}


def test_the_page_has_the_table():
    text = PAGE.read_text()
    assert text == whole(text), "the table has changed: run python tests/lab/fault_page.py"
