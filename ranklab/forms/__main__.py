"""``python -m ranklab.forms [--check]``: write every form of every manuscript."""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from ranklab import files
from ranklab.folders import HERE, Folders
from ranklab.forms import manuscript, notebook, taught
from ranklab.forms.errors import FormError
from ranklab.forms.script import to_script


class Forms:
    """Writes the forms under ``root``, or only compares them; keeps what it had to say."""

    def __init__(self, root: Path, check: bool):
        self.root = root
        self.check = check
        self.lines: list[str] = []
        self.failed = False
        self._made: set[Path] = set()

    def run(self) -> None:
        chapters = Folders(self.root).chapters()
        notebooks = [nb for path in chapters if (nb := self._read(path)) is not None]
        # Scripts take over what earlier chapters teach, so that comes first.
        for nb in notebooks:
            name = taught.module_name(manuscript.name_of(nb))
            self._make(nb, f"ranklab/taught/{name}.py", taught.to_module)
        importlib.invalidate_caches()
        for nb in notebooks:
            name = manuscript.name_of(nb)
            self._make(nb, f"notebooks/{name}.ipynb", self._notebook)
            self._make(nb, f"scripts/{name}.py", to_script)
        self._remove_stale()

    def _read(self, path: Path):
        try:
            nb = manuscript.read(path)
        except FormError as error:
            self._fail(str(error))
            self._keep_forms_of(path.stem)
            return None
        self._write(path, manuscript.write(nb))
        return nb

    def _notebook(self, nb) -> str:
        return notebook.write(notebook.to_notebook(nb, self.root))

    def _make(self, nb, name: str, form) -> None:
        """Write ``form(nb)`` to the file ``name``, unless there is no such form (None)."""
        path = self.root / name
        try:
            text = form(nb)
        except FormError as error:
            self._fail(str(error))
            self._made.add(path)
            return
        if text is not None:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        self._made.add(path)
        if self.check:
            same = path.exists() and path.read_bytes() == text.encode()
            if not same:
                self._out_of_step(path)
        elif files.replace(path, text):
            self.lines.append(f"{self._name(path)} written")

    def _remove_stale(self) -> None:
        for path in _generated(self.root):
            if path in self._made:
                continue
            if self.check:
                self._out_of_step(path)
            else:
                path.unlink()
                self.lines.append(f"{self._name(path)} removed: no manuscript gives it any more")

    def _keep_forms_of(self, chapter: str) -> None:
        # A manuscript that cannot be read has forms all the same: those of yesterday.
        module = taught.module_name(chapter)
        for name in (f"notebooks/{chapter}.ipynb", f"scripts/{chapter}.py"):
            self._made.add(self.root / name)
        self._made.add(self.root / f"ranklab/taught/{module}.py")

    def _out_of_step(self, path: Path) -> None:
        self._fail(f"{self._name(path)} is out of step with its manuscript: run `make forms`")

    def _fail(self, line: str) -> None:
        self.lines.append(line)
        self.failed = True

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ranklab.forms", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    parser.add_argument("--from-notebook", type=Path, help="write the manuscript of this notebook")
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.from_notebook:
        return _from_notebook(chosen.from_notebook)
    forms = Forms(chosen.root.resolve(), chosen.check)
    forms.run()
    print("\n".join(forms.lines) if forms.lines else "Every form is in step with its manuscript.")
    return int(forms.failed)


def _from_notebook(path: Path) -> int:
    from ranklab.forms import saving

    try:
        print(saving.write_manuscript(path.resolve()))
    except FormError as error:
        print(error)
        return 1
    return 0


def _generated(root: Path) -> Iterator[Path]:
    """The files that some manuscript once gave, told by what they say of themselves."""
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        if _named_manuscript(path) == f"book/{path.stem}.md":
            yield path
    for path in sorted((root / "scripts").glob("*.py")):
        if _says_generated(path, f"book/{path.stem}.md"):
            yield path
    for path in sorted((root / "ranklab" / "taught").glob("*.py")):
        if _says_generated(path, "book/"):
            yield path


def _says_generated(path: Path, source: str) -> bool:
    head = path.read_text(encoding="utf-8", errors="replace").splitlines()[:3]
    return any("Generated from" in line and source in line for line in head)


def _named_manuscript(path: Path) -> str | None:
    """The manuscript that a notebook says it comes from, be it there or not."""
    try:
        metadata = json.loads(path.read_text(encoding="utf-8")).get("metadata", {})
    except ValueError:
        return None
    return metadata.get("ranklab", {}).get("manuscript")


if __name__ == "__main__":
    sys.exit(main())
