"""The script exporter, row by row of its table: what goes in, and what comes out."""

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest
from nbformat import v4
from small_notebooks import IMPORTS, RANKS, body, notebook, whole, with_ranks

from ranklab.folders import HERE
from ranklab.forms import manuscript
from ranklab.forms import notebook as notebook_form
from ranklab.forms.script import ScriptExporter, to_script


def same(got, wanted):
    assert got == dedent(wanted).strip("\n").rstrip()


# ---- the table ---------------------------------------------------------------------------


def test_a_plain_cell_runs_on_rank_0():
    same(
        body("x = 1\n\n# twice\ny = 2 * x  # = 2\n"),
        """
        if rank == 0:
            x = 1

            # twice
            y = 2 * x  # = 2
        """,
    )


def test_imports_are_hoisted_once():
    text = with_ranks(
        "import json\nx = json", "%%px\nimport json, math\nimport os.path\ny = math.pi"
    )
    assert text.count("import json\n") == 1
    assert text.index("import json\n") < text.index("import math\n") < text.index("import os.path")
    assert text.index("import os.path") < text.index("def ")


def test_a_px_cell_is_unguarded():
    same(
        body("%%px\nx = torch.ones(3)\ndist.all_reduce(x);"),
        "x = torch.ones(3)\ndist.all_reduce(x)",
    )


def test_px_cells_start_together():
    same(body("%%px\nx = 1", "%%px\ny = 2"), "x = 1\n\neveryone()\ny = 2")
    same(body("x = 1", "%%px\ny = 2"), "if rank == 0:\n    x = 1\n\neveryone()\ny = 2")


def test_the_kernel_waits_for_the_ranks():
    same(body("%%px\nx = 1", "y = 2"), "x = 1\n\neveryone()\nif rank == 0:\n    y = 2")


def test_a_pull_makes_the_kernel_wait_by_itself():
    same(
        body("%%px\nx = 1", 'xs = ranks["x"]\nprint(xs)'),
        "x = 1\n\nxs = to_rank_0(x)\nif rank == 0:\n    print(xs)",
    )


def test_definitions_alone_wait_for_nobody():
    assert "everyone()" not in body("x = 1", "%%px\ndef f():\n    pass")


@pytest.mark.parametrize(
    ("option", "condition"),
    [
        ("--targets 0", "if rank in (0,):"),
        ("-t 0,2", "if rank in (0, 2):"),
        ("--targets=[0,2]", "if rank in (0, 2):"),
        ("--targets 1:", "if rank in range(world_size)[1:]:"),
        ("--targets ::2", "if rank in range(world_size)[::2]:"),
        ("--targets -1", "if rank in (world_size - 1,):"),
    ],
)
def test_targets(option, condition):
    same(body(f"%%px {option}\nprint(rank)"), f"{condition}\n    print(rank)")


@pytest.mark.parametrize("option", ["", "--targets all", "--block", "--no-stream", "--verbose"])
def test_options_that_only_show(option):
    same(body(f"%%px {option}\nprint(rank)"), "print(rank)")


def test_a_pull_inside_an_expression():
    same(
        body("%%px\nx = 1", 'print(max(ranks["x"]), sum(v for v in ranks["x"]))'),
        """
        x = 1

        x_by_rank = to_rank_0(x)
        x_by_rank_2 = to_rank_0(x)
        if rank == 0:
            print(max(x_by_rank), sum(v for v in x_by_rank_2))
        """,
    )


def test_a_pull_inside_an_fstring():
    assert 'print(f"{x_by_rank[0]:>3} of {world_size}")' in body(
        "%%px\nx = 1", "print(f\"{ranks['x'][0]:>3} of {ranks.world_size}\")"
    )


def test_a_loop_over_pulled_values_is_rank_0s():
    same(
        body("%%px\nx = 1", 'for r, v in enumerate(ranks["x"]):\n    print(r, v)'),
        """
        x = 1

        x_by_rank = to_rank_0(x)
        if rank == 0:
            for r, v in enumerate(x_by_rank):
                print(r, v)
        """,
    )


