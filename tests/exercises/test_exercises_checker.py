"""The process that checks: it dies, hangs, cannot start, and leaves nothing behind."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from exercises_made_up import all_of, checkers, made_up_exercises
from kernels import wait_until
from tiers import few

from ranklab import checks
from ranklab.exercises import check, checker_process, parcel, trial
from ranklab.exercises.checker_process import Checker, CheckerGone
from ranklab.exercises.running import Outcome

__all__ = ["made_up_exercises"]


def broadcast(x, src):
    x = x.clone()
    dist.broadcast(x, src)
    return x


@pytest.fixture
def checker():
    checker = Checker()
    yield checker
    checker.end()


# The two ends of the pipe


class CannotBeRebuilt:
    """An object that can be packed, and not unpacked."""

    def __reduce__(self):
        return int, ("no number",)


def test_a_request_that_cannot_be_read_ends_the_process_which_says_why(checker):
    with pytest.raises(CheckerGone, match="died") as caught:
        checker.ask(CannotBeRebuilt())
    assert "ValueError: invalid literal for int()" in caught.value.last_words[-1]


def test_a_process_that_reads_nothing_is_given_up(checker, monkeypatch):
    monkeypatch.setattr(checker_process, "STARTING", 1.0)
    os.kill(checker._process.pid, signal.SIGSTOP)
    with pytest.raises(CheckerGone, match="does not answer"):
        checker.ask(bytes(1 << 20))  # more than a pipe takes


def test_a_process_that_cannot_start_says_why(tmp_path, monkeypatch):
    checker_process.end()
    (tmp_path / "psutil.py").write_text("raise ImportError('broken by an upgrade')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    text = str(check("spread", broadcast))
    assert "The process that checks answers died. The last that it said:" in text
    assert "    ImportError: broken by an upgrade" in text


# What it does with the ranks


def test_getting_ranks_ready_is_no_part_of_a_case(monkeypatch):
    log = []
    bench = SimpleNamespace(
        folder=None,
        make_ready=lambda size, trains, fresh: log.append(("ready", size, trains)),
        run=lambda order, packed, limit: log.append("run") or Outcome(),
    )
    monkeypatch.setattr(trial, "judge", lambda *about: None)
    request = parcel.pack(checks.find("on_disk"), [broadcast])
    one = trial._Trial(bench, request, lambda **what: log.append(what))
    one._run(0, fresh=True)
    case = {"case": 0, "limit": one.exercise.limit}
    assert log == [{"preparing": 0}, ("ready", 1, False), case, "run"]


def waits_in_a_circle(x, src):
    dist.recv(x.clone(), (dist.get_rank() + 1) % dist.get_world_size())


def waits_and_does_not_take_no(x, src):
    while True:
        with contextlib.suppress(RuntimeError):
            waits_in_a_circle(x, src)


def is_even(x):
    return x % 2 == 0


def loops(x):
    while True:
        x = x + 2


def waits_in_a_library(x):
    return queue.Queue().get()


@pytest.mark.parametrize(
    "name, right, wrong, said, replaced",
    few(
        [
            ("spread", broadcast, waits_in_a_circle, "wait in a circle", False),
            ("spread", broadcast, waits_and_does_not_take_no, "wait in a circle", True),
            ("even", is_even, loops, "not done after 2 s", False),
            ("even", is_even, waits_in_a_library, "not done after 2 s", True),
        ],
        lambda *row: row[0] == "even",
    ),
)
def test_ranks_are_replaced_only_where_they_were_interrupted_in_what_an_answer_called(
    name, right, wrong, said, replaced
):
    assert check(name, right)
    checker = checkers(os.getpid())[0]
    before = set(all_of(checker))
    assert said in str(check(name, wrong))
    assert check(name, right)
    assert (set(all_of(checker)) != before) == replaced


def test_nothing_is_left_on_disk(tmp_path):
    mark = tmp_path / "mark"

    def names_it(folder):
        print("something")
        mark.write_text(folder)
        return folder

    assert check("on_disk", names_it)
    made = Path(mark.read_text())
    assert made.is_dir()
    assert not list(made.parent.glob("said-*"))
    checker_process.end()
    wait_until(lambda: not made.parent.exists())


def test_a_slow_run_counts_only_if_the_next_one_is_slow_too():
    assert check("late_at_first", lambda: None)
    assert "Late again.\n\nHint: Be quick." in str(check("always_late", lambda: None))


@pytest.mark.everything
def test_nothing_of_the_readers_folder_runs_in_the_labs_own_processes(tmp_path):
    (tmp_path / "random.py").write_text("open('ran', 'w').close()\nraise SystemExit('no')")
    (tmp_path / "answer.py").write_text(
        textwrap.dedent("""
        from ranklab.exercises import check
        def spread(x, src):
            import os, torch.distributed as dist
            assert "PYTHONSAFEPATH" not in os.environ  # for programs that the answer starts
            x = x.clone()
            dist.broadcast(x, src)
            return x
        check("spread", spread)
        """)
    )
    done = subprocess.run(
        [sys.executable, "-P", "answer.py"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.stdout.endswith("\nRight: 5 cases, 1 to 4 ranks.\n"), done.stdout + done.stderr
    assert not (tmp_path / "ran").exists()


# Where exercises are found


def test_a_name_that_two_folders_have_is_refused(tmp_path, monkeypatch):
    (tmp_path / "_helpers.py").write_text("")
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])
    assert "_helpers" not in checks.files()
    (tmp_path / "clip_together.py").write_text("")
    with pytest.raises(ValueError, match="There are two exercises called clip_together, "):
        checks.files()


# What is said of results


def test_an_answer_with_two_possible_results_is_not_taken_for_one_made_for_a_case():
    text = str(check("even", lambda x: True))
    assert "Wrong in case 2 of 5" in text
    assert "looks written" not in text
