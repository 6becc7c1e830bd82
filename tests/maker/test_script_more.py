"""What the exporter must not get wrong silently: it translates it right, or says why it cannot."""

import os
import subprocess
import sys

import pytest
from small_notebooks import IMPORTS, RANKS, body, notebook, whole, with_ranks

from bookmaker.errors import FormError
from bookmaker.script import to_script

X = "%%px\nx = 1"
TORCH = (
    "import torch, os, random, warnings, logging\nimport pandas as pd\nimport numpy as np\n"
    "import torch.nn as nn"
)


def refused(*cells):
    """The sentence with which these cells, after those that make ranks, are refused."""
    with pytest.raises(FormError) as caught:
        with_ranks(TORCH, *cells)
    assert "mistake in the exporter" not in str(caught.value)
    return str(caught.value)


# ---- f-strings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ('f"ranks.world_size = {ranks.world_size}"', 'f"ranks.world_size = {world_size}"'),
        (
            'f"{{ranks.world_size}} {ranks.world_size:>5}"',
            'f"{{ranks.world_size}} {world_size:>5}"',
        ),
        ('f"{1:{ranks.world_size}}"', 'f"{1:{world_size}}"'),
        ('f"{ranks.world_size=}"', 'f"ranks.world_size={world_size!r}"'),
        ('f"{ranks.world_size = :3}"', 'f"ranks.world_size = {world_size :3}"'),
        (
            "f\"{f'ranks.world_size {ranks.world_size}'}\"",
            "f\"{f'ranks.world_size {world_size}'}\"",
        ),
        ('"ranks.world_size" f"é {ranks.world_size!r}"', '"ranks.world_size" f"é {world_size!r}"'),
    ],
)
def test_only_what_stands_between_the_braces_is_replaced(written, wanted):
    assert f"s = {wanted}" in body(f"s = {written}")


def test_a_pull_in_an_f_string():
    text = body(X, "s = f\"ranks['x'] = {ranks['x']}\"")
    assert "s = f\"ranks['x'] = {x_by_rank}\"" in text
    text = body(X, "s = f\"{ranks['x']=}\"")
    assert "s = f\"ranks['x']={x_by_rank!r}\"" in text


# ---- names -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["driver", "store", "pickle", "rank_", "streams"])
def test_a_pushed_name_may_be_one_of_the_preambles(name):
    text = with_ranks("n = [1]", f'ranks["{name}"] = 3', f'ys = ranks["{name}"]')
    top, _, rest = text.partition("# --- The test")
    assert f"\n{name} = 3" in rest
    assert f"\n{name} = " not in top and f"global {name}\n" not in top
    assert f"import {name}\n" not in top


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (['ranks["result"] = 3'], "`result` is also something that the script takes from ranklab"),
        (['ranks["None"] = 3'], "`None` is a word of Python's"),
        (['ranks["class"] = 3'], "`class` is a word of Python's"),
        (["%%px\ndef print(*args):\n    pass"], "`print` is a builtin"),
        (['ranks["list"] = 3'], "`list` is a builtin"),
        (["n = 1", ("n = 2", "notebook-only"), "print(n)"], "`n` has its value from cell 5"),
        (["n = [1]", ("n.append(2)", "notebook-only"), "m = n"], "`n` has its value from cell 5"),
        (
            ["n = 1", "def f():\n    return n", ("n = 2", "notebook-only"), "print(f())"],
            "`n` has its value from cell 6",
        ),
        ([X, ("%%px\nx = 2", "notebook-only"), 'xs = ranks["x"]'], "`x` has its value from cell 5"),
    ],
)
def test_names_that_would_mean_something_else(cells, words):
    assert words in refused(*cells)


def test_left_out_values_that_nobody_reads():
    text = body("n = 1", ("n = 2", "notebook-only"), "n = 3\nprint(n)")
    assert "n = 2" not in text and "n = 3" in text


@pytest.mark.parametrize(
    "code", ["for n in (1, 2):\n    print(n)", "with open('x') as n:\n    print(n)"]
)
def test_left_out_values_that_are_given_anew(code):
    assert "print(n)" in body("n = 1", ("n = 2", "notebook-only"), code)


def test_builtins_that_nobody_else_reads():
    assert "input = x" in body("%%px\nx = 1\ninput = x")


