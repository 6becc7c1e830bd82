"""What the lab borrows of ipyparallel, tried on what is installed."""

import dataclasses
import inspect
import io
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import ipyparallel as ipp
import numpy
import psutil
import torch
from borrowed import Borrowed, answer_to, cell, ranks

from ranklab.doctor import REQUEST
from ranklab.ranks.process_group import runs_on_rank
from ranklab.ranks.px import RankMagics
from ranklab.start.forked_engine import ForkedEngine, Nanny
from ranklab.upstream import ipyparallel, packing

__all__ = ["ranks"]
CLASSES = (ipyparallel.OneProcessLauncher, ForkedEngine, Nanny, RankMagics)
HERE = Borrowed(ipyparallel, packing, more=CLASSES)


@HERE.each
def test_what_is_borrowed_is_there(borrowed, ranks):
    HERE.is_there(borrowed, ranks)


@HERE.tries(
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


@HERE.tries(ipyparallel.ask)
def _(ranks):
    waiting = ipyparallel.ask(ranks.client, REQUEST, {"what": "where"}, [0, 1])
    for rank in (0, 1):
        assert waiting[rank].wait(5)
        assert waiting[rank].result()["content"]["state"] == "idle"


@HERE.tries(ipyparallel.reply_to_cell)
def _(ranks):
    told = answer_to(cell(ranks, "pass"))
    assert ipyparallel.reply_to_cell(told)["status"] == "ok"
    assert ipyparallel.reply_to_cell(1) == {}


@HERE.tries(ipyparallel.forget)
def _(ranks):
    result = ranks.client[:].apply_async(abs, -1)
    result.wait(5)
    result.split(), len(result), result.progress
    ipyparallel.forget(ranks, result)
    assert not set(result.msg_ids) & {*ranks.client.results, *ranks.client.metadata}
    for cached in (ipp.AsyncResult.split, ipp.AsyncResult.__len__, ipp.AsyncResult._count_chunks):
        assert cached.cache_info().currsize == 0


@HERE.tries(ipyparallel.call_it)
def _(ranks):
    result = cell(ranks, "1")
    ipyparallel.call_it(result, "%px")
    assert "(%px)" in repr(result)
    result.wait(5)


@HERE.tries(ipyparallel.display, ipyparallel.streamed)
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


@HERE.tries(packing.know_devices)
def _(ranks):
    """`meta` takes the place of a card. What a cell or a call makes lies there, for both run in the
    thread that has set it, and so does what comes; what is pulled lies on the CPU."""

    @runs_on_rank
    def on(name):
        import sys

        import torch

        torch.set_default_device(name)
        sys.modules["ranklab.upstream.packing"].know_devices((name or "cpu",))

    @runs_on_rank
    def devices(given):
        import torch

        return [str(given.device), str(torch.zeros(1).device)]

    x = torch.ones(2)
    try:
        ranks.run(on, "meta")
        packing.know_devices(("cpu", "meta"))
        ranks["x"] = x
        ranks.view.execute(
            "import torch; made = [str(d) for d in (x.device, torch.ones(1).device)]"
        )
        ranks.view.execute("y = torch.ones(2, device='cpu')")
        assert ranks["made"] == ranks.run(devices, x) == [["meta", "meta"]] * 2
        assert all(torch.equal(y, x) for y in ranks["y"])
    finally:
        ranks.run(on, None)
        packing.know_devices(("cpu",))
    ranks["x"] = x
    assert torch.equal(ranks["x"][0], x)


@HERE.tries(packing.by_value)
def _(ranks):
    sized = dataclasses.make_dataclass("Sized", ["n"])
    sized.__module__ = "__main__"
    ranks["array"], ranks["sized"] = numpy.zeros(3), sized(2)
    array, back = ranks["array"][0], ranks["sized"][0]
    array += 1
    assert type(back) is sized
    assert back.n == 2


@HERE.tries(ipyparallel.wait_for_output)
def _(ranks):
    result = cell(ranks, "print(6 * 7)")
    result.wait(5)
    ipyparallel.wait_for_output(result)
    assert result.stdout == "42\n"


@HERE.tries(ipyparallel.keep_unreadable)
def _(ranks):
    source = "class OnlyThere:\n    def __reduce__(self):\n        return eval, ('not_here',)\n\n"
    cell(ranks, source + "only_there = OnlyThere()").wait(5)
    result = ranks.client[0].pull("only_there", block=False)
    assert result.wait(5)
    assert ipyparallel.answers(result)[0][1].ename == ipyparallel.UNREADABLE


@HERE.tries(ipyparallel.wait_no_more)
def _(ranks):
    os.kill(ranks.pids[1], signal.SIGSTOP)
    (future,) = ipyparallel.ask(ranks.client, REQUEST, {"what": "where"}, [1]).values()
    assert future.msg_id in ranks.client._futures
    ipyparallel.wait_no_more(ranks.client, future)
    assert future.msg_id not in ranks.client._futures
    os.kill(ranks.pids[1], signal.SIGCONT)


@HERE.tries(ipyparallel.give_up)
def _(ranks):
    result = ranks.client[0].apply_async(time.sleep, 3)
    ipyparallel.give_up(ranks.client, [result])
    began = time.monotonic()
    assert ranks.client.wait(timeout=5)
    assert time.monotonic() - began < 2
    result.wait(5)


@HERE.tries(ipyparallel.when_one_is_gone, ipyparallel.unregister)
def _(ranks):
    told = threading.Event()
    ipyparallel.when_one_is_gone(ranks.client, told.set)
    ipyparallel.unregister([1], ranks.cluster.engine_set.connection_files["engine"])
    assert told.wait(10)
    assert ranks.gone() == {1}
    ranks.restart()


@HERE.tries(ipyparallel.let_go)
def _(_):
    cluster = ipp.Cluster(n=1)

    async def nothing():
        return threading.current_thread()

    thread = cluster._in_thread(nothing)
    assert thread.is_alive()
    ipyparallel.let_go(cluster)
    assert not thread.is_alive()


@HERE.tries(ipyparallel.exit_code, ipyparallel.OneProcessLauncher)
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


@HERE.tries(ForkedEngine)
def _(ranks):
    theirs = ForkedEngine.__mro__[1].start_nanny
    assert [*inspect.signature(theirs).parameters] == ["self", "control_url"]
    pid = ranks.run(os.getppid)[0]
    assert "importer_main" in " ".join(psutil.Process(pid).cmdline())


@HERE.tries(Nanny)
def _(_):
    given = inspect.signature(Nanny).parameters
    assert {"pid", "pipe", "engine_id", "identity", "control_url", "registration_url"} <= {*given}
    assert {"curve_serverkey", "curve_secretkey", "curve_publickey", "config"} <= {*given}
    assert callable(Nanny.dispatch_control) and callable(Nanny.dispatch_parent)


@HERE.tries(RankMagics)
def _(_):
    theirs = inspect.signature(RankMagics.__mro__[1].parallel_execute).parameters
    assert {"cell", "block", "groupby", "save_name", "stream_output", "signal_on_interrupt"} <= {
        *theirs
    }
