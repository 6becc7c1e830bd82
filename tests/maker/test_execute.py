"""Executing chapters: what is reported, what is kept, what is done again."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from bookmaker import upstream
from bookmaker.errors import BookError
from bookmaker.folders import HERE, Folders
from bookmaker.manuscript import manuscript
from bookmaker.notebook.exercise_cells import on_page
from bookmaker.site import cache
from bookmaker.site import execute as module
from bookmaker.site.__main__ import main
from ranklab.plots import RANK_COLORS
from ranklab.start.guardian import has_ended
from ranklab.start.launcher import can_fork
from ranklab.upstream import torch

HEADER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A chapter
"""
GOOD = """
The answer is to follow.

```{code-cell} ipython3
answer = 6 * 7
answer
```

```{code-cell} ipython3
import os
print("world", os.environ.get("RANKLAB_RANKS"), os.environ["IPP_NONINTERACTIVE"])
```
"""
BAD = """
```{code-cell} ipython3
fine = 1
```

```{code-cell} ipython3
def divide():
    return fine / 0


divide()
```

```{code-cell} ipython3
print("never reached")
```
"""


@pytest.fixture
def book(tmp_path):
    """A book with a lab of its own, an empty one, and no chapters."""
    (tmp_path / "book").mkdir()
    (tmp_path / "ranklab/ranks").mkdir(parents=True)
    (tmp_path / "ranklab/ranks/ranks.py").write_text("# the lab\n")
    (tmp_path / "requirements.txt").write_text("torch==1\n")
    return Folders(tmp_path)


def write(book, name, text):
    path = book.book / f"{name}.md"
    path.write_text(HEADER + text, encoding="utf-8")
    return path


def execute(path, *, folders, **options):
    output = folders.executed / f"{path.stem}.ipynb"
    return module.run_chapter(path, output, folders=folders, **options)


def outputs(book, name):
    notebook = nbformat.read(book.executed / f"{name}.ipynb", as_version=4)
    return [cell.outputs for cell in cache.code_cells(notebook)]


def test_a_chapter_gets_its_outputs_and_names_its_manuscript(book):
    path = write(book, "01_good", GOOD)
    outcome = execute(path, folders=book, ranks=3)
    assert outcome.executed and outcome.failure is None
    first, second = outputs(book, "01_good")
    assert first[0].data["text/plain"] == "42"
    assert second[0].text == "world 3 1\n"
    first_cell = nbformat.read(book.executed / "01_good.ipynb", as_version=4).cells[0]
    assert first_cell.source.startswith("% Executed from book/01_good.md")


@pytest.mark.parametrize("forks", [can_fork(), False])
def test_the_kernel_is_this_interpreter_and_ends(book, forks, monkeypatch):
    if not forks:
        monkeypatch.setenv("RANKLAB_NO_FORK", "1")
    code = "import sys, os, psutil\nparent = psutil.Process(os.getppid()).cmdline()"
    shown = "(sys.executable, os.getpid(), 'ranklab.start.importer_main' in parent)"
    path = write(book, "01_good", f"\n```{{code-cell}} ipython3\n{code}\n{shown}\n```\n")
    execute(path, folders=book)
    executable, pid, forked = eval(outputs(book, "01_good")[0][0].data["text/plain"])
    assert Path(executable) == Path(sys.executable)
    assert forked == forks and not psutil.pid_exists(pid)


def test_a_figure_has_the_look_of_the_book(book):
    cells = (
        "from ranklab import Ranks",
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])[0].get_color()",
    )
    text = "".join(f"\n```{{code-cell}} ipython3\n{cell}\n```\n" for cell in cells)
    execute(write(book, "01_plot", text), folders=book)
    _, (color, figure) = outputs(book, "01_plot")
    assert color.data["text/plain"] == repr(RANK_COLORS[0])
    assert set(figure.data) == {"image/svg+xml", "text/plain"}