def test_a_skipped_cell_is_as_if_it_were_not_there():
    text = body("n = 1", ("n = 2", "skip-execution"), "print(n)")
    assert "n = 2" not in text and "print(n)" in text


def test_only_the_builtins_of_the_preamble_matter():
    assert "sum = 0" in whole(IMPORTS, "sum = 0")
    with pytest.raises(FormError, match="`print` is a builtin"):
        whole(IMPORTS, "def print(*args):\n    pass", 'result("a", 3)')


# ---- what a process has once -----------------------------------------------------------------

SETTINGS = [
    "torch.set_default_dtype(torch.float64)",
    "torch.set_grad_enabled(False)",
    "torch.use_deterministic_algorithms(True)",
    'np.seterr(all="raise")',
    'os.chdir("/")',
    'os.environ["A"] = "1"',
    'os.environ.update(A="1")',
    'os.environ |= {"A": "1"}',
    "environment = os.environ",
    "torch.backends.cudnn.benchmark = True",
    "torch.pi, y = 3, 4",
    'old = np.seterr(all="raise")',
    'old = os.environ.pop("A", None)',
    'warnings.simplefilter("error")',
    "logging.getLogger().setLevel(10)",
    "log.setLevel(10)",
    'pd.set_option("display.precision", 2)',
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_a_process(setting):
    words = "is a setting of the whole process"
    assert words in refused(f"{setting};")
    px = f"%%px\n{TORCH}\n{setting};"
    assert words in refused(px)


def test_settings_that_both_sides_make_together():
    setting = "torch.set_default_dtype(torch.float64)"
    assert body("import torch", f"{setting};", f"%%px\n{setting};").count(setting) == 2
    assert body("import torch", f"%%px\n{setting};", f"{setting};").count(setting) == 2
    between = refused(f"{setting};", "y = torch.ones(1)", f"%%px\n{setting};")
    assert "setting of the whole process" in between


def test_settings_for_a_while_are_no_settings():
    assert "no_grad" in body("import torch", "with torch.no_grad():\n    y = 1")
    assert "set_grad" in body("import torch", "with torch.set_grad_enabled(False):\n    y = 1")


def test_what_happens_to_an_error_may_be_set():
    """IPython never asks: it matters in the script alone."""
    assert "excepthook = print" in body("%%px\nimport sys\nsys.excepthook = print")


def test_without_ranks_there_is_one_process():
    assert whole(TORCH, *SETTINGS).count("os.environ") == 6


def test_ranks_inherit_what_is_set_before_they_are_made():
    text = whole(IMPORTS, 'import os\nn = 1\nos.environ["A"] = "1"\nm = 2', RANKS, X)
    assert '\nos.environ["A"] = "1"\n' in text
    assert "\n    n = 1\n" in text and "\n    m = 2\n" in text
    text = whole(IMPORTS, 'import os\nos.mkdir("a")\nos.chdir("a")', RANKS, X)
    assert '\n    os.mkdir("a")\n\neveryone()\nos.chdir("a")\n' in text
    with pytest.raises(FormError, match="changes what the ranks inherit"):
        whole(IMPORTS, 'import os\nos.environ["A"] = str(3)', RANKS, X)
    with pytest.raises(FormError, match="changes what the ranks inherit"):
        whole(IMPORTS, 'import os\nos.environ["RANKLAB_RANKS"] = "2"', RANKS, X)


def test_warnings_that_are_caught_are_no_settings():
    cell = "with warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n    y = 1"
    assert "simplefilter" in body("import warnings", cell)


@pytest.mark.parametrize(
    "setter, other, default",
    [
        ("torch.set_float32_matmul_precision", "'high'", "'highest'"),
        ("torch.use_deterministic_algorithms", "True", "False"),
    ],
)
def test_a_setting_that_its_cell_sets_back_is_none(setter, other, default):
    back = f"for kind in ({other}, {default}):\n    {setter}(kind)\n{setter}({default})"
    assert body("import torch", back).count(setter) == 2
    with pytest.raises(FormError, match="a setting of the whole process"):
        body("import torch", f"{back}\n{setter}({other})")


@pytest.mark.parametrize("own", ["type(self)", "self.__class__"])
def test_a_class_that_changes_itself_does_not_go_to_the_ranks(own):
    model = f"class Model:\n    built = 0\n    def __init__(self):\n        {own}.built += 1"
    words = "a value is worked out when it is defined, or changed later"
    assert words in refused(model, "Model(); Model();", 'ranks["Model"] = Model')


# ---- who am I ----------------------------------------------------------------------------

DIST = "import torch.distributed as dist"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("y = dist.is_initialized()", "`dist.is_initialized()` is called in the kernel"),
        ("y = torch.distributed.get_rank()", "`torch.distributed.get_rank()` is called"),
        ("def f():\n    return dist.get_rank()\n\ny = f()", "`dist.get_rank()` is called"),
        ("ask = dist.is_initialized\ny = ask()", "`dist.is_initialized()` is called"),
        ("y = getattr(dist, 'is_initialized')()", "`getattr(dist, 'is_initialized')"),
        ("y = 'x' in globals()", "`globals()` sees the names of its process"),
        ("%%px\ny = 'x' in globals()", "`globals()` sees the names of its process"),
        ("y = vars()", "`vars()` sees"),
        ("y = dir()", "`dir()` sees"),
        ("exec('y = 1')", "`exec()` sees"),
        ("y = eval('1')", "`eval()` sees"),
        ("y = os.getpid()", "`os.getpid()` tells of the kernel's process"),
    ],
)
def test_the_kernel_must_not_ask_who_it_is(code, words):
    assert words in refused(DIST, code)


