"""The script exporter beyond its table: control flow, text, prose, random numbers, chapters."""

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path
from statistics import median

import pytest
from nbformat import v4
from small_notebooks import IMPORTS, RANKS, body, notebook, same, whole, with_ranks
from tiers import few

from bookmaker.errors import FormError
from bookmaker.folders import HERE
from bookmaker.manuscript import manuscript, programs
from bookmaker.notebook import notebook as notebook_form
from bookmaker.script import ScriptExporter, to_script

# ---- loops and conditions ------------------------------------------------------------------


def test_a_loop_that_all_ranks_take_part_in():
    same(
        body('sizes = [1, 2]\nfor n in sizes:\n    ranks["m"] = n\n    print(n)\n'),
        """
        if rank == 0:
            sizes = [1, 2]

        for n in in_step(lambda: sizes):
            everyone()
            m = from_rank_0(lambda: n)
            if rank == 0:
                print(n)
        """,
    )


def test_loops_over_literals_need_no_rank_0():
    assert "for n in (1, 2):" in body('for n in (1, 2):\n    ranks["m"] = n')
    assert "for n in range(world_size):" in body(
        'for n in range(ranks.world_size):\n    ranks["m"] = n'
    )


def test_a_loop_over_pairs():
    assert (
        "for item in in_step(lambda: enumerate(s)):\n    if rank == 0:\n        i, n = item"
        in body('s = "ab"\nfor i, n in enumerate(s):\n    ranks["m"] = n')
    )


def test_break_belongs_to_the_loop_of_all():
    text = body(
        'for n in (1, 2):\n    ranks["n"] = n\n    if n > 1:\n        print(n)\n        break'
    )
    assert (
        "    if from_rank_0(lambda: bool(n > 1)):\n        if rank == 0:\n            print(n)\n"
        in text
    )
    assert text.endswith("        break")


def test_break_of_an_inner_loop_is_rank_0s():
    text = body('for n in (1, 2):\n    ranks["n"] = n\n    for m in (3, 4):\n        break')
    assert "        for m in (3, 4):\n            break" in text


def test_conditions():
    text = body(
        'y = 1\nif y:\n    ranks["a"] = 1\nelif ranks.world_size > 2:\n    ranks["a"] = 2\n'
        "else:\n    y = 3"
    )
    same(
        text,
        """
        if rank == 0:
            y = 1

        if from_rank_0(lambda: bool(y)):
            a = 1
        elif world_size > 2:
            a = 2
        else:
            if rank == 0:
                y = 3
    """,
    )


def test_an_elif_that_pulls():
    text = body(
        "%%px\nx = 1", 'y = 1\nif y:\n    ranks["a"] = 1\nelif ranks["x"][0]:\n    ranks["a"] = 2'
    )
    assert (
        "else:\n    x_by_rank = to_rank_0(x)\n    if from_rank_0(lambda: bool(x_by_rank[0])):"
        in text
    )


def test_while():
    text = body('n = 3\nwhile n:\n    ranks["n"] = n\n    n -= 1')
    assert "while from_rank_0(lambda: bool(n)):" in text


def test_else_of_a_loop():
    text = body('for n in (1, 2):\n    ranks["n"] = n\nelse:\n    print(n)')
    assert "\nelse:\n" in text and ast.parse(text)


# ---- the author's text -----------------------------------------------------------------------


def test_the_text_of_strings_is_kept():
    cell = 's = """\n  two\n    four\n"""\ndef f():\n    t = """\nzero"""\n    return t\nx = f()'
    text = body(cell)
    assert 's = """\n  two\n    four\n"""' in text
    values = {}
    exec(text, {"rank": 0}, values)
    assert values["s"] == "\n  two\n    four\n" and values["x"] == "\nzero"


def test_text_that_is_not_ascii():
    same(body('λ = "é"; µ = len(ranks) + 1'), 'if rank == 0:\n    λ = "é"\n    µ = world_size + 1')


def test_what_looks_like_a_magic():
    cell = 'a, b = 7, 4\nc = a % b\ns = """\n!ls\n%px\n"""\nd = (a\n% b)'
    assert "% b)" in body(cell) and "!ls\n%px\n" in body(cell)


def test_comments_alone():
    assert body("# nothing to do") == "# nothing to do"
    assert body("x = 1\n# the end").endswith("# the end")