@pytest.mark.parametrize("trains", [True, False])
def test_ranks_that_train_have_imported_what_optimizers_import(book, trains):
    code = "from ranklab.start import cluster\n'torch._dynamo' in cluster.PRELOAD"
    comment = "  # torch.optim.SGD(...)" if trains else ""
    path = write(book, "01_ranks", f"\n```{{code-cell}} ipython3\n{code}{comment}\n```\n")
    execute(path, folders=book)
    assert outputs(book, "01_ranks")[0][0].data["text/plain"] == str(trains)
    assert upstream.LOADED_BY_OPTIMIZERS == torch.LOADED_BY_OPTIMIZERS  # one name, in two places


def test_a_failure_names_the_cell_and_shows_source_and_traceback(book):
    path = write(book, "02_bad", BAD)
    failure = execute(path, folders=book).failure
    assert failure.startswith("cell 2 of 3:")
    assert "    def divide():\n        return fine / 0" in failure
    assert "ZeroDivisionError: division by zero" in failure
    assert "\x1b" not in failure
    assert "never reached" not in failure


def test_a_failure_is_not_kept(book):
    path = write(book, "02_bad", BAD)
    execute(path, folders=book)
    assert not (book.executed / "02_bad.ipynb").exists()
    assert execute(path, folders=book).executed  # again, and not from a cache


def test_a_failure_drops_what_an_earlier_version_gave(book):
    path = write(book, "02_bad", GOOD)
    assert execute(path, folders=book).failure is None
    write(book, "02_bad", BAD)
    assert execute(path, folders=book).failure
    assert not (book.executed / "02_bad.ipynb").exists()


def test_a_hanging_cell_is_a_failure(book):
    path = write(book, "01_slow", "\n```{code-cell} ipython3\nimport time\ntime.sleep(60)\n```\n")
    failure = execute(path, folders=book, timeout=2).failure
    assert "time.sleep(60)" in failure and "not done after 2 s" in failure


def test_a_dead_kernel_is_a_failure(book):
    path = write(
        book,
        "01_dead",
        "\n```{code-cell} ipython3\nimport os\nos.write(2, b'last words')\nos._exit(3)\n```\n",
    )
    failure = execute(path, folders=book).failure
    assert "os._exit(3)" in failure and "kernel died" in failure
    assert failure.endswith("last words")


def test_what_is_meant_to_fail_must_fail(book):
    cell = "\n```{code-cell} ipython3\n:tags: [raises-exception]\n\n{}\n```\n"
    assert (
        execute(write(book, "01_meant", cell.replace("{}", "1 / 0")), folders=book).failure is None
    )
    failure = execute(write(book, "01_meant", cell.replace("{}", "1 / 1")), folders=book).failure
    assert "tagged raises-exception, and nothing failed" in failure


def test_editing_prose_executes_nothing_and_shows_the_new_prose(book):
    path = write(book, "01_good", GOOD)
    execute(path, folders=book)
    before = outputs(book, "01_good")
    write(book, "01_good", GOOD.replace("is to follow", "is 42") + "\nAnd a new end.\n")
    outcome = execute(path, folders=book)
    assert not outcome.executed and outcome.seconds < 1
    assert outputs(book, "01_good") == before
    text = (book.executed / "01_good.ipynb").read_text()
    assert "The answer is 42." in text and "And a new end." in text and "to follow" not in text


def test_editing_code_executes_again(book):
    path = write(book, "01_good", GOOD)
    execute(path, folders=book)
    write(book, "01_good", GOOD.replace("6 * 7", "6 * 8"))
    assert execute(path, folders=book).executed


USES = """
```{code-cell} ipython3
:tags: [y]

from ranklab.gpu import recorded
from ranklab.taught.pipeline import train
check("bubble", recorded("on_a_card"))
```
"""
FILES = {
    "requirements.txt": "torch==1",
    "ranklab/ranks/ranks.py": "",
    "ranklab/taught/pipeline.py": "from ranklab.taught import (\n    messages,\n)",
    "ranklab/taught/messages.py": "",
    "ranklab/taught/tensor.py": "from ranklab.taught.pipeline import train",
    "ranklab/checks/pipeline/bubble.py": "why = 'hint'",
    "ranklab/checks/pipeline/other.py": "",
    "images/recorded/on_a_card.json": "",
    "images/recorded/another.json": "",
}