@pytest.mark.parametrize(
    ("push", "wanted"),
    [
        ('ranks["n"] = 3', "n = 3"),
        ('ranks["n"] = (1, 2)', "n = (1, 2)"),
        ('ranks["n"] = 2 * ranks.world_size', "n = 2 * world_size"),
        ('ranks["n"] = len("abc")', 'n = from_rank_0(lambda: len("abc"))'),
        ('ranks["n"] = len("a"), 2', 'n = from_rank_0(lambda: (len("a"), 2))'),
        ('ranks["n"] = [\n    len("a"),\n]', 'n = from_rank_0(lambda: [\n    len("a"),\n])'),
    ],
)
def test_a_push(push, wanted):
    same(body(push), wanted)


def test_a_push_under_its_own_name():
    same(
        body("n = 3", 'ranks["n"] = n', "%%px\nprint(n)"),
        "if rank == 0:\n    n = 3\n\nn = from_rank_0(lambda: n)\n\nprint(n)",
    )


def test_a_push_of_pulled_values():
    assert "total = from_rank_0(lambda: sum(x_by_rank))" in body(
        "%%px\nx = 1", 'ranks["total"] = sum(ranks["x"])'
    )


def test_a_push_that_names_its_value():
    assert "    n = (m := len([]))\n\nn = from_rank_0(lambda: n)" in body(
        'ranks["n"] = (m := len([]))'
    )


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("ranks.run(f)", "f()"),
        ("ranks.run(f, 3, b=[4])", "f(3, b=[4])"),
        ("ranks.run(f, n)", "f(from_rank_0(lambda: n))"),
        ("ranks.run(f, n, 2)", "f(*from_rank_0(lambda: (n, 2)))"),
        ("ranks.run(f, *[n])", "f(*from_rank_0(lambda: (*[n],)))"),
        ("ranks.run(f, b=n)", "f(**from_rank_0(lambda: dict(b=n)))"),
        ("ranks.run(lambda: rank)", "(lambda: rank)()"),
        ("ranks.run(g, 1)", "from_rank_0(lambda: g)(1)"),
    ],
)
def test_run(call, wanted):
    cells = "def f(a=1, b=2):\n    return rank", "n = 3\ng = f", f"values = {call}"
    assert f"values = to_rank_0({wanted})" in body(*cells)


def test_functions_are_defined_on_all_ranks():
    text = body("x = 1\n\ndef f():\n    return rank\n\ny = 2")
    same(
        text,
        "if rank == 0:\n    x = 1\n\n\ndef f():\n    return rank\n\n\nif rank == 0:\n    y = 2",
    )


def test_a_definition_that_reads_the_kernels_variables_is_rank_0s():
    assert "    def f(n=n):" in body("n = 1\n\ndef f(n=n):\n    return n\n")


def test_a_function_that_is_registered_is_rank_0s():
    assert "    @atexit.register\n" in body("import atexit\n@atexit.register\ndef f():\n    pass")


def test_the_ranks_cell_is_the_preamble():
    text = whole(IMPORTS, 'ranks = Ranks(3, backend="gloo", device="cpu", timeout=5, debug=True)')
    assert 'os.environ.get("RANKLAB_RANKS", "3")' in text
    assert "timedelta(seconds=5)" in text
    assert "choose_device(device='cpu', backend='gloo')" in text
    assert "dist.set_debug_level_from_env()" in text
    assert "Ranks(" not in text and "import ranklab" not in text


def test_the_ranks_themselves_shown():
    same(body("ranks"), 'if rank == 0:\n    print(f"{world_size} ranks")')


def test_result_is_printed():
    assert 'if rank == 0:\n    result("n", 3, varies=True)' in body('result("n", 3, varies=True)')
    assert "def result(" in with_ranks('result("n", 3)')


