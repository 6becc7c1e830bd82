"""Exercises that are done are counted, and stay so."""

import os
import subprocess
import sys

import pytest

from ranklab.exercises import check, marks

RIGHT = """
from ranklab import checks
from ranklab.exercises import check
exercise = checks.find({name!r})
check({name!r}, lambda: exercise.right)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKLAB_DATA", str(tmp_path / "own"))
    return tmp_path / "own"


def two_choices():
    """Two predictions of one chapter, and how many exercises it has."""
    from ranklab import checks
    from ranklab.exercises.model import Choice

    by_chapter = {}
    for name, file in checks.files().items():
        by_chapter.setdefault(file.parent, []).append(name)
    for names in by_chapter.values():
        choices = [name for name in names if isinstance(checks.find(name), Choice)]
        if len(choices) > 1:
            return choices[:2], len(names)
    raise AssertionError("no chapter has two predictions")


def test_what_is_done_is_counted_by_chapter_and_survives_a_restart(folder):
    (first, second), many = two_choices()
    for name, count in ((first, 1), (first, 1), (second, 2)):  # each by a process of its own
        run = subprocess.run(
            [sys.executable, "-c", RIGHT.format(name=name)],
            env={**os.environ, "RANKLAB_DATA": str(folder)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.strip().endswith(
            f"Done: {count} of the {many} exercises of this chapter."
        )


def test_a_wrong_answer_is_not_counted():
    (name, _), _ = two_choices()
    assert not check(name, lambda: "z")
    assert not marks.folder().exists()


def test_where_nothing_can_be_written_the_answer_is_still_right(folder):
    from ranklab import checks

    folder.write_text("no folder")
    (name, _), _ = two_choices()
    report = check(name, lambda: checks.find(name).right)
    assert report and "Done" not in str(report)