def test_functions_for_the_ranks_may_ask():
    f = "def f():\n    return dist.get_rank()"
    assert "to_rank_0(f())" in body(DIST, f"%%px\n{DIST}", f, "xs = ranks.run(f)")
    assert "is_available" in body(DIST, "y = dist.is_available()\nz = dist.ReduceOp.SUM")
    assert "dir(y)" in body("y = 1", "z = dir(y)")
    assert "eval('y', " in body("y = 1", "z = eval('y', {'y': y})")


# ---- random numbers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "ranks"),
    [
        ("torch.manual_seed(0);", "x = torch.rand(2)"),
        ("y = torch.rand(1)", "torch.manual_seed(5);"),
        ("y = np.random.exponential()", "import numpy as np\nx = np.random.poisson()"),
        ("y = torch.ones(2).log_normal_()", "x = torch.rand(1)"),
        ("y = nn.Dropout(0.5)(torch.ones(4))", "x = torch.rand(1)"),
        ("def f():\n    return torch.rand(1)\n\nf()\ntorch.manual_seed(0);", "x = torch.rand(1)"),
        ("y = list(map(torch.rand, [1, 2]))", "x = torch.rand(1)"),
        ("lin = nn.Linear(2, 2)\nlin.reset_parameters()", "torch.manual_seed(1)"),
        ("df = pd.DataFrame([1])\ny = df.sample()", "import numpy as np\nnp.random.seed(3)"),
        ("y = random.gauss(0, 1)", "import random\nx = random.expovariate(1)"),
    ],
)
def test_two_streams_where_both_sides_draw(kernel, ranks):
    assert "play(" in body(TORCH, kernel, f"%%px\n{ranks}")


def test_two_streams_where_a_seed_is_not_for_all_cells():
    cells = "%%px\ntorch.manual_seed(5);", "torch.manual_seed(0);", "%%px\nx = torch.rand(1)"
    assert body(TORCH, *cells).count("play(") == 3


def test_two_streams_where_what_draws_is_pushed():
    drop = "torch.manual_seed(0)\ndrop = nn.Dropout(0.5)"
    text = body(TORCH, drop, 'ranks["drop"] = drop', "%%px\ny = drop(torch.ones(3))")
    assert "play(" in text


@pytest.mark.parametrize(
    ("kernel", "ranks"),
    [
        ("y = 1", "x = torch.rand(2)"),
        ("y = torch.rand(2)", "x = torch.ones(2)"),
        ("torch.manual_seed(0)\ny = torch.rand(2)", "torch.manual_seed(rank)\nx = torch.rand(2)"),
        ("rng = np.random.default_rng(0)\ny = rng.random()", "x = torch.rand(2)"),
        ("y = nn.ReLU()(torch.ones(2))", "x = torch.rand(2)"),
    ],
)
def test_one_stream_where_nothing_could_shift(kernel, ranks):
    assert "play(" not in with_ranks(TORCH, kernel, f"%%px\n{ranks}")


