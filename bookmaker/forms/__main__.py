"""``python -m bookmaker.forms [--check]``: write every form of every manuscript.

What a reader has written into a stub is kept, in a notebook and in a file to work in.
"""

import argparse
import gc
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bookmaker import contents, files
from bookmaker.errors import BookError, FormError
from bookmaker.folders import HERE, Folders
from bookmaker.forms import exercise_files, solutions, teacher
from bookmaker.manuscript import exercises, header, lengths, manuscript
from bookmaker.notebook import notebook, readers_answers
from bookmaker.script import program_script, to_script
from bookmaker.taught import taught


class Forms:
    """Writes the forms under ``root``, or only compares them; keeps what it had to say.

    stubs: whether stubs are written over the answers of a reader.
    """

    def __init__(self, root: Path, check: bool, stubs: bool = False):
        self.root = root
        self.check = check
        self.stubs = stubs
        self.lines: list[str] = []
        self.failed = False
        self._made: set[Path] = set()
        self._given: dict[str, str] = {}  # taught modules and programs -> their chapters

    def run(self) -> None:
        chapters = Folders(self.root).chapters()
        notebooks = [nb for path in chapters if (nb := self._read(path)) is not None]
        # Scripts take over what earlier chapters teach, so that comes first.
        for nb in notebooks:
            self._make_files(nb, taught.files)
        importlib.invalidate_caches()
        for nb in notebooks:
            name = manuscript.name_of(nb)
            self._make(nb, f"notebooks/{name}.ipynb", self._notebook)
            self._make(nb, f"scripts/{name}.py", to_script)
            self._make_files(nb, program_script.files)
            self._make(nb, solutions.path_of(name), solutions.to_solutions)
            self._make_files_to_work_in(nb)
        self._check_labels(notebooks)
        self._list_chapters()
        self._remove_stale()

    def _list_chapters(self) -> None:
        readme = self.root / "README.md"
        if readme.exists():
            try:
                text = contents.in_readme(readme.read_text("utf-8"), Folders(self.root))
                self._write(readme, text)
            except (BookError, FormError) as error:
                self._fail(str(error))

    def _read(self, path: Path):
        try:
            header.read(path)
            nb = lengths.with_minutes(manuscript.read(path))
        except FormError as error:
            self._fail(str(error))
            self._keep_forms_of(path.stem)
            return None
        self._write(path, manuscript.write(nb))
        return nb

    def _notebook(self, nb) -> str | None:
        form = notebook.to_notebook(nb, self.root)
        name = f"notebooks/{manuscript.name_of(nb)}.ipynb"
        kept = {} if self.stubs else readers_answers.in_notebook(self.root / name, name)
        if not kept:
            return notebook.write(form)
        what = f"{name} holds an answer to {', '.join(f'`{exercise}`' for exercise in kept)}"
        form = readers_answers.put(form, kept, name)
        self._made.add(self.root / name)
        self._work_found(what)
        return None if self.check else notebook.write(form)

    def _make_files_to_work_in(self, nb) -> None:
        for name, text in self._texts(nb, exercise_files.files).items():
            path = self.root / name
            if not self.stubs and self._is_worked_on(path):
                self._made.add(path)
                self._work_found(f"{name} holds an answer")
            else:
                self._write(path, text)

    def _is_worked_on(self, path: Path) -> bool:
        if not path.exists():
            return False
        # What is not UTF-8 was not written here, and so differs from what was.
        return exercise_files.is_worked_on(path.read_text(encoding="utf-8", errors="replace"))

    def _work_found(self, what: str, otherwise: str = "brings the stub back") -> None:
        """Somebody's answer: it stays, but what is committed holds stubs."""
        if self.check:
            self._fail(f"{what}: `make forms ARGS=--stubs` {otherwise}")
        else:
            self.lines.append(f"{what}: kept")

    def _check_labels(self, notebooks: list) -> None:
        """The checks of all chapters are known by their names alone."""
        seen: dict[str, str] = {}
        for nb in notebooks:
            chapter = manuscript.name_of(nb)
            try:
                labels = [exercise.label for exercise in exercises.find(nb)]
            except FormError:
                continue  # said already
            for label in labels:
                if label in seen:
                    self._fail(
                        f"{chapter}: there is an exercise with the label `{label}` in "
                        f"{seen[label]}, too. Give one of the two another label."
                    )
                seen[label] = chapter

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

    def _make_files(self, nb, forms) -> None:
        """Write the files that ``forms(nb)`` gives, path -> text."""
        chapter = manuscript.name_of(nb)
        for name, text in self._texts(nb, forms).items():
            other = self._given.setdefault(name, chapter)
            if other != chapter:
                self._fail(f"{chapter}: {name} is what {other} gives, too. Take another name.")
            else:
                self._write(self.root / name, text)

    def _texts(self, nb, forms) -> dict[str, str]:
        """What ``forms(nb)`` gives, path -> text; nothing if it fails: then all stays as it is."""
        try:
            return forms(nb)
        except FormError as error:
            self._fail(str(error))
            self._keep_forms_of(manuscript.name_of(nb))
            return {}

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
            if path in self._made or (not self.stubs and self._is_kept(path)):
                continue
            if self.check:
                self._out_of_step(path)
            else:
                path.unlink()
                self.lines.append(f"{self._name(path)} removed: no manuscript gives it any more")

    def _is_kept(self, path: Path) -> bool:
        """Whether a file that no manuscript gives any more holds an answer, or may hold one."""
        name = self._name(path)
        try:
            if path.suffix == ".ipynb":
                holds = bool(readers_answers.in_notebook(path, name))
            else:
                in_folder = path.parent == self.root / exercise_files.FOLDER
                holds = in_folder and self._is_worked_on(path)
        except FormError as error:
            self._fail(str(error))
            return True
        if holds:
            what = f"{name}, which no manuscript gives any more, holds an answer"
            self._work_found(what, "removes it")
        return holds

    def _keep_forms_of(self, chapter: str) -> None:
        # A manuscript that cannot be read has forms all the same: those of yesterday.
        source = f"book/{chapter}.md"
        for path in _generated(self.root):
            if source == _named_manuscript(path) or _says_generated(path, source):
                self._made.add(path)
        self._keep_files_of(chapter)

    def _keep_files_of(self, chapter: str) -> None:
        folder = self.root / exercise_files.FOLDER
        self._made.update(folder.glob(f"{chapter[:2]}_*.py"))

    def _out_of_step(self, path: Path) -> None:
        self._fail(f"{self._name(path)} is out of step with its manuscript: run `make forms`")

    def _fail(self, line: str) -> None:
        self.lines.append(line)
        self.failed = True

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bookmaker.forms", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    parser.add_argument("--stubs", action="store_true", help="write stubs over a reader's answers")
    parser.add_argument("--script", metavar="NAME", help="print the script of this chapter")
    parser.add_argument(
        "--exercises", action="store_true", help="with --script: its exercises are in it"
    )
    parser.add_argument(
        "--teacher", type=Path, metavar="FOLDER", help="write assignments for nbgrader"
    )
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    special = _special(chosen)
    if special is not None:
        return _printed(special)
    forms = Forms(chosen.root.resolve(), chosen.check, chosen.stubs)
    forms.run()
    print("\n".join(forms.lines) if forms.lines else "Every form is in step with its manuscript.")
    return int(forms.failed)