def test_a_result_prints_what_the_page_shows(capsys):
    text = whole(IMPORTS, "import numpy as np\nresult('n', (np.float64(0.5), [1, True], 'a'))")
    exec(compile(text, "x.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "n = [0.5, [1, True], 'a']\n"


def test_a_last_expression_is_shown():
    same(body("x = 1\nx"), "if rank == 0:\n    x = 1\n    show(x)")
    same(body("1, 2"), "if rank == 0:\n    show((1, 2))")
    same(body("(1,\n 2)  # two"), "if rank == 0:\n    show((1,\n     2))  # two")
    same(body("%%px\nrank"), "show(rank, rank)")


@pytest.mark.parametrize(
    "cell", ["x = 1\nx;", "x = 1\nx;  # quiet", "x = 1\nprint(x)", "x = 1; x;"]
)
def test_what_shows_nothing_stays(cell):
    assert "show(" not in body(cell)


def test_two_statements_on_a_line():
    same(body("x = 1; y = 2"), "if rank == 0:\n    x = 1\n    y = 2")


def test_display():
    assert (
        "    display(1, 2)\n"
        in body("from IPython.display import display\ndisplay(1, 2)\nx = 1") + "\n"
    )
    assert "def display(" in with_ranks("display(1)\nx = 1")
    assert "IPython" not in with_ranks("from IPython.display import display\ndisplay(1)")


def test_figures_are_saved_where_they_are_drawn():
    text = body(
        "import matplotlib.pyplot as plt\ndef draw():\n    plt.plot([1])",
        "draw();",
        "fig, ax = plt.subplots()",
        "ax.set(xlabel='n')",
        "x = 1",
    )
    assert text.count("save_figures()") == 3
    assert text.endswith("save_figures()\n\nif rank == 0:\n    x = 1")


def test_show_saves():
    text = body("import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()\nx = 1")
    assert "    plt.plot([1])\n    save_figures()\n    x = 1" in text


def test_the_books_look():
    figure = "import matplotlib.pyplot as plt\nplt.plot([1]);"
    assert "STYLE" in whole(IMPORTS, figure)
    assert "STYLE" not in whole(figure)


def test_views_are_drawn_where_ranklab_is():
    text = with_ranks(
        "from ranklab import timeline\nx = 1",
        "%%px\nfrom ranklab import trace\nwith trace() as t:\n    pass",
        'timeline(ranks["t"])',
        "ranks.where()",
    )
    assert "try:\n    from ranklab import timeline, trace\nexcept ImportError:\n" in text
    assert '    timeline = left_out("timeline")\n    trace = untraced\n' in text
    assert "t_by_rank = to_rank_0(t)\nif rank == 0:\n    show(timeline(t_by_rank))" in text
    assert 'left_out("ranks.where()")()' in text


def test_a_saved_cell_is_an_ordinary_cell():
    same(body("%%px\n#@save\ndef f():\n    pass"), "def f():\n    pass")


def test_notebook_only_is_left_out():
    assert body(("%pip install x\n!ls", "notebook-only"), "x = 1") == "if rank == 0:\n    x = 1"
    assert (
        body(("ranks.restart()", "notebook-only"), ("%%px\nthis is not Python", "notebook-only"))
        == ""
    )


def test_raises_exception_goes_on():
    same(
        body(("%%px\nimport nowhere\n1 / 0", "raises-exception")),
        """
        with may_fail():
            import nowhere
            show(1 / 0, rank)
    """,
    )
    same(
        body(("x = 1\n1 / 0", "raises-exception")),
        """
        if rank == 0:
            with may_fail():
                x = 1
                show(1 / 0)
    """,
    )


def test_two_empty_lines_around_definitions_and_none_inside():
    text = with_ranks(("%%px\n1 / 0", "raises-exception"), "@property\n# why\ndef f():\n    pass")
    assert "\n\n\n@contextmanager\ndef may_fail():" in text
    assert "\n\n\n@property\n# why\ndef f():\n    pass\n\n\nleave_group()" in text
    assert "\n\n\n\n" not in text


def test_reset_and_close():
    text = with_ranks("ranks.reset()", "ranks.close()", "x = ranks.world_size")
    assert text.endswith("fresh_group()\n\nleave_group()\n\nif rank == 0:\n    x = world_size\n")


def test_the_world_size():
    same(
        body("print(ranks.world_size, len(ranks))"),
        "if rank == 0:\n    print(world_size, world_size)",
    )


def test_ranks_under_another_name():
    text = whole("from ranklab import Ranks as R\nteam = R(2)", "%%px\nx = 1", 'xs = team["x"]')
    assert "xs = to_rank_0(x)" in text


# ---- loops and conditions ------------------------------------------------------------------


def test_a_loop_that_all_ranks_take_part_in():
    same(
        body('sizes = [1, 2]\nfor n in sizes:\n    ranks["n"] = n\n    print(n)\n'),
        """
        if rank == 0:
            sizes = [1, 2]

        for n in in_step(lambda: sizes):
            everyone()
            n = from_rank_0(lambda: n)
            if rank == 0:
                print(n)
        """,
    )


def test_loops_over_literals_need_no_rank_0():
    assert "for n in (1, 2):" in body('for n in (1, 2):\n    ranks["n"] = n')
    assert "for n in range(world_size):" in body(
        'for n in range(ranks.world_size):\n    ranks["n"] = n'
    )


def test_a_loop_over_pairs():
    assert (
        "for item in in_step(lambda: enumerate(s)):\n    if rank == 0:\n        i, n = item"
        in body('s = "ab"\nfor i, n in enumerate(s):\n    ranks["n"] = n')
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
    monkeypatch.setattr("ranklab.forms.script.taken._FOLDER", tmp_path)
    text = with_ranks("%%px\nfrom ranklab.taught.messages import ping\nt = ping(1)")
    assert "# From ranklab.taught.messages:\n" in text and "def ping(n):" in text
    assert "BASE = 2" in text and "import time" in text and "def no" not in text
    assert text.index("def ping") < text.index("t = ping(1)")


def test_the_packages_to_install():
    text = whole("import numpy as np\nfrom sklearn import svm\nimport json, PIL.Image")
    assert "# pip install numpy pillow scikit-learn\n" in text


def test_the_origin():
    assert whole("x = 1").startswith("# Generated from x.ipynb by")
    text = whole("x = 1", ranklab={"manuscript": "book/06_messages.md"})
    assert text.startswith("# Generated from book/06_messages.md by `make forms`")


def test_generated_cells_are_no_part_of_it():
    nb = notebook("x = 1")
    nb.cells.insert(
        0, v4.new_code_cell("%pip install x", metadata={"ranklab": {"generated": True}})
    )
    assert "pip install" not in to_script(nb)


MANUSCRIPTS = HERE.chapters()


@cache
def script_of(path):
    return to_script(manuscript.read(path))


def test_the_same_whatever_the_hash_seed():
    """In a process with another seed than this one."""
    program = dedent("""
        import sys
        from ranklab.forms.manuscript import read
        from ranklab.forms.script import to_script
        print(*(to_script(read(path)) for path in sys.argv[1:]), sep="\\0", end="")
    """)
    run = subprocess.run(
        [sys.executable, "-c", program, *MANUSCRIPTS],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert run.stdout.split("\0") == [script_of(path) for path in MANUSCRIPTS]


def test_ruff_finds_nothing_in_the_chapters_scripts(tmp_path):
    for path in MANUSCRIPTS:
        (tmp_path / f"{path.stem}.py").write_text(script_of(path))
    ruff = [Path(sys.executable).with_name("ruff"), "check", "--isolated", "--select", "E9,F"]
    checked = subprocess.run([*ruff, tmp_path], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout


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


@pytest.mark.parametrize("path", MANUSCRIPTS, ids=lambda p: p.stem)
def test_a_chapters_notebook_gives_the_chapters_script(path):
    chapter = manuscript.read(path)
    form = notebook_form.to_notebook(chapter)
    script, resources = ScriptExporter().from_notebook_node(form)
    assert script == script_of(path)
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