def test_preamble_names_give_way():
    text = with_ranks(
        "store = 1\npickle = 2\ndef show():\n    pass\n[store, pickle]", 'ranks["n"] = [store]'
    )
    assert "import pickle as pickle_" in text and "pickle_.dumps" in text
    assert "store_ = next(dist.rendezvous" in text and "store=own" in text
    assert "show_([store, pickle])" in text


def test_a_name_may_pass_on_both_sides():
    assert body("for i in range(2):\n    print(i)", "%%px\nfor i in range(2):\n    print(i)")


def test_the_same_definition_on_both_sides():
    assert body("def f():\n    return 1", "%%px\ndef f():\n    return 1")


def test_a_handlers_name_may_be_on_both_sides():
    cell = "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    print(e)"
    assert body(cell, f"%%px\n{cell}")


def test_what_stood_in_parentheses_over_two_lines():
    text = body(
        'ranks["n"] = (1 +\n  2)', 'if (len(ranks) > 1 and\n    len(ranks)):\n    ranks["m"] = 1'
    )
    assert "n = (1 +\n  2)" in text and "if (world_size > 1 and\n    world_size):" in text


def test_the_kernel_may_trace_itself():
    text = with_ranks("from ranklab import trace\nwith trace() as t:\n    pass")
    assert "    trace = untraced\n" in text and "    with trace() as t:\n        pass" in text


def test_result_under_another_name():
    text = whole("from ranklab import result as r\nr('a', 1)")
    assert "\nr = result\n" in text and text.endswith("r('a', 1)\n")


def test_a_function_of_the_ranks_may_read_what_is_pushed_later():
    assert body("%%px\ndef f():\n    return n", 'n = 3\nranks["n"] = n', "%%px\nf()")


# ---- prose, inlined code, the file ---------------------------------------------------------------


def test_prose():
    nb = notebook("x = 1")
    text = (
        "# Title\n\nA {term}`rank`. " + "word " * 30 + "\n\n- one\n- two\n\n```\ncode   here\n```\n"
    )
    nb.cells.insert(0, v4.new_markdown_cell(text))
    script = to_script(nb)
    assert "\n# === Title ====" in script and "# A rank. word" in script
    assert "\n# - one\n# - two\n" in script and "# code   here\n" in script
    assert max(len(line) for line in script.splitlines() if line.startswith("#")) <= 88


def test_a_plain_notebook_needs_one_process():
    text = whole("x = 1\nx")
    assert "if rank == 0" not in text and "torch" not in text
    assert 'for name in ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")' in text


@pytest.mark.parametrize(
    ("cell", "name", "shown"),
    [
        ("from ranklab.plots import drawing", "drawing", "drawing"),
        ("from ranklab.plots import drawing as d", "d", "d"),
        ("from ranklab import plots", "plots.drawing", "drawing"),
        ("import ranklab", "ranklab.plots.drawing", "drawing"),
        ("import ranklab.plots as p", "p.drawing", "drawing"),
    ],
)
def test_what_the_book_draws_with_is_inlined(cell, name, shown):
    text = whole(f'{cell}\n{name}("digraph {{}}", name="a", alt="b")')
    assert "def drawing(" in text and "class Drawing" in text and "import html" in text
    assert "RANK_COLORS" not in text and "import ranklab" not in text
    assert text.endswith(f'\nshow({shown}("digraph {{}}", name="a", alt="b"))\n')
    assert ("\nd = drawing\n" in text) == (shown == "d")


def test_taught_code_is_inlined(tmp_path, monkeypatch):
    (tmp_path / "taught").mkdir()
    (tmp_path / "taught" / "messages.py").write_text(
        "import time\n\nBASE = 2\n\n\ndef ping(n):\n    return BASE * n, time.time()\n"
        "\n\ndef no(): ...\n"
    )
    monkeypatch.setattr("bookmaker.script.analyse.taken._FOLDER", tmp_path)
    text = with_ranks("%%px\nfrom ranklab.taught.messages import ping\nt = ping(1)")
    assert "# From ranklab.taught.messages:\n" in text and "def ping(n):" in text
    assert "BASE = 2" in text and "import time" in text and "def no" not in text
    assert text.index("def ping") < text.index("t = ping(1)")