def key_of(book, code=USES):
    return cache.key(on_page(manuscript.read(write(book, "01_uses", code))), book, None)


def edit(book, name, text="# edited\n"):
    path = book.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def used(book, monkeypatch):
    """The book with what a chapter uses, and what it does not."""
    monkeypatch.setenv("RANKLAB_RANKS", "4")
    for name, text in FILES.items():
        edit(book, name, text)
    return book


MATTERS = {
    "a tag": lambda book: key_of(book, USES.replace("[y]", "[x]")),
    "the lab": lambda book: edit(book, "ranklab/ranks/ranks.py"),
    "a new file of the lab": lambda book: edit(book, "ranklab/doctor/new.py", ""),
    "a taught module": lambda book: edit(book, "ranklab/taught/pipeline.py"),
    "what that imports": lambda book: edit(book, "ranklab/taught/messages.py"),
    "no check": lambda book: (book.root / "ranklab/checks/pipeline/bubble.py").unlink(),
    "a recording": lambda book: edit(book, "images/recorded/on_a_card.json"),
    "the pins": lambda book: edit(book, "requirements.txt"),
    "the ranks": lambda book: os.environ.update(RANKLAB_RANKS="2"),
}


@pytest.mark.parametrize("change", MATTERS)
def test_what_may_change_a_pages_outputs_changes_its_key(used, change):
    before = key_of(used)
    changed = MATTERS[change](used) or key_of(used)
    assert changed != before


@pytest.mark.parametrize(
    "name",
    [
        "ranklab/taught/tensor.py",
        "ranklab/checks/pipeline/bubble.py",
        "ranklab/checks/pipeline/new.py",
        "images/recorded/another.json",
        "ranklab/ranks/__pycache__/ranks.pyc",
    ],
)
def test_what_a_page_does_not_use_leaves_its_key(used, name):
    before = key_of(used)
    edit(used, name)
    assert key_of(used) == before


def test_each_chapter_reaches_the_taught_modules_that_it_imports():
    """In the book itself: 18 imports one that imports another, and 16 does not import 17's."""

    def reached(number):
        (path,) = HERE.book.glob(f"{number}_*.md")
        code = "\n".join(cell.source for cell in cache.code_cells(manuscript.read(path)))
        return {path.stem for path in cache._reached([code], HERE.root / "ranklab/taught")}

    assert {"layers", "collectives"} <= reached("18")
    assert reached("16") == {"messages"}


def test_half_a_notebook_is_not_taken_for_an_executed_one(book):
    path = write(book, "01_good", GOOD)
    execute(path, folders=book)
    target = book.executed / "01_good.ipynb"
    target.write_text(target.read_text()[:200])
    assert execute(path, folders=book).executed


def test_the_other_chapters_run_when_one_fails_and_no_site_is_built(book, capsys):
    write(book, "01_bad", BAD)
    write(book, "02_good", GOOD)
    assert main(["--root", str(book.root)]) == 1
    out, err = capsys.readouterr()
    assert "01_bad  … failed after" in out and "02_good … " in out
    assert "01_bad failed in cell 2 of 3:" in err and "ZeroDivisionError" in err
    assert err.rstrip().endswith("1 of 2 chapters failed. The site is not built.")
    assert (book.executed / "02_good.ipynb").exists()
    assert not book.html.exists()


def test_the_second_run_says_unchanged(book, capsys):
    write(book, "02_good", GOOD)
    command = ["--root", str(book.root), "--execute-only"]
    assert main(command) == main(command) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(" s") and second == "02_good … unchanged"


