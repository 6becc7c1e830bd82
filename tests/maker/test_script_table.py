"""The script exporter, row by row of its table: what goes in, and what comes out."""

import pytest
from small_notebooks import IMPORTS, body, same, whole, with_ranks


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
    assert 'device, backend = torch.device("cpu"), "gloo"' in text and "choose_device" not in text
    assert "dist.set_debug_level_from_env()" in text
    assert "Ranks(" not in text and "import ranklab" not in text


FOLLOWING = IMPORTS, "ranks = Ranks(4)", "import torch"


def test_ranks_without_a_device_take_the_gpus_that_are_there():
    text = whole(*FOLLOWING, "%%px\nx = torch.ones(2)", 'xs = ranks["x"]\nprint(xs[0])')
    assert "\n# The ranks use the GPUs that are there; RANKLAB_DEVICE=cpu (or cuda)" in text
    assert "device, backend = choose_together()\n" in text
    assert "    torch.set_default_device(device)  #" in text  # the kernel makes no tensor
    assert "play(" not in text and "pickle" not in text
    assert 'unpacked(data, "cpu")' in text


@pytest.mark.parametrize(
    ("kernel", "makes"),
    [
        ("y = torch.zeros(2)", True),
        ("def f():\n    return torch.rand(2)\n\ny = f()", True),
        ("model = torch.nn.Linear(2, 2)", True),
        ('y = torch.stack(ranks["x"])', False),
        ('print(max(ranks["x"]))', False),
        ("def f():\n    return torch.rand(2)\n", False),
    ],
)
def test_rank_0_has_two_devices_where_the_kernel_makes_tensors(kernel, makes):
    text = whole(*FOLLOWING, "%%px\nx = torch.ones(2)", kernel, "%%px\ny = x")
    assert makes == ('play("kernel")\n' in text) == ('play("ranks")\n' in text)
    assert makes == ("torch.set_default_device(device if rank else None)" in text)


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
    assert text.index("\nfresh_group()\n") < text.index("\nleave_group()\n")
    assert text.endswith("\nleave_group()\n\nif rank == 0:\n    x = world_size\n")


def test_the_world_size():
    same(
        body("print(ranks.world_size, len(ranks))"),
        "if rank == 0:\n    print(world_size, world_size)",
    )


def test_ranks_under_another_name():
    text = whole("from ranklab import Ranks as R\nteam = R(2)", "%%px\nx = 1", 'xs = team["x"]')
    assert "xs = to_rank_0(x)" in text