@pytest.mark.parametrize("first, second", [("a", "b"), ("b", "a")])
def test_what_two_modules_need_stands_once_and_before_its_first_use(
    first, second, tmp_path, monkeypatch
):
    (tmp_path / "taught").mkdir()
    shared = "from ranklab.taught.shared import helper\n\n\n"
    (tmp_path / "taught" / "shared.py").write_text("def helper():\n    return 1\n")
    for name in "ab":
        text = f"{shared}def {name}():\n    return helper()\n"
        (tmp_path / "taught" / f"{name}.py").write_text(text)
    monkeypatch.setattr("bookmaker.script.analyse.taken._FOLDER", tmp_path)
    cells = [f"from ranklab.taught.{name} import {name}\n{name}()" for name in (first, second)]
    text = whole(*cells)
    assert text.count("def helper") == 1
    assert text.index("def helper") < text.index(f"def {first}") < text.index(f"def {second}")
    exec(compile(text, "script", "exec"), {"__name__": "__main__", "__file__": "x.py"})


def test_the_packages_to_install():
    text = whole("import numpy as np\nfrom sklearn import svm\nimport json, PIL.Image")
    assert "# pip install numpy pillow scikit-learn\n" in text


def test_the_packages_that_a_function_imports():
    doc = '"""What comes\n    from rank 0."""'
    text = whole(f"def f():\n    {doc}\n    import json, yaml\n    from sklearn import svm")
    assert "# pip install pyyaml scikit-learn\n" in text


def test_the_origin():
    assert whole("x = 1").startswith("# Generated from x.ipynb by")
    text = whole("x = 1", ranklab={"manuscript": "book/06_messages.md"})
    assert text.startswith("# A chapter of Many Ranks, One Model, as one script. ")
    assert "Generated from book/06_messages.md." in text.splitlines()[0]


def test_a_section_prints_its_title_when_all_are_there():
    nb = notebook(IMPORTS, RANKS, "%%px\nx = 1", "y = 1")
    nb.cells.insert(3, v4.new_markdown_cell("Text.\n\n## Who `waits`\n\nMore text."))
    lines = to_script(nb, "x").splitlines()
    title = lines.index('    print("\\n## Who waits\\n")')
    assert lines[title - 1] == "if rank == 0:" and "x = 1" in lines[: title - 1]


def test_what_is_saved_is_said():
    text = whole("import matplotlib.pyplot as plt\nplt.plot([1, 2])")
    assert 'print(f"saved beside this script: {path.name}")' in text


def test_generated_cells_are_no_part_of_it():
    nb = notebook("x = 1")
    nb.cells.insert(
        0, v4.new_code_cell("%pip install x", metadata={"ranklab": {"generated": True}})
    )
    assert "pip install" not in to_script(nb)


MANUSCRIPTS = HERE.chapters()
SCRIPTS = [HERE.root / "scripts" / f"{path.stem}.py" for path in MANUSCRIPTS]


# The scripts that are committed are those of the chapters: test_forms.py.


def test_ruff_finds_nothing_in_the_chapters_scripts():
    ruff = [Path(sys.executable).with_name("ruff"), "check", "--isolated", "--select", "E9,F"]
    chapters = {path.stem: manuscript.read(path) for path in MANUSCRIPTS}
    more = [HERE.root / p for name, nb in chapters.items() for p in programs.paths(nb, name)]
    checked = subprocess.run([*ruff, *SCRIPTS, *more], capture_output=True, text=True, timeout=250)
    assert checked.returncode == 0, checked.stdout


def test_a_chapter_is_soon_in_sight():
    """What stands above a script's first heading is not the chapter's own."""
    above = [path.read_text().partition("\n# === ")[0].count("\n") for path in SCRIPTS]
    assert median(above) <= 150 and max(above) <= 300, above


def test_helpers_stand_before_the_section_that_needs_them():
    nb = notebook(IMPORTS, "x = 1", 'result("x", x)')
    nb.cells.insert(2, v4.new_markdown_cell("## Results"))
    text = to_script(nb)
    assert text.index("x = 1") < text.index("def result(") < text.index("--- Results")


def test_what_measures_is_left_out_where_ranklab_is_missing(capsys):
    text = whole(
        "from ranklab.gpu import sampled\nx = y = 1",
        "with sampled() as s:\n    y = 2\nz = s.mean",
        "print(z)",
        "y = 3",
        "print('x', x, 'y', y)",
    )
    assert "if sampled:\n    with sampled() as s:" in text and "if sampled:\n    print(z)" in text
    exec(text.replace("from ranklab.gpu", "from nowhere"), {"__name__": "__main__"})
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "What ranklab.gpu measures is left out, for it is not installed here",
        "x 1 y 3",
    ]


SAMPLED = "%%px\nfrom ranklab.gpu import sampled\nwith sampled(hz=50) as s:\n    x = 1"


