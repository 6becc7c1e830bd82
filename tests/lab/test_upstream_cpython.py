"""What the lab borrows of CPython, tried on what is installed."""

import functools
import json
import subprocess
import sys
import threading
import time
import traceback

import pytest
from borrowed import COLOR, Borrowed, failure_of, gloo_told, ranks
from traced import on_ranks

from ranklab.upstream import cpython

__all__ = ["ranks"]
HERE = Borrowed(cpython)


@HERE.each
def test_what_is_borrowed_is_there(borrowed, ranks):
    HERE.is_there(borrowed, ranks)


@HERE.tries(cpython.when_it_goes_on)
def _(ranks):
    laps = []
    ask = cpython.when_it_goes_on(lambda: laps.append(threading.current_thread()))
    asked_by = threading.Thread(target=ask)
    asked_by.start()
    asked_by.join()
    for _ in range(100):
        pass
    assert laps == [threading.main_thread()]


@HERE.tries(cpython.missing_name)
def _(ranks):
    said = failure_of(ranks, "not_there")
    assert cpython.missing_name(f"{said.ename}: {said.evalue}") == "not_there"
    assert cpython.missing_name(COLOR.sub("", said.traceback)) == "not_there"
    said = failure_of(ranks, r"import pickle; pickle.loads(b'c__main__\nNotThere\n.')")
    assert cpython.missing_name(said.evalue) == "NotThere"


@HERE.tries(cpython.without_file_of_cell)
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


@HERE.tries(cpython.frames_of_stack, cpython.is_whole_stack)
def _(ranks):
    text = ranks.run(stack_written)[0]
    frames = cpython.frames_of_stack(text)
    assert frames[0][2] == "stack_written"
    assert len(frames) == text.count("File ")
    assert cpython.is_whole_stack(text)
    assert not cpython.is_whole_stack(text[: len(text) // 2])


@HERE.tries(cpython.stacks_at_fault, cpython.stack_of_current_thread)
def _(_):
    code = (
        "import faulthandler, ctypes\nfaulthandler.enable()\ndef f():\n    ctypes.string_at(1)\nf()"
    )
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    stack = cpython.stack_of_current_thread(cpython.stacks_at_fault(died.stderr))
    functions = [function for *_, function in cpython.frames_of_stack(stack)]
    assert functions == ["string_at", "f", "<module>"]


@HERE.tries(cpython.read_traceback)
def _(_):
    try:
        json.loads("{")
    except ValueError as error:
        message, frames = cpython.read_traceback("".join(traceback.format_exception(error)))
        assert message == str(error)
        assert [function for *_, function, _ in frames][1:] == ["loads", "decode", "raw_decode"]
        assert frames[0][3] == 'json.loads("{")'


@HERE.tries(cpython.remember_source)
def _(_):
    cpython.remember_source("<of no disk>", "def f():\n    1 / 0\n")
    here = {}
    exec(compile("def f():\n    1 / 0\n", "<of no disk>", "exec"), here)
    with pytest.raises(ZeroDivisionError) as caught:
        here["f"]()
    assert "    1 / 0\n" in "".join(traceback.format_exception(caught.value))


@HERE.tries(cpython.is_cached)
def _(_):
    assert cpython.is_cached(functools.cache(lambda: 1))
    assert not cpython.is_cached(lambda: 1)


@HERE.tries(cpython.raise_in)
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
    thread.join(60)
    assert ended


@HERE.tries(cpython.when_aborted)
def _(_):
    assert gloo_told()["last words"] == "last words"
