"""The programs that a chapter writes into files, as scripts that stand alone."""

import subprocess
import sys

import nbformat
import pytest
from launch import BLOCK
from small_book import HEADER, book, forms

from bookmaker.errors import FormError
from bookmaker.folders import HERE
from bookmaker.manuscript import manuscript, programs
from bookmaker.notebook import notebook
from bookmaker.script import program_script, to_script
from bookmaker.script.read.cells import read

__all__ = ["book"]

HEAD = "%%writefile count.py\n#@script\n"
MORE = "%%writefile -a count.py\n#@script\n"
COUNT = f"""{HEAD}\
import argparse

from ranklab.taught import matmul as mm

N = 2


def work(n):
    ones = [[1] * n] * n
    return mm.count(mm.product, ones, ones)[1] is mm.Counted.tally, mm.Counted.tally
"""
MAIN = f"""{MORE}\
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=N)
    given = parser.parse_args()
    print(work(given.n))
given
"""


def chapter(*cells):
    """A chapter whose code cells are these."""
    body = "\n".join(f"```{{code-cell}} ipython3\n{cell}\n```\n" for cell in cells)
    return manuscript.parse(f"{HEADER}\n# A title\n\n{body}", "book/93_programs.md")


def test_it_runs_where_ranklab_is_not(tmp_path):
    """What it takes from earlier chapters is in it; it says what the notebook's file says."""
    (path, text), *more = program_script.files(chapter("n = 1", COUNT, "n", MAIN)).items()
    assert not more and path == "scripts/93_count.py"
    assert text.startswith(
        "# 93_count.py, a program of chapter 93 of Many Ranks, One Model. Generated from "
        "book/93_programs.md.\n#\n# Run it: python 93_count.py\n"
    )
    assert "#@script" not in text and "sys.exit" not in text and "show(" not in text
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    (tmp_path / "alone.py").write_text(text)
    (tmp_path / "beside.py").write_text(COUNT.partition("\n")[2] + MAIN.partition("\n")[2])
    for name, found in (("alone.py", tmp_path), ("beside.py", HERE.root)):
        command = [sys.executable, tmp_path / name, "--n", "3"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=250, env={"PYTHONPATH": str(found)}
        )
        assert done.stdout == "(False, Counter({'mul': 27, 'add': 18}))\n", done.stderr


def test_it_says_how_to_start_it_on_many_ranks():
    cell = (
        f"{HEAD}def main():\n    from mpi4py import MPI\n    return MPI.COMM_WORLD.rank\n\nmain()"
    )
    (text,) = program_script.files(chapter(cell)).values()
    assert "number of them:\n#     mpiexec -n 4 python 93_count.py\n#\n" in text
    assert "# pip install mpi4py mpich\n" in text and text.endswith("\n\n\nmain()\n")


def test_the_processes_that_it_starts_find_its_functions():
    """It is imported there as it is: `if __name__ == "__main__"` says what must not run again."""
    cell = f"{HEAD}import multiprocessing\n\nmultiprocessing.Process()"
    (text,) = program_script.files(chapter(cell)).values()
    assert "__file__" not in text


def test_the_labs_images_come_along():
    cell = f"{HEAD}from ranklab.images import CIFAR10Dataset\n\nprint(len(CIFAR10Dataset()))"
    (text,) = program_script.files(chapter(cell)).values()
    assert "# pip install numpy pillow scikit-image scikit-learn\n" in text
    assert "class NumbersOnly(pickle.Unpickler)" in text and "import ranklab" not in text