# ---- sentences, not tracebacks -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["fs = [print]", "ranks.run(*fs)"], "write the function to call by itself"),
        (["  %%px\nx = 1"], "spaces stand before `%%`"),
        (["s = '\ud800'"], r'("\ud800")'),
        (["s = '''a\rb'''"], "a carriage return inside of a line"),
    ],
)
def test_odd_cells(cells, words):
    message = refused(*cells)
    assert words in message
    message.encode()


@pytest.mark.parametrize(
    "arguments", ["2, timeout=None", '2, timeout="5"', "True", "2, debug=1", "2, backend=3"]
)
def test_odd_ranks(arguments):
    with pytest.raises(FormError, match=r"cell 2 .*: write|whole number"):
        whole(IMPORTS, f"ranks = Ranks({arguments})")


def test_keywords_unpacked():
    text = body("def f(a=0):\n    return a", 'r = ranks.run(f, **{"a": 2})')
    assert 'r = to_rank_0(f(**{"a": 2}))' in text


def test_a_mistake_in_the_exporter_is_a_sentence(monkeypatch):
    def broken(*args):
        raise KeyError("oops")

    monkeypatch.setattr("bookmaker.script.emit.px_cells.pieces", broken)
    with pytest.raises(FormError, match=r"x, cell 3 .*mistake in the exporter \(KeyError"):
        with_ranks(X)
    monkeypatch.setattr("bookmaker.script.analyse.plan.collect", broken)
    with pytest.raises(FormError, match=r"x: this is a mistake in the exporter"):
        with_ranks(X)


# ---- what a cell shows -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("(1), (2)", "show(((1), (2)))"),
        ("(1, 2)", "show((1, 2))"),
        ("1, 2", "show((1, 2))"),
        ("(1, 2),", "show(((1, 2),))"),
        ("(1) + (2)", "show((1) + (2))"),
    ],
)
def test_a_tuple_is_one_value(written, wanted):
    assert wanted in body(written)
    assert wanted.removesuffix(")") + ", rank)" in body(f"%%px\n{written}")


# ---- run --------------------------------------------------------------------------------------


def test_the_scripts_do_it(tmp_path):
    """Figures that keep apart, errors that are meant, settings that the ranks inherit."""
    cells = [
        f"{IMPORTS}\nimport os\nimport matplotlib.pyplot as plt",
        'os.environ["FLAG"] = "on"',
        "ranks = Ranks(2, timeout=3)",
        '%%px\nimport os\nf = os.environ.get("FLAG")\nz = torch.rand(1).item()',
        'fs, zs = ranks["f"], ranks["z"]\nresult("f", fs)\nresult("own", y not in zs)',
        ("raise SystemExit(1)", "raises-exception"),
        ("%%px\nraise KeyboardInterrupt", "raises-exception"),
        (
            "%%px\ng = dist.new_group()\nx = torch.ones(1)\n"
            "if rank == 0:\n    dist.all_reduce(x, group=g)",
            "raises-exception",
        ),
        "ranks.reset()",
        *[f'fig, ax = plt.subplots(num="{name}");' for name in ("x", "x-2", "x")],
        'result("done", f"{ranks.world_size=}")',
    ]
    cells.insert(
        3, "import torch\ntorch.manual_seed(0)\ny = torch.rand(1).item()\ntorch.manual_seed(0);"
    )
    (tmp_path / "s.py").write_text(to_script(notebook(*cells), "s"))
    environment = {key: v for key, v in os.environ.items() if not key.startswith("RANKLAB")}
    done = subprocess.run(
        [sys.executable, "s.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "f = ['on', 'on']" in lines
    assert "own = True" in lines  # the ranks were not seeded, and rank 0 is one of them
    assert "rank 0 failed, as it may here: SystemExit: 1" in lines
    assert {f"rank {r} failed, as it may here: KeyboardInterrupt: " for r in (0, 1)} <= set(lines)
    assert lines[-1] == "done = ranks.world_size=2"
    names = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert names == ["s-x-2.svg", "s-x-3.svg", "s-x.svg"]
