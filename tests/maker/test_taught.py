"""Definitions taken from a module, and the `#@save` cells of a chapter as a module."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from small_book import HEADER

from bookmaker.errors import FormError
from bookmaker.manuscript import manuscript
from bookmaker.script.read.scopes import names_in
from bookmaker.taught import symbols, taught
from bookmaker.taught.definitions import bound_names, free_names, take

SAMPLES = Path(__file__).parent / "manuscripts"

MODULE = '''\
"""A module."""

from __future__ import annotations

import os.path, sys as system
from math import (
    pi,  # the number
    tau,
)

# How many.
# Not more.
COUNT: int = 3; TABLE = {"a": COUNT}
TABLE["b"] = tau
TABLE.update(c=1)
unused = pi


#@save
# Comments above belong to it.
@staticmethod
def outer(n=COUNT):
    """Doc."""

    def inner(pi):
        return pi + helper(os.path.sep)

    return inner


if system.byteorder == "little":
    def helper(x):
        return len(x)
else:
    def helper(x):
        return BIG


class Base:
    size = COUNT


class Derived(Base):
    unused = 1

    def f(self):
        return unused_too  # noqa: F821
'''


def test_take_brings_all_that_a_definition_needs_and_nothing_else():
    taken = take(MODULE, ["outer"])
    assert taken.imports == [
        "from __future__ import annotations",
        "import os.path",
        "import sys as system",
    ]
    first = [code.splitlines()[0] for code in taken.code]
    assert first == [
        "# How many.",
        "# Comments above belong to it.",
        'if system.byteorder == "little":',
    ]


def test_take_follows_constants_that_are_changed_after_their_definition():
    taken = take(MODULE, ["TABLE"])
    assert taken.imports == ["from __future__ import annotations", "from math import tau"]
    assert taken.code[1:] == ['TABLE["b"] = tau', "TABLE.update(c=1)"]


def test_take_reads_scopes_as_python_does():
    # `inner` has a parameter `pi`, so the imported one is not needed.
    assert "pi" not in free_names("def inner(pi):\n    return pi")
    assert [code.splitlines()[0] for code in take(MODULE, ["Derived"]).code] == [
        "# How many.",
        "class Base:",
        "class Derived(Base):",
    ]


def test_take_of_an_imported_name_is_its_import():
    assert take(MODULE, ["tau"]) == (
        ["from __future__ import annotations", "from math import tau"],
        [],
    )


def test_take_refuses_a_name_that_is_not_there():
    with pytest.raises(FormError, match="there is no `nobody`"):
        take(MODULE, ["outer", "nobody"])


def test_taken_code_runs_by_itself():
    taken = take(MODULE.replace("@staticmethod\n", ""), ["outer"])
    space = {}
    exec("\n".join([*taken.imports, *taken.code]), space)
    assert space["outer"]()(1) == 2


def chapter(*cells: str):
    """A chapter whose code cells are these."""
    body = "\n".join(f"```{{code-cell}} ipython3\n{cell}\n```\n" for cell in cells)
    return manuscript.parse(f"{HEADER}\n# A title\n\n{body}", "book/06_messages.md")


def module(nb):
    """The source of the one module of a chapter."""
    (source,) = taught.files(nb).values()
    return source


def test_the_sample_chapter_gives_a_module(tmp_path):
    source = module(manuscript.read(SAMPLES / "92_saved.md"))
    lines = source.splitlines()
    assert lines[0].startswith("# Generated from manuscripts/92_saved.md by `make forms`")
    assert lines[2] == '"""Functions that are saved: what chapter 92_saved teaches."""'
    assert [line for line in lines if "import" in line] == [
        "import statistics",
        "import time as clock",
        "import numpy as np",
        "import torch",
        "import torch.distributed as dist",
    ]
    assert "REPEATS = 3  # enough for a median" in lines
    assert "# The slowest rank's time counts." in lines
    assert "UNUSED" not in source and "#@save" not in source
    path = tmp_path / "saved.py"
    path.write_text(source)
    run = [sys.executable, "-c", "import saved; print(saved.median_time(lambda: None) >= 0)"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.stdout == "True\n", done.stderr


def test_a_chapter_that_saves_nothing_has_no_module():
    assert taught.files(chapter("x = 1  #@save", '"#@save"')) == {}


REFUSED = {
    "a rank's name": (
        ["#@save\ndef f():\n    return rank"],
        r"^06_messages, cell 1 \(`#@save`\): the saved `f` reads `rank`, .*messages.py will not "
        r"have. Call `dist.get_rank\(\)`",
    ),
    "another cell's variable": (
        ["n = 3", "%%px\n#@save\ndef f():\n    return n"],
        r"^06_messages, cell 2 \(`%%px`\): the saved `f` reads `n`, .* beside `f`",
    ),
    "another cell's variable as a default": (
        ["n = 3", "#@save\ndef f(m=n):\n    return m"],
        r"cell 2 .* reads `n`",
    ),
    "the name in a helper class": (
        ["#@save\nclass A:\n    x = device\n\n\ndef f():\n    return A"],
        r"cell 1 .* the saved `A` reads `device`",
    ),
    "a function that is not saved": (
        ["def g():\n    pass", "#@save\ndef f():\n    return g()"],
        r"cell 2 .* reads `g`",
    ),
    "the notebook's result": (
        ["from ranklab import result", "#@save\ndef f():\n    result('x', 1)"],
        r"uses `result`, which belongs to the notebook",
    ),
    "one name, two imports": (
        ["import numpy as np", "from math import pi as np", "#@save\ndef f():\n    return np"],
        r"imports in two ways",
    ),
    "saved twice": (
        ["#@save\ndef f():\n    pass", "#@save\ndef f():\n    return 1"],
        r"cell 2 .*: `f` is saved already, in 06_messages, cell 1",
    ),
    "a module of two words": (
        ["#@save my ddp\ndef f():\n    pass"],
        r"cell 1 .*before the name of a module: `#@save own_ddp`",
    ),
    "modules in a circle": (
        ["#@save\ndef f():\n    return g()", "#@save other\ndef g():\n    return f()"],
        r"^06_messages: the taught modules `messages` and `other` need each other",
    ),
    "another module's constant": (
        ["#@save\nN = 3\n\n\ndef f(n=N):\n    return n", "#@save other\ndef g():\n    return N"],
        r"cell 2 .* reads `N`, which ranklab/taught/other.py will not have",
    ),
    "nothing to save": (["#@save\nprint(1)"], r"there is none in this cell"),
    "a magic": (["#@save\n%time\ndef f():\n    pass"], r"must be plain Python, and its line 2"),
    "a star import": (
        ["from math import *", "#@save\ndef f():\n    pass"],
        r"cell 1 .*: `from math import \*` hides",
    ),
    "what ruff finds": (["#@save\ndef f():\n    l = 1\n    return l"], r"ruff .*\n.*E741"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_module_cannot_have_is_refused(case):
    cells, message = REFUSED[case]
    with pytest.raises(FormError, match=message):
        taught.files(chapter(*cells))


def test_a_chapter_may_save_a_second_module():
    """What it needs of the first one it imports from there."""
    nb = chapter(
        "import math\nfrom types import SimpleNamespace",
        "#@save\ndef area(r):\n    return math.pi * r**2",
        "#@save solids\ndef cylinder(r, h):\n    return area(r) * h",
        "%%px\n#@save solids\nsolid = SimpleNamespace(cylinder=cylinder)",
        "%%px\nfrom ranklab.taught.messages import area",  # on the ranks, which need it, too
    )
    first, second = taught.files(nb).items()
    assert first[0] == "ranklab/taught/messages.py"
    assert "\nimport math\n" in first[1] and "cylinder" not in first[1]
    assert "ranklab.taught" not in first[1]
    assert second[0] == "ranklab/taught/solids.py"
    assert "\nfrom ranklab.taught.messages import area\n" in second[1]
    assert "import math" not in second[1] and "def area" not in second[1]
    assert "\nsolid = SimpleNamespace(cylinder=cylinder)\n" in second[1]
    assert "#@save" not in first[1] + second[1]


def test_imports_of_submodules_may_be_many():
    source = module(
        chapter("import os.path\nimport os", "#@save\ndef f():\n    return os.path.sep")
    )
    assert "import os\nimport os.path\n" in source


def test_saved_code_may_use_what_earlier_chapters_teach():
    cells = ["from ranklab.taught.messages import ping", "#@save\ndef f():\n    return ping(4)"]
    assert "from ranklab.taught.messages import ping" in module(chapter(*cells))


def test_a_magic_elsewhere_does_not_matter():
    cells = ["!ls", "raise (", "#@save\ndef f():\n    return torch.ones(1)"]
    assert "import torch\n" in module(chapter(*cells))


# Comprehensions: Python 3.12 took their scopes out of the symbol table.

COMPREHENSIONS = ["[i for i in A]", "{i for i in A}", "{i: 1 for i in A}", "[[i] for i in A][0]"]


@pytest.mark.parametrize("expression", COMPREHENSIONS)
def test_the_names_of_a_comprehension_are_its_own(expression):
    source = f"X = {expression}"
    (statement,) = ast.parse(source).body
    assert bound_names(statement) == {"X"}
    assert free_names(source) == {"A"}
    names = names_in(statement)
    assert (names.binds, names.reads, names.later) == ({"X"}, {"A"}, set())


@pytest.mark.parametrize("expression", COMPREHENSIONS)
def test_a_comprehension_is_a_scope_for_every_python(expression):
    (scope,) = symbols.table(f"X = {expression}").get_children()
    assert scope.get_name() == "genexpr"
    assert scope.lookup("i").is_local()


def test_what_a_comprehension_binds_outside_of_it_is_bound():
    (statement,) = ast.parse("X = [last := i for i in A]").body
    assert names_in(statement).binds == {"X", "last"}