def test_ranks_that_are_sampled_train_on_without_ranklab():
    """Only the kernel's cells are left out, all that has to do with the recordings."""
    cells = 'means = [s.mean() for s in ranks["s"]]', "print(means)", 'print(ranks["x"])'
    text = with_ranks("from ranklab.gpu import save, utilization_plot\ny = 1", SAMPLED, *cells)
    assert "    save = utilization_plot = None\n    sampled = unsampled\n    if rank == 0:" in text
    assert "\neveryone()\nwith sampled(hz=50) as s:\n    x = 1\n" in text
    assert "\nif save:\n    s_by_rank = to_rank_0(s)\n    if rank == 0:" in text
    assert "\nif save:\n    everyone()\n    if rank == 0:\n        print(means)\n" in text
    assert "\n\nx_by_rank = to_rank_0(x)\n" in text
    assert "\nif sampled is not unsampled:\n    s_by_rank" in with_ranks(
        SAMPLED, 'print(ranks["s"])'
    )
    with pytest.raises(FormError, match="Look at it in another cell"):
        with_ranks(SAMPLED + "\nprint(s.mean())")


def test_ranks_cell_is_no_comment():
    assert RANKS not in with_ranks("x = 1")


def test_code_inside_a_string_is_left_alone():
    cell = 's = """\nx = 1\ndef f():\n    pass\n@g\nclass A: pass\n\n\n\ny = 2\n"""'
    assert cell in body("%%px\n" + cell)
    assert cell in whole(cell)


def test_new_processes_do_not_run_the_script_again():
    assert "\ndel __file__  #" in with_ranks("import multiprocessing\nx = multiprocessing")
    assert "\ndel __file__  #" in whole(
        "from concurrent.futures import ProcessPoolExecutor as P\nP"
    )
    assert "del __file__" not in whole("from concurrent.futures import ThreadPoolExecutor as P\nP")
    text = whole("import multiprocessing\nimport matplotlib.pyplot as plt\nplt.plot([1]);")
    assert text.index("SCRIPT = Path(__file__)") < text.index("del __file__")


def code_of(script):
    """What a script runs: a notebook's prose makes other comments than the manuscript's."""
    tokens = tokenize.generate_tokens(io.StringIO(script).readline)
    return [t.string for t in tokens if t.type not in (tokenize.COMMENT, tokenize.NL)]


@pytest.mark.parametrize(
    "path, expected",
    few(zip(MANUSCRIPTS, SCRIPTS), lambda path, _: path.stem == "07_collectives"),
    ids=lambda p: p.stem,
)
def test_a_chapters_notebook_gives_the_chapters_script(path, expected):
    form = notebook_form.to_notebook(manuscript.read(path))
    script, resources = ScriptExporter().from_notebook_node(form)
    assert code_of(script) == code_of(expected.read_text())
    assert "glossary.html" not in script
    assert resources["output_extension"] == ".py"


# ---- random numbers ---------------------------------------------------------------------------


SEEDED = "import torch\ntorch.manual_seed(0)"
ON_RANKS = "%%px\ntorch.manual_seed(rank)\ny = torch.rand(1)"


def test_rank_0_has_two_streams_of_random_numbers():
    text = with_ranks(
        SEEDED, "a = torch.rand(1)", ON_RANKS, "b = torch.rand(1)", "%%px\nz = torch.rand(1)"
    )
    assert text.count('play("kernel")\n    b = torch.rand(1)') == 1
    assert text.count('everyone()\nplay("ranks")\nz = torch.rand(1)') == 1
    assert "import random\n" in text and "import numpy as np\n" in text
    assert 'before = play("kernel")' not in text


def test_values_that_move_keep_the_streams_apart():
    text = with_ranks(SEEDED, ON_RANKS, 'for n in torch.rand(2):\n    ranks["m"] = torch.rand(1)')
    assert (
        '    before = play("kernel")\n    box = ' in text and "    play(before)\n    return" in text
    )
    assert '            yield item\n            play("kernel")\n' in text


@pytest.mark.parametrize(
    "cells",
    [
        (SEEDED, "a = torch.rand(1)", "%%px\ny = 1"),
        ("a = 1", ON_RANKS, "%%px\nz = torch.rand(1)"),
        (f"{SEEDED}\na = torch.rand(1)", ON_RANKS, "torch.manual_seed(1)\nb = torch.rand(1)"),
        ("import numpy as np\nrng = np.random.default_rng(0)\na = rng.normal()", ON_RANKS),
    ],
)
def test_where_one_stream_will_do(cells):
    assert "play(" not in with_ranks(*cells)
