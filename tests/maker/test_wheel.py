"""What a reader installs: the lab and the exporter, and none of what makes the book."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGED = ("ranklab", "bookmaker", "pyproject.toml", "README.md", "LICENSE")
MAKES_THE_BOOK = {"sphinx", "jupyter-book", "jupyterlab", "myst-nb", "nbclient", "nbconvert"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder in which the files of the wheel lie, as in somebody's site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for name in PACKAGED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / "source" / name)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*build, "-w", folder, folder / "source"], check=True)
    shutil.rmtree(folder / "source")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder / "site")
    return folder / "site"


def needed(installed, extra=""):
    """The names of all packages that a reader gets with the lab, as far as they are here."""
    (lab,) = installed.glob("*.dist-info")
    found, left = set(), [("ranklab", extra)]
    while left:
        name, extra = left.pop()
        if name in found:
            continue
        found.add(name)
        try:
            of = (
                metadata.PathDistribution(lab) if name == "ranklab" else metadata.distribution(name)
            )
        except metadata.PackageNotFoundError:  # of another system
            continue
        for text in of.requires or ():
            wanted = re.search(r"extra == ['\"]([\w-]+)", text)
            if not wanted or wanted[1] == extra:
                left.append((re.match(r"[\w.-]+", text)[0].lower().replace("_", "-"), ""))
    return found


def imported(files):
    """The names of the packages that these files import, at once or later."""
    names = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"ranklab", "bookmaker"}


def test_it_is_the_lab_and_the_exporter(installed):
    names = {str(file.relative_to(installed).parent) for file in installed.rglob("*.py")}
    here = {str(file.relative_to(ROOT).parent) for file in (ROOT / "ranklab").rglob("*.py")}
    assert here <= names
    assert "bookmaker/script" in names
    assert not {name for name in names if re.match(r"bookmaker/(site|forms)|tests", name)}


def test_it_brings_nothing_that_makes_the_book(installed):
    assert not needed(installed) & MAKES_THE_BOOK
    # The one needs the other.
    assert needed(installed, "script") & MAKES_THE_BOOK == {"nbconvert", "nbclient"}


def loaded(installed, *modules):
    """The files of ours that are loaded with these modules, where nothing else of ours is."""
    code = f"import sys, {', '.join(modules)}; print(*(m.__file__ for m in sys.modules.values()"
    code += " if m and m.__name__.startswith(('ranklab', 'bookmaker'))), sep='\\n')"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=installed,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [Path(line) for line in ran.stdout.splitlines()]
    assert all(file.is_relative_to(installed) for file in files)
    return files


def test_the_lab_brings_all_that_it_imports(installed):
    assert loaded(installed, "ranklab.ranks", "ranklab.exercises", "ranklab.gpu")
    with_mpi = needed(installed, "mpi")  # for ranks under MPI, and by functions that they call
    assert with_mpi - needed(installed) == {"mpi4py", "mpich"}
    brought_by(with_mpi, imported((installed / "ranklab").rglob("*.py")))


def test_the_exporter_brings_all_that_it_imports(installed):
    files = loaded(installed, "bookmaker.script")
    # Only who writes manuscripts needs jupytext.
    brought_by(needed(installed, "script"), imported(files) - {"jupytext"})


def brought_by(packages, names):
    of = metadata.packages_distributions()
    for name in names:
        assert {one.lower().replace("_", "-") for one in of[name]} & packages, name
