"""Execute one chapter in a kernel of its own, and say exactly what failed if it does."""

import ast
import hashlib
import os
import re
import shutil
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import ipykernel_launcher
import nbformat
from filelock import FileLock
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert.filters import strip_ansi
from nbformat import NotebookNode

import bookmaker
from bookmaker.errors import BookError
from bookmaker.files import replace
from bookmaker.folders import HERE, Folders
from bookmaker.manuscript.manuscript import read, text_at
from bookmaker.notebook.exercise_cells import on_page
from bookmaker.site import cache
from bookmaker.site.forked_kernel import ForkedKernel
from bookmaker.upstream import LOADED_BY_OPTIMIZERS, was_interrupted

CELL_TIMEOUT = 300  # seconds
TRAINS = re.compile(r"\boptim\.|\bDistributedDataParallel\b")


@dataclass
class Outcome:
    """What became of a chapter."""

    name: str
    seconds: float
    executed: bool  # False where the outputs were there already
    failure: str | None = None  # for the author: the cell, its source, what happened


class _ThisInterpreter(KernelSpecManager):
    """Knows one kernel, the interpreter that is running, whatever else is installed."""

    def get_kernel_spec(self, kernel_name):
        return KernelSpec(
            argv=[sys.executable, ipykernel_launcher.__file__, "-f", "{connection_file}"],
            display_name="Python 3",
            language="python",
            metadata={"supported_encryption": "curve"},
        )


class _KernelManager(AsyncKernelManager):
    """Starts that kernel, and encrypts what is said to it: other users share the loopback."""

    def __init__(self, **options):
        super().__init__(kernel_spec_manager=_ThisInterpreter(), **options)
        self.transport_encryption = "auto"
        self.provisioner = ForkedKernel(kernel_spec=self.kernel_spec, parent=self)


class _Failure(Exception):
    """A cell did not do what it should; the message is for the author."""


def execute(manuscript: Path, *, ranks: int | None = None, folders: Folders = HERE) -> Path:
    """The chapter's executed notebook, with `ranks` ranks; executed now if it has to be.

    Raises BookError with the cell, its source and what happened if the chapter fails, and
    FormError if the manuscript cannot be read.
    """
    manuscript = Path(manuscript)
    if starts(read(manuscript)) in (None, ranks) and "RANKLAB_RANKS" not in os.environ:
        ranks = None  # as it does by itself, on its page
    folder = folders.executed / f"{ranks}-ranks" if ranks else folders.executed
    output = folder / f"{manuscript.stem}.ipynb"
    outcome = run_chapter(manuscript, output, ranks=ranks, folders=folders)
    if outcome.failure:
        raise BookError(f"{outcome.name} failed in {outcome.failure}")
    return output


def run_chapter(
    manuscript: Path,
    output: Path,
    *,
    ranks: int | None = None,
    folders: Folders = HERE,
    timeout: float = CELL_TIMEOUT,
) -> Outcome:
    """Write the chapter with its outputs to `output`, executing it if it has to be.

    manuscript: the chapter, such as book/06_messages.md.
    output: the executed notebook. A chapter that fails leaves none behind.
    ranks: how many ranks every `Ranks(...)` starts; the chapter's own number by default.
    timeout: seconds that one cell may take.

    Whoever wants the same at the same time waits for it. Raises FormError if the manuscript cannot
    be read.
    """
    name = manuscript.stem
    text = _digest(manuscript)
    # Of its own for each number of ranks, as they may run side by side.
    folder = folders.build / "run" / (f"{name}-{ranks}" if ranks else name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        start = time.monotonic()
        before = cache.stored(output)
        noted = before.metadata.get("ranklab", {}) if before else {}
        # The same text has the same code, and to read it takes longer than all the rest.
        notebook = before if noted.get("text") == text else on_page(read(manuscript))
        key = cache.key(notebook, folders, ranks)
        if noted.get("key") == key:
            if notebook is not before:
                notebook.metadata["ranklab"]["text"] = text
                _write(cache.merge(notebook, before), output, manuscript)
            return Outcome(name, time.monotonic() - start, executed=False)
        output.unlink(missing_ok=True)
        notebook = on_page(read(manuscript))
        try:
            _run(notebook, folder, ranks, timeout)
        except _Failure as failure:
            seconds = time.monotonic() - start
            return Outcome(name, seconds, executed=True, failure=str(failure))
        seconds = time.monotonic() - start
        notebook.metadata["ranklab"] |= {"key": key, "text": text, "seconds": round(seconds, 1)}
        _write(notebook, output, manuscript)
        return Outcome(name, seconds, executed=True)


def _digest(manuscript: Path) -> str:
    """Of what decides which cells a page has: the manuscript, and who reads it."""
    readers = sorted(Path(bookmaker.__file__).parent.rglob("*.py"))
    texts = [text_at(manuscript), *(path.read_text("utf-8") for path in readers)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def starts(notebook: NotebookNode) -> int | None:
    """How many ranks the chapter starts by itself; None if it has none."""
    for cell in cache.code_cells(notebook):
        try:
            tree = ast.parse(cell.source)
        except SyntaxError:
            continue  # a magic, or a cell that is meant to fail
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name("Ranks") | ast.Attribute(attr="Ranks")):
                    given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "n")]
                    return getattr(given[0], "value", None) if given else 4
    return None


