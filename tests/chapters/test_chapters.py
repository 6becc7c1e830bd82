"""Every chapter says the same on its page, in its notebook and as a script, however started."""

import ast
import re
from pathlib import Path

import nbformat
import pytest
from launch import results_in, run_script
from tiers import few

from bookmaker.manuscript import header
from bookmaker.manuscript.manuscript import read
from bookmaker.site.execute import execute, starts

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
CHAPTERS = sorted((ROOT / "book").glob("[0-9][0-9]_*.md"))
HEADERS = {path: header.read(path) for path in CHAPTERS}
# What a script does about its launcher is the same in all of them, to the letter: those of the
# first chapters take turns, by their numbers. The ranks of the others are forked here, a third less
# of work.
TURNS = ["alone", "torchrun", "mpiexec"]
IN_TURN = 1, 2, 3
# In `make test-all`, every script is run in all of these.
ALL_WAYS = [("alone", 4), ("torchrun", 2), ("alone", 2), ("mpiexec", 4)]


def usual(chapter):
    """How the script of a chapter is started in `make test`: (launcher, ranks)."""
    said, number = HEADERS[chapter], int(chapter.stem[:2])
    turns = [launcher for launcher in TURNS if launcher in said.launchers]
    forked = "forked" if "torchrun" in turns else "forked-mpi"
    return forked if number not in IN_TURN else turns[number % len(turns)], said.ranks[0]


def ways(chapter):
    """All ways of starting it, in `make test-all`."""
    said = HEADERS[chapter]
    return [(by, n) for by, n in ALL_WAYS if by in said.launchers and n in said.ranks]


USUAL = [(path, *usual(path)) for path in CHAPTERS]
RUNS = sorted({*USUAL, *((path, *way) for path in CHAPTERS for way in ways(path))})
# The site has every page with the chapter's own number (None): it is what most are compared with.
PAGES = [(path, n) for path in CHAPTERS for n in (None, *HEADERS[path].ranks)]
USUAL_PAGES = {(path, None) for path in CHAPTERS} | {(path, n) for path, _, n in USUAL}


def in_words(part):
    """The name of a chapter, or what else a test is given."""
    return getattr(part, "stem", str(part or "site"))


def results_of(notebook):
    """name -> (value as text, varies) of every result in an executed notebook."""
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    records = [o["metadata"]["ranklab"] for o in outputs if "ranklab" in o.get("metadata", {})]
    return {r["name"]: (str(r["value"]), r["varies"]) for r in records}


def fixed(results):
    """name -> value, of the results that are the same in every run."""
    return {name: value for name, (value, varies) in results.items() if not varies}


def page(chapter, ranks):
    """The results of a chapter's executed page."""
    return results_of(nbformat.read(execute(chapter, ranks=ranks), as_version=4))


@pytest.mark.parametrize(
    "chapter, ranks", few(PAGES, lambda *row: row in USUAL_PAGES), ids=in_words
)
def test_a_page_has_results(chapter, ranks):
    assert fixed(page(chapter, ranks)), "no result that can be compared"


@pytest.mark.parametrize(
    "chapter, launcher, ranks", few(RUNS, lambda *row: row in USUAL), ids=in_words
)
def test_the_script_says_what_the_page_says(chapter, launcher, ranks, tmp_path):
    script = SCRIPTS / f"{chapter.stem}.py"
    # What `ranklab.gpu` measures is left out where ranklab is not installed.
    measures = "from ranklab.gpu import" in script.read_text()
    said = run_script(script, launcher, ranks, tmp_path, with_ranklab=measures)
    there, expected = results_in(said), page(chapter, ranks)
    missing = sorted(set(expected) - set(there))
    assert not missing, f"the script never prints {missing}"
    differ = {
        name: {"page": value, "script": there[name]}
        for name, value in fixed(expected).items()
        if there[name] != value
    }
    assert not differ


LAUNCH = re.compile(r"^def start_ranks.*^form_groups\(\)$", re.MULTILINE | re.DOTALL)
OWN = re.compile(
    r"(?<=seconds=)[\d.]+|(?<=RANKS\", \")\d+|(?<= = choose_device)\(.*\)"
    # What MPI's scripts import when they are ranks, beside what their launch needs.
    r"|^(import|from) (?!torch\b|mpi4py\b)[^(\n]*(\([^)]*\))?\n"
    r"|(?<=\bstore)_\b|(?<=\bend_all)_\b",  # the chapter has this name, too
    re.MULTILINE,
)
OF_DEVICES = re.compile(r"^def (choose|send_over_host)|\bdevice\b")


def _same(own):
    return "0" if own[0][0].isdigit() else ""


def launch_of(script):
    """What a script does until its ranks are a group, but for what the chapter decides."""
    text = OWN.sub(_same, LAUNCH.search((SCRIPTS / f"{script}.py").read_text())[0])
    return [ast.get_source_segment(text, statement) for statement in ast.parse(text).body]


def test_all_scripts_are_launched_by_the_same_text():
    """Those whose ranks talk through MPI, among themselves. Not all need the parts for a GPU."""
    with_ranks = [path for path in CHAPTERS if starts(read(path))]
    for by_mpi in (False, True):
        alike = [p for p in with_ranks if by_mpi == ("torchrun" not in HEADERS[p].launchers)]
        launches = [launch_of(path.stem) for path in alike]
        functions = {part for launch in launches for part in launch if part.startswith("def ")}
        assert len({part.split("(")[0] for part in functions}) == len(functions)
        done = {
            tuple(part for part in launch if not OF_DEVICES.search(part)) for launch in launches
        }
        assert len(done) == 1
