"""What the lab borrows without a promise (ranklab/upstream): each is tried on what is installed.

A failure says what stops working. Two ranks answer for all of it, and one process that Gloo aborts
(gloo_told.py) for what a healthy one does not say.
"""

import dataclasses
import functools
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from importlib.metadata import version
from pathlib import Path
from types import FunctionType

import ipyparallel as ipp
import numpy
import psutil
import pytest
import torch
import torch.distributed as dist
from traced import on_ranks

from ranklab import Ranks
from ranklab.doctor import REQUEST, rounds
from ranklab.ranks.px import RankMagics
from ranklab.start.forked_engine import ForkedEngine, Nanny
from ranklab.upstream import cpython, ipyparallel, ipython, packing, profiler, torch_says
from ranklab.upstream import torch as ours

pytestmark = pytest.mark.timeout(60)
INSTALLED = ", ".join(
    f"{name} {version(name)}" for name in ("torch", "ipyparallel", "ipython", "ipykernel")
)
COLOR = re.compile(r"\x1b\[[0-9;]*m")
TIMEOUT = 10.0
CHECKS = {}  # {what is borrowed: a function that tries it}


def tries(*borrowed):
    def note(check):
        CHECKS.update(dict.fromkeys(borrowed, check))
        return check

    return note


def borrowed_of(module):
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and not name.startswith("_")
        and value.__module__ in (module.__name__, "__main__")
    ]


BORROWED = [
    one
    for module in (cpython, ipython, ipyparallel, packing, ours, torch_says, profiler)
    for one in borrowed_of(module)
]
BORROWED += [ipyparallel.OneProcessLauncher, ForkedEngine, Nanny, RankMagics]


def lost_without(borrowed):
    _, without, what = inspect.getdoc(borrowed).rpartition("Without it: ")
    return " ".join([without.strip(), *what.split()]) if without else ""


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2, backend="gloo", device="cpu", timeout=TIMEOUT) as ranks:
        yield ranks


@pytest.mark.parametrize("borrowed", BORROWED, ids=lambda one: f"{one.__module__}.{one.__name__}")
def test_what_is_borrowed_is_there(borrowed, ranks):
    assert lost_without(borrowed), "say in its docstring what is lost without it"
    assert borrowed in CHECKS, "try it here"
    if failed := failure(CHECKS[borrowed], ranks):
        said = f"{borrowed.__name__} does not work with {INSTALLED}. {lost_without(borrowed)}"
        raise AssertionError(said) from failed


@functools.cache
def failure(check, ranks):
    """What a check ends in, once for all that it tries."""
    try:
        check(ranks)
    except (Exception, pytest.fail.Exception) as error:
        return error


# CPython


@tries(cpython.missing_name)
def _(ranks):
    said = failure_of(ranks, "not_there")
    assert cpython.missing_name(f"{said.ename}: {said.evalue}") == "not_there"
    assert cpython.missing_name(COLOR.sub("", said.traceback)) == "not_there"
    said = failure_of(ranks, r"import pickle; pickle.loads(b'c__main__\nNotThere\n.')")
    assert cpython.missing_name(said.evalue) == "NotThere"


@tries(cpython.without_file_of_cell)
def _(ranks):
    told = failure_of(ranks, "x = = 1").evalue
    assert cpython.without_file_of_cell(told) == "invalid syntax" != told


@on_ranks
def stack_written():
    import faulthandler
    import tempfile

    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=False)
        file.seek(0)
        return file.read()