def test_in_the_notebook_it_is_written_and_in_the_chapters_script_it_is_nothing():
    nb = chapter("x = 1", COUNT, "x")
    assert COUNT.strip() in [cell.source for cell in notebook.to_notebook(nb).cells]
    assert "argparse" not in to_script(nb) and "x = 1" in to_script(nb)
    named_alike = chapter("N = 3", COUNT, "N")  # the notebook's name is another
    assert to_script(named_alike).count("N = ") == 1


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (COUNT, ("count.py", False)),
        (MORE + "x = 1", ("count.py", True)),
        ("\n%%writefile\t--append  count.py \n#@script\n", ("count.py", True)),
        ("%%writefile count.py\n#@scripted\n", None),
        ("%%writefile count.py\nx = 1\n#@script\n", None),
    ],
)
def test_a_part_of_a_program_is_known_by_its_first_lines(source, part):
    assert programs.part_of(source) == part
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    if part:
        (cell,) = read(nb, "93_programs")
        assert (cell.program, cell.goes_on) == part
    else:
        with pytest.raises(FormError, match="`%%writefile` means nothing to Python"):
            read(nb, "93_programs")


REFUSED = {
    "no file": ("%%writefile a b.py\n#@script\nx = 1", "cell 1 .*a program is a file beside"),
    "a folder": ("%%writefile a/b.py\n#@script\nx = 1", "cell 1 .*a program is a file beside"),
    "nothing to go on with": (MORE + "x = 1", "cell 1 .*no cell before this one writes `count.py`"),
    "no Python": (HEAD + "x =", "cell 1 .*this is not Python"),
    "a magic": (HEAD + "%time x = 1", "cell 1 .*`%time` means nothing to Python"),
    "a missing name": (HEAD + "print(rank)", "cell 1 .*reads `rank`, which it does not define"),
    "ranks": (HEAD + "from ranklab import Ranks\nRanks(2)", "cell 1 .*makes no `Ranks`"),
    "a name that the script gives away": (
        HEAD + "from ranklab.taught import matmul as mm\ndef f(count):\n    return mm.count",
        "cell 1 .*ranklab's `count` goes by this name alone",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_program(case):
    cell, message = REFUSED[case]
    with pytest.raises(FormError, match=f"^93_programs, {message}"):
        program_script.files(chapter(cell))


def test_a_program_is_written_once_and_is_not_the_chapters_script():
    with pytest.raises(FormError, match=r"cell 2 .*written already: go on with `%%writefile -a"):
        program_script.files(chapter(HEAD + "x = 1", HEAD + "y = 1"))
    with pytest.raises(FormError, match=r"scripts/93_programs.py is the chapter's own script"):
        program_script.files(chapter("%%writefile programs.py\n#@script\nx = 1"))


def test_the_command_keeps_it_in_step(book):
    """Written, compared, kept while the manuscript is broken, removed when nothing gives it."""
    path, script = book / "book" / "92_saved.md", book / "scripts" / "92_count.py"
    before = path.read_text()
    saved = "#@save second\ndef f():\n    return 1"
    cells = "".join(f"\n```{{code-cell}} ipython3\n{c}\n```\n" for c in (HEAD + "x = 1", saved))
    path.write_text(before + cells)
    status, lines = forms(book)
    assert (status, script.read_text()[-6:]) == (0, "x = 1\n")
    assert {"scripts/92_count.py written", "ranklab/taught/second.py written"} <= set(lines)
    assert forms(book, "--check")[0] == 0
    script.write_text(script.read_text() + "y = 2\n")
    wrong = "scripts/92_count.py is out of step with its manuscript: run `make forms`"
    assert forms(book, "--check") == (1, [wrong])
    (book / "scripts" / "92_mine.py").write_text(script.read_text())  # a reader's copy
    path.write_text(before.replace("---\nchapter", "---\ntitle: X\nchapter"))
    assert len(forms(book)[1]) == 1 and script.exists()
    other = book / "book" / "93_other.md"
    other.write_text(f"{HEADER}\n# Other\n\n```{{code-cell}} ipython3\n{saved}\n```\n")
    path.write_text(before + cells)
    said = "93_other: ranklab/taught/second.py is what 92_saved gives, too. Take another name."
    assert said in forms(book)[1]
    other.unlink()
    path.write_text(before)
    removed = [line.partition(" ")[0] for line in forms(book)[1] if "removed" in line]
    assert {"scripts/92_count.py", "ranklab/taught/second.py"} < set(removed)
    assert (book / "scripts" / "92_mine.py").exists()