def test_who_wants_a_chapter_that_is_under_way_waits_for_it(book):
    write(book, "02_good", GOOD)
    command = [sys.executable, "-m", "bookmaker.site", "--root", str(book.root), "--execute-only"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [run.communicate(timeout=250)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert sum("unchanged" in text for text in said) == 1, said


def test_a_manuscript_that_cannot_be_read_is_one_sentence(book, capsys):
    odd = HEADER.replace("kernelspec", "extra: 1\nkernelspec") + GOOD
    (book.book / "01_odd.md").write_text(odd)
    write(book, "02_good", GOOD)
    assert main(["--root", str(book.root)]) == 1
    out, err = capsys.readouterr()
    assert "01_odd  … cannot be read" in out and "02_good … " in out
    assert "01_odd: the header has" in err and "Traceback" not in err
    assert err.rstrip().endswith("1 of 2 chapters failed. The site is not built.")


def test_each_number_of_ranks_has_a_notebook_of_its_own(book, monkeypatch):
    monkeypatch.delenv("RANKLAB_RANKS", raising=False)
    starts = """
```{code-cell} ipython3
%%time
1
```

```{code-cell} ipython3
# not Ranks(2)
if not answer:
    ranks = Ranks(n=4, timeout=5)
```
"""
    path = write(book, "01_good", GOOD + starts)
    own = module.execute(path, folders=book)
    assert module.execute(path, ranks=4, folders=book) == own  # not executed twice
    two = module.execute(path, ranks=2, folders=book)
    assert two != own and "world 2" in two.read_text() and "world None" in own.read_text()


DIES_ONCE = """
import os, runpy, sys
if not os.path.exists({mark!r}):
    open({mark!r}, "w").close()
    sys.exit(1)
runpy.run_module("ipykernel_launcher", run_name="__main__")
"""


def test_a_kernel_that_dies_before_it_begins_is_started_again(book, tmp_path, monkeypatch):
    usual = module._ThisInterpreter.get_kernel_spec

    def dies_once(self, name):
        spec = usual(self, name)
        program = tmp_path / "dies_once.py"
        program.write_text(DIES_ONCE.format(mark=str(tmp_path / "died")))
        spec.argv = [sys.executable, str(program), "-f", "{connection_file}"]
        return spec

    monkeypatch.setattr(module._ThisInterpreter, "get_kernel_spec", dies_once)
    module.execute(write(book, "01_good", GOOD), folders=book)
    assert (tmp_path / "died").exists()


def test_a_chapter_finds_an_empty_folder(book):
    cell = """
```{code-cell} ipython3
from pathlib import Path
found = sorted(path.name for path in Path().iterdir())
Path("mine").write_text("x")
found
```
"""
    for name in ("01_first", "02_second", "01_first"):
        assert execute(write(book, name, cell), folders=book).failure is None
        assert outputs(book, name)[0][0].data["text/plain"] == "['kernel.log']"
        (book.executed / f"{name}.ipynb").unlink()


def test_a_failure_is_an_error_for_who_asks_for_the_notebook(book):
    with pytest.raises(BookError, match=r"02_bad failed in cell 2 of 3(.|\n)*ZeroDivisionError"):
        module.execute(write(book, "02_bad", BAD), folders=book)


SLOW = """
```{code-cell} ipython3
import os, time
from pathlib import Path
Path("started").write_text(str(os.getpid()))
time.sleep(60)
```
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_end_by_a_signal_ends_the_kernel_and_executes_nothing_more(book, how):
    write(book, "01_slow", SLOW)
    write(book, "02_slow", SLOW)
    started = book.build / "run/01_slow/started"
    command = [sys.executable, "-m", "bookmaker.site", "--root", str(book.root)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        deadline = time.monotonic() + 60
        while not (started.exists() and started.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        run.send_signal(how)
        out, err = run.communicate(timeout=250)
    assert "01_slow … " in out and "02_slow" not in out
    kernel = int(started.read_text())
    if how == signal.SIGINT:
        assert run.returncode == 130
        assert err == "Interrupted. The chapters that were done are kept.\n"
        assert not psutil.pid_exists(kernel)
    deadline = time.monotonic() + 20  # it looks for its parent now and then
    with contextlib.suppress(psutil.NoSuchProcess):
        while not has_ended(psutil.Process(kernel)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