def _run(
    notebook: NotebookNode, folder: Path, ranks: int | None, timeout: float, *, again: bool = True
) -> None:
    """Execute the notebook in place, in a fresh kernel that works in `folder`, emptied first.

    again: is another kernel to be started if this one dies before it begins?
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = []
    client = NotebookClient(
        notebook,
        timeout=timeout,
        startup_timeout=CELL_TIMEOUT,
        # A slow machine may be late with a cell's output. It must not be lost for that.
        iopub_timeout=60,
        raise_on_iopub_timeout=True,
        coalesce_streams=True,
        record_timing=False,
        kernel_manager_class=_KernelManager,
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=lambda cell, cell_index: started.append(cell),
    )
    log = folder / "kernel.log"  # what a process writes past the notebook: last words, above all
    try:
        with log.open("w") as file:
            client.execute(env=_environment(notebook, folder, ranks), stdout=file, stderr=file)
    except Exception as error:
        if was_interrupted(client):
            raise KeyboardInterrupt from None
        if not started:  # no kernel, and no cell to blame
            # Its ports are free when they are chosen, and may be somebody else's when it asks.
            if again and isinstance(error, RuntimeError):
                return _run(notebook, folder, ranks, timeout, again=False)
            raise
        cell = started[-1]
        raise _Failure(_explain(notebook, cell, _what(error, cell, timeout, log))) from None
    for cell in cache.code_cells(notebook):
        _check(notebook, cell)


def _what(error: Exception, cell: NotebookNode, timeout: float, log: Path) -> str:
    """What happened in the cell, for the author."""
    if isinstance(error, CellExecutionError):
        return "\n".join("\n".join(output.traceback) for output in _errors(cell))
    if isinstance(error, CellTimeoutError):
        return f"It was not done after {timeout:g} s."
    if isinstance(error, DeadKernelError):
        words = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        return f"The kernel died: it crashed, was killed, or ran out of memory.\n{words}".rstrip()
    return f"{type(error).__name__}: {error}"


def _check(notebook: NotebookNode, cell: NotebookNode) -> None:
    """A cell that was meant to fail must have failed: it is what the page shows."""
    if "raises-exception" in cell.metadata.get("tags", []) and not _errors(cell):
        what = "It is tagged raises-exception, and nothing failed in it."
        raise _Failure(_explain(notebook, cell, what))


def _environment(notebook: NotebookNode, folder: Path, ranks: int | None) -> dict[str, str]:
    environment = dict(os.environ)
    # Otherwise ipyparallel shortens the errors of several ranks and draws progress bars.
    environment["IPP_NONINTERACTIVE"] = "1"
    environment.setdefault("IPYTHONDIR", str(folder.parents[1] / "ipython"))
    if ranks:
        environment["RANKLAB_RANKS"] = str(ranks)
    if any(TRAINS.search(cell.source) for cell in cache.code_cells(notebook)):
        environment.setdefault("RANKLAB_PRELOAD", LOADED_BY_OPTIMIZERS)
    return environment


def _explain(notebook: NotebookNode, cell: NotebookNode, what: str) -> str:
    """The failure as the author reads it: which cell, its source, what happened."""
    cells = cache.code_cells(notebook)
    number = next(i for i, candidate in enumerate(cells, 1) if candidate is cell)
    source = textwrap.indent(cell.source, "    ")
    return f"cell {number} of {len(cells)}:\n\n{source}\n\n{strip_ansi(what)}"


def _errors(cell: NotebookNode) -> list[NotebookNode]:
    return [output for output in cell.outputs if output.output_type == "error"]


def _write(notebook: NotebookNode, output: Path, manuscript: Path) -> None:
    comment = f"% Executed from book/{manuscript.name} by `make book`. Edit that file."
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell(comment, id="executed-from"))
    replace(output, nbformat.writes(notebook))