def _special(chosen: argparse.Namespace) -> Callable[[], str] | None:
    """What the command is to do, and print, if not to write or compare the forms."""
    folders = Folders(chosen.root.resolve())
    if chosen.script:
        return lambda: _script(folders, Path(chosen.script).stem, chosen.exercises)
    if chosen.teacher:
        return lambda: "\n".join(teacher.write(folders, chosen.teacher))
    return None


def _script(folders: Folders, name: str, with_exercises: bool) -> str:
    path = folders.book / f"{name}.md"
    if path not in folders.chapters():
        known = ", ".join(chapter.stem for chapter in folders.chapters())
        raise FormError(f"There is no chapter {name}. There are {known}.")
    return to_script(manuscript.read(path), exercises=with_exercises).rstrip("\n")


def _printed(text: Callable[[], str]) -> int:
    try:
        print(text())
    except FormError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _generated(root: Path) -> Iterator[Path]:
    """The files that some manuscript once gave, told by what they say of themselves."""
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        if _named_manuscript(path) == f"book/{path.stem}.md":
            yield path
    for path in sorted((root / "scripts").glob("*.py")):
        if _says_generated(path, f"book/{path.stem}.md") or _says_generated(path, path.name):
            yield path
    for path in sorted((root / exercise_files.FOLDER).glob("*.py")):
        if _says_generated(path, "book/"):
            yield path
    folder = root / "ranklab"
    for path in sorted([*folder.glob("taught/*.py"), *folder.glob("checks/*/solutions.py")]):
        if _says_generated(path, "book/"):
            yield path


def _says_generated(path: Path, source: str) -> bool:
    head = path.read_text(encoding="utf-8", errors="replace").splitlines()[:3]
    return any("Generated from" in line and source in line for line in head)


def _named_manuscript(path: Path) -> str | None:
    """The manuscript that a notebook says it comes from, be it there or not."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["metadata"]["ranklab"]["manuscript"]
    except (ValueError, KeyError, TypeError):  # no JSON, or somebody else's
        return None


if __name__ == "__main__":
    gc.disable()  # little is thrown away in these seconds, and to look for it takes a sixth
    sys.exit(main())