@tries(cpython.frames_of_stack, cpython.is_whole_stack)
def _(ranks):
    text = ranks.run(stack_written)[0]
    frames = cpython.frames_of_stack(text)
    assert frames[0][2] == "stack_written"
    assert len(frames) == text.count("File ")
    assert cpython.is_whole_stack(text)
    assert not cpython.is_whole_stack(text[: len(text) // 2])


@tries(cpython.stacks_at_fault, cpython.stack_of_current_thread)
def _(_):
    code = (
        "import faulthandler, ctypes\nfaulthandler.enable()\ndef f():\n    ctypes.string_at(1)\nf()"
    )
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    stack = cpython.stack_of_current_thread(cpython.stacks_at_fault(died.stderr))
    functions = [function for *_, function in cpython.frames_of_stack(stack)]
    assert functions == ["string_at", "f", "<module>"]


@tries(cpython.read_traceback)
def _(_):
    try:
        json.loads("{")
    except ValueError as error:
        message, frames = cpython.read_traceback("".join(traceback.format_exception(error)))
        assert message == str(error)
        assert [function for *_, function, _ in frames][1:] == ["loads", "decode", "raw_decode"]
        assert frames[0][3] == 'json.loads("{")'


@tries(cpython.remember_source, cpython.is_remembered)
def _(_):
    assert not cpython.is_remembered("<of no disk>")
    cpython.remember_source("<of no disk>", "def f():\n    1 / 0\n")
    assert cpython.is_remembered("<of no disk>")
    here = {}
    exec(compile("def f():\n    1 / 0\n", "<of no disk>", "exec"), here)
    with pytest.raises(ZeroDivisionError) as caught:
        here["f"]()
    assert "    1 / 0\n" in "".join(traceback.format_exception(caught.value))


@tries(cpython.is_cached)
def _(_):
    assert cpython.is_cached(functools.cache(lambda: 1))
    assert not cpython.is_cached(lambda: 1)


@tries(cpython.raise_in)
def _(_):
    ended = []

    def run():
        try:
            while True:
                time.sleep(0.01)
        except KeyError:
            ended.append(True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    cpython.raise_in(thread.ident, KeyError)
    thread.join(5)
    assert ended


# IPython and ipykernel


def cell(ranks, code):
    """What rank 0 answers to a cell."""
    run = functools.partial(ranks.client[0].execute, silent=False, block=False)
    # Right after a cell that failed, others are dropped.
    while isinstance(answer_to(run("pass")), ipp.error.TaskAborted):
        pass
    return run(code)


def answer_to(result):
    assert result.wait(10)
    return ipyparallel.answers(result)[0][1]


def failure_of(ranks, code):
    """The RemoteError in which the cell ends."""
    return answer_to(cell(ranks, code))


def frames_told(ranks, code):
    """[(header, the line below it)] of the traceback of a cell that fails."""
    lines = COLOR.sub("", failure_of(ranks, code).traceback).splitlines()
    headers = [(ipython.header(line), i) for i, line in enumerate(lines)]
    return [(one, ipython.source_below(lines[i + 1 : i + 12])) for one, i in headers if one]


@tries(ipython.header, ipython.source_below)
def _(ranks):
    (ran, line), (called, line_called) = frames_told(ranks, "def f(x):\n    return 1 / x\n\nf(0)")
    assert (ran.line, ran.function, ran.file, line) == (4, "", "", "f(0)")
    assert (called.line, called.function, line_called) == (2, "f", "return 1 / x")
    assert ran.cell == called.cell != ""
    *_, (in_file, _) = frames_told(ranks, "import json\njson.loads('{')")
    assert (in_file.cell, Path(in_file.file).name) == ("", "decoder.py")
    (_, line), *_ = frames_told(ranks, "x = = 1")
    assert line == "x = = 1"


@tries(ipython.is_file_of_cell)
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


@tries(ipython.runs_code)
def _(ranks):
    assert ranks.run(frames_that_run)[0] == 1
    cell(ranks, FRAMES + "n = frames_for_which(ipython.runs_code)").wait(5)
    assert ranks.client[0]["n"] >= 1


@tries(ipython.tells_error)
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


@tries(ipython.answer_requests, ipython.in_control_thread, ipyparallel.ask)
def _(ranks):
    runs = cell(ranks, "import time; time.sleep(5)")
    time.sleep(1.5)
    report = rounds.where(ranks).reports[0]
    assert (report.state, runs.ready()) == ("running", False)
    assert report.seconds > 0.5  # it was looked at before
    assert "time.sleep" in report.place
    os.kill(ranks.pids[0], signal.SIGINT)
    assert runs.wait(30)


@tries(ipython.wrap_cells, ipyparallel.reply_to_cell)
def _(ranks):
    ranks.reset()  # an interrupt of the check before may have come late, or broken the group
    result = ranks.client[:].execute("dist.all_reduce(torch.ones(3))", silent=False, block=False)
    assert result.wait(30)
    for _, said in ipyparallel.answers(result):
        assert not isinstance(said, Exception), said
        (made,) = ipyparallel.reply_to_cell(said)["collectives"]
        assert (made["name"], made["sizes"], made["op"]) == ("all_reduce", [[3]], "SUM")


@tries(ipython.keep_silent_on_exit, ipython.last_traceback)
def _(ranks):
    result = cell(ranks, "\nraise SystemExit(1)")
    result.wait(5)
    result.wait_for_output(5)
    assert result.stderr == ""
    assert "raise SystemExit(1)" in COLOR.sub("", answer_to(result).traceback)


@tries(ipython.show_the_line_that_raised)
def _(ranks):
    (header, line), *_ = frames_told(ranks, "try:\n    1 / 0\nfinally:\n    x = 1")
    assert (header.line, line) == (2, "1 / 0")


# ipyparallel


@tries(
    ipyparallel.asked, ipyparallel.answers, ipyparallel.parts, ipyparallel.answer, ipyparallel.ended
)
def _(ranks):
    for targets in ([0, 1], [1], 1):
        result = ranks.client[targets].apply_async(abs, -1)
        result.wait(5)
        expected = [targets] if targets == 1 else targets
        assert ipyparallel.asked(result) == expected
        assert ipyparallel.answers(result) == [(rank, 1) for rank in expected]
        parts = ipyparallel.parts(result)
        assert [rank for rank, part in parts if ipyparallel.answer(part) == 1] == expected
        assert ipyparallel.ended(ranks, result) == dict.fromkeys(expected, "finished")


@tries(ipyparallel.forget)
def _(ranks):
    result = ranks.client[:].apply_async(abs, -1)
    result.wait(5)
    result.split(), len(result), result.progress
    ipyparallel.forget(ranks, result)
    assert not set(result.msg_ids) & {*ranks.client.results, *ranks.client.metadata}
    for cached in (ipp.AsyncResult.split, ipp.AsyncResult.__len__, ipp.AsyncResult._count_chunks):
        assert cached.cache_info().currsize == 0


@tries(ipyparallel.call_it)
def _(ranks):
    result = cell(ranks, "1")
    ipyparallel.call_it(result, "%px")
    assert "(%px)" in repr(result)
    result.wait(5)


@tries(ipyparallel.display, ipyparallel.streamed)
def _(ranks):
    for show in (ipyparallel.display, None):
        result = cell(ranks, "print('said', 6 * 7)\n1 / 0")
        with Printed() as printed:
            with ipyparallel.streamed(result) if show is None else Printed():
                result.wait(5)
                result.wait_for_output(5)
            if show:
                show(result, "type")
        assert printed.text.count("said 42") == 1
        assert show or "ZeroDivisionError" not in printed.text


class Printed:
    """Takes what is printed while it lasts."""

    def __enter__(self):
        self._before, sys.stdout = sys.stdout, io.StringIO()
        return self

    def __exit__(self, *_):
        self.text, sys.stdout = sys.stdout.getvalue(), self._before


@tries(packing.by_value)
def _(ranks):
    sized = dataclasses.make_dataclass("Sized", ["n"])
    sized.__module__ = "__main__"
    ranks["array"], ranks["sized"] = numpy.zeros(3), sized(2)
    array, back = ranks["array"][0], ranks["sized"][0]
    array += 1
    assert type(back) is sized
    assert back.n == 2


@tries(ipyparallel.wait_for_output)
def _(ranks):
    result = cell(ranks, "print(6 * 7)")
    result.wait(5)
    ipyparallel.wait_for_output(result)
    assert result.stdout == "42\n"


@tries(ipyparallel.keep_unreadable)
def _(ranks):
    source = "class OnlyThere:\n    def __reduce__(self):\n        return eval, ('not_here',)\n\n"
    cell(ranks, source + "only_there = OnlyThere()").wait(5)
    result = ranks.client[0].pull("only_there", block=False)
    assert result.wait(5)
    assert ipyparallel.answers(result)[0][1].ename == ipyparallel.UNREADABLE


@tries(ipyparallel.wait_no_more)
def _(ranks):
    os.kill(ranks.pids[1], signal.SIGSTOP)
    (future,) = ipyparallel.ask(ranks.client, REQUEST, {"what": "where"}, [1]).values()
    assert future.msg_id in ranks.client._futures
    ipyparallel.wait_no_more(ranks.client, future)
    assert future.msg_id not in ranks.client._futures
    os.kill(ranks.pids[1], signal.SIGCONT)


@tries(ipyparallel.give_up)
def _(ranks):
    result = ranks.client[0].apply_async(time.sleep, 3)
    ipyparallel.give_up(ranks.client, [result])
    began = time.monotonic()
    assert ranks.client.wait(timeout=5)
    assert time.monotonic() - began < 2
    result.wait(5)


@tries(ipyparallel.when_one_is_gone, ipyparallel.unregister)
def _(ranks):
    told = threading.Event()
    ipyparallel.when_one_is_gone(ranks.client, told.set)
    ipyparallel.unregister([1], ranks.cluster.engine_set.connection_files["engine"])
    assert told.wait(10)
    assert ranks.gone() == {1}
    ranks.restart()


@tries(ipyparallel.let_go)
def _(_):
    cluster = ipp.Cluster(n=1)

    async def nothing():
        return threading.current_thread()

    thread = cluster._in_thread(nothing)
    assert thread.is_alive()
    ipyparallel.let_go(cluster)
    assert not thread.is_alive()


@tries(ipyparallel.exit_code, ipyparallel.OneProcessLauncher)
def _(_):
    ended = threading.Event()

    class Launcher(ipyparallel.OneProcessLauncher):
        def has_ended(self):
            ended.set()

        def find_args(self):
            return [sys.executable, "-c", "print('last words'); raise SystemExit(3)"]

    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(work_dir=folder, profile_dir=folder)
        launcher.start()
        assert ipyparallel.exit_code(launcher) == 3
        assert ended.wait(5)
        assert Path(launcher.output_file).read_text() == "last words\n"


@tries(ForkedEngine)
def _(ranks):
    theirs = ForkedEngine.__mro__[1].start_nanny
    assert [*inspect.signature(theirs).parameters] == ["self", "control_url"]
    pid = ranks.run(os.getppid)[0]
    assert "importer_main" in " ".join(psutil.Process(pid).cmdline())


@tries(Nanny)
def _(_):
    given = inspect.signature(Nanny).parameters
    assert {"pid", "pipe", "engine_id", "identity", "control_url", "registration_url"} <= {*given}
    assert {"curve_serverkey", "curve_secretkey", "curve_publickey", "config"} <= {*given}
    assert callable(Nanny.dispatch_control) and callable(Nanny.dispatch_parent)


@tries(RankMagics)
def _(_):
    theirs = inspect.signature(RankMagics.__mro__[1].parallel_execute).parameters
    assert {"cell", "block", "groupby", "save_name", "stream_output", "signal_on_interrupt"} <= {
        *theirs
    }


# torch


@functools.cache
def gloo_told():
    """What gloo_told.py printed: (as JSON, its errors as text)."""
    command = [sys.executable, Path(__file__).with_name("gloo_told.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert ran.returncode == -signal.SIGABRT, ran.stderr
    told, _, last_words = ran.stdout.strip().partition("\n")
    return {**json.loads(told), "last words": last_words.strip(), "stderr": ran.stderr}


@tries(cpython.when_aborted)
def _(_):
    assert gloo_told()["last words"] == "last words"


@tries(torch_says.words_of_cpp, torch_says.does_not_fit)
def _(_):
    words = torch_says.words_of_cpp(gloo_told()["stderr"])
    assert torch_says.does_not_fit(words) == ("400", "4")


@tries(torch_says.waited_in_vain, torch_says.timed_out)
def _(_):
    late, closed = gloo_told()["late"], gloo_told()["closed"]
    assert torch_says.waited_in_vain(late) and torch_says.waited_in_vain(closed)
    assert torch_says.timed_out(late) and not torch_says.timed_out(closed)


@tries(torch_says.without_noise)
def _(_):
    late = torch_says.without_noise(gloo_told()["late"])
    assert late == "Timed out waiting 100ms for recv operation to complete"
    closed = torch_says.without_noise(gloo_told()["closed"])
    assert closed in ("Connection closed by peer.", "Read error: Connection reset by peer.")


@tries(torch_says.has_no_world, torch_says.has_a_world, torch_says.group_is_over)
def _(_):
    assert torch_says.has_no_world(gloo_told()["no world"])
    assert torch_says.has_a_world(gloo_told()["a world"])
    assert all(map(torch_says.group_is_over, gloo_told()["outlived"]))


@tries(torch_says.called_by_checks)
def _(_):
    called = {"name": "all_reduce", "shape": "[4]", "dtype": "float32"}
    assert torch_says.called_by_checks(gloo_told()["checks"]) == called


@tries(torch_says.is_of_a_worker)
def _(_):
    told = gloo_told()["worker"]
    assert torch_says.is_of_a_worker(told)
    _, frames = cpython.read_traceback(told)
    assert frames[-1][2:] == ("__getitem__", "raise KeyError(i)")


def test_what_optimizers_load_is_loaded_ahead():
    assert ours.LOADED_BY_OPTIMIZERS in gloo_told()["modules"]


def test_chapter_12_is_told_of_the_end_of_a_backward_pass():
    """It uses a private name of torch's in front of the reader, as PyTorch's own DDP does."""
    ended, x = [], torch.ones(1, requires_grad=True)
    engine = torch.autograd.Variable._execution_engine
    x.register_hook(lambda _: engine.queue_callback(lambda: ended.append(x.grad)))
    (2 * x).backward()
    assert ended == [2.0]


@on_ranks
def call_each():
    """[(what the reader calls, what the doctor takes its handle for, calls it counts)]"""
    from ranklab.doctor import calls

    a, two, wide = torch.ones(2), [torch.ones(2), torch.ones(2)], torch.ones(4)
    here = {"async_op": True}
    made = [
        ("all_reduce", lambda: dist.all_reduce(a, **here)),
        ("broadcast", lambda: dist.broadcast(a, 1, **here)),
        ("reduce", lambda: dist.reduce(a, 0, **here)),
        ("all_gather", lambda: dist.all_gather(two, a, **here)),
        ("all_gather_into_tensor", lambda: dist.all_gather_into_tensor(wide, a, **here)),
        ("gather", lambda: dist.gather(a, two if rank == 0 else None, 0, **here)),  # noqa: F821
        ("scatter", lambda: dist.scatter(a, two if rank == 0 else None, 0, **here)),  # noqa: F821
        ("reduce_scatter", lambda: dist.reduce_scatter(a, two, **here)),
        ("reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(a, wide, **here)),
        ("all_to_all_single", lambda: dist.all_to_all_single(wide, wide.clone(), **here)),
        ("barrier", lambda: dist.barrier(**here)),
        ("isend", lambda: dist.isend(a, 1 - rank)),  # noqa: F821
        ("irecv", lambda: dist.irecv(a, 1 - rank)),  # noqa: F821
    ]
    found, handles = [], []
    for name, call in made:
        before = calls.count()
        handles.append(call())
        found.append((name, calls._made_by[handles[-1]][0], calls.count() - before))
    for handle in handles:
        handle.wait()
    return found


@tries(ours.wrap_handles)
def _(ranks):
    for name, taken_for, counted in ranks.run(call_each)[0]:
        assert (taken_for, counted) == (name, 1)


@tries(ours.file_of_dist)
def _(ranks):
    waits = cell(ranks, "dist.recv(torch.ones(1), 1)")
    while not (call := rounds.where(ranks).reports[0].call):
        time.sleep(0.05)
    ranks.client[1].execute("dist.send(torch.ones(1), 0)")
    waits.wait(5)
    assert (call["name"], call["peer"], call["payload"]) == ("recv", 1, "float32[1]")


@tries(ours.is_of_torch, ours.is_of_distributed)
def _(_):
    file = inspect.getsourcefile(dist.all_reduce)
    assert ours.is_of_torch(file) and ours.is_of_distributed(file)
    assert ours.is_of_torch(inspect.getsourcefile(torch.nn.Linear))
    assert not ours.is_of_torch(inspect.getsourcefile(ipp.Client))


@on_ranks
def reduce_and_record():
    """(the last two of the flight recorder, op and root of each, calls begun in the world)"""
    from ranklab.doctor import calls
    from ranklab.upstream import torch as upstream

    (world,) = upstream.groups()
    before = upstream.calls_begun(world)
    dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX)
    dist.broadcast(torch.ones(2, dtype=torch.long), 1)
    made = upstream.recorded_collectives()[-2:]
    said = [calls.op_and_root(one["began"]) for one in made]
    return made, said, upstream.calls_begun(world) - before


@tries(ours.op_and_root, ours.op_name, ours.recorded_collectives, ours.type_name, ours.calls_begun)
def _(ranks):
    (reduced, sent), said, begun = ranks.run(reduce_and_record)[0]
    assert said == [{"op": "MAX", "root": None}, {"op": None, "root": 1}]
    assert begun == 2
    assert (reduced["name"], reduced["sizes"], reduced["over"]) == ("all_reduce", [[3]], True)
    assert (sent["name"], sent["sizes"], sent["group"]) == ("broadcast", [[2]], reduced["group"])
    assert sent["number"] == reduced["number"] + 1
    assert abs(time.time() - sent["began"] / 1e9) < 10
    assert [ours.type_name(*one["dtypes"]) for one in (reduced, sent)] == ["float32", "int64"]


@on_ranks
def make_a_group():
    """(the names of all groups, that of a new one, its timeout)"""
    from ranklab.upstream import torch as upstream

    group = dist.new_group([0, 1])
    names = list(upstream.groups().values())
    timeout = group._get_backend(torch.device("cpu")).options._timeout
    own = group.group_name
    dist.barrier(group)  # the other rank may still be connecting
    dist.destroy_process_group(group)
    return names, own, timeout.total_seconds()


@tries(ours.groups, ours.limit_new_groups)
def _(ranks):
    names, own, timeout = ranks.run(make_a_group)[0]
    assert len(names) == 2 and own in names
    assert timeout == TIMEOUT


@tries(ours.interrupt_meeting)
def _(_):
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/meeting"
        store, failed = dist.FileStore(file, 2), []

        def wait():
            try:
                store.wait(["never"])
            except Exception:
                failed.append(True)

        thread = threading.Thread(target=wait, daemon=True)
        store.set("here", "")
        thread.start()
        time.sleep(0.05)
        ours.interrupt_meeting(file)
        thread.join(2)
        assert failed and store.get("here") == b""


@on_ranks
def watched():
    from ranklab.upstream import torch as upstream

    seen = []
    with upstream.watcher(lambda operation, group: seen.append((operation, group.group_name))):
        dist.all_reduce(torch.ones(1))
    return seen, dist.group.WORLD.group_name


@tries(ours.watcher)
def _(ranks):
    seen, world = ranks.run(watched)[0]
    assert seen == [("c10d::allreduce_", world)]


@tries(ours.is_thread_of_gloo)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a thread does")
def _(ranks):
    names = [file.read_text() for file in Path(f"/proc/{ranks.pids[0]}/task").glob("*/comm")]
    assert any(map(ours.is_thread_of_gloo, names))


@tries(profiler.runs)
def _(_):
    before = profiler.runs()
    with torch.autograd.profiler.profile():
        assert (before, profiler.runs()) == (False, True)


@on_ranks
def profiled():
    """What the profiler saw of a message, of a broadcast, and of a step of training."""
    from ranklab.traces.settling import settle
    from ranklab.upstream import profiler

    layer = torch.nn.Linear(2, 2)
    optimizer, x = torch.optim.SGD(layer.parameters()), torch.ones(2, dtype=torch.half)
    settle()
    with profiler.of_all_threads() as profile:
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0, tag=0)  # noqa: F821
        dist.broadcast(x, 1)
        layer(torch.ones(2)).sum().backward()
        optimizer.step()
        settle()
    names = (
        "name is_call message collective is_region optimizer is_backward evaluated computes inputs"
    )
    names += " inputs backend nbytes dtype ended start end"
    found = profiler.events(profile)
    return [{name: getattr(one, name) for name in names.split()} for one in found]


@tries(profiler.of_all_threads, profiler.events)
def _(ranks):
    sender, receiver = ranks.run(profiled)

    def only(events, **wanted):
        (one,) = (e for e in events if all(e[key] == value for key, value in wanted.items()))
        return one

    send, recv = only(sender, message="send"), only(receiver, message="recv")
    assert (send["inputs"][2], send["inputs"][-1], recv["inputs"][2]) == (1, 0, 0)
    sent = only(sender, backend="send")
    assert (sent["nbytes"], sent["dtype"], sent["ended"]) == (4, "float16", True)
    assert send["start"] <= sent["start"]
    call = only(sender, collective=("broadcast", 2))
    assert call["is_call"] and call["inputs"][2] == 1
    assert only(sender, backend="broadcast")["nbytes"] == 4
    assert [e["optimizer"] for e in sender if e["is_region"]] == ["SGD.step"]
    assert any(e["is_backward"] for e in sender)
    assert any(e["evaluated"] == "SumBackward0" for e in sender)
    assert any(e["name"] == "aten::addmm" and e["computes"] for e in sender)
