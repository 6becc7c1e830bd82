"""Names that the kernel and the ranks both use: in the script, rank 0 has two values of each."""

import subprocess

import pytest
from launch import LAUNCHERS, results_in, run_script
from nbclient import NotebookClient
from small_notebooks import IMPORTS, RANKS, body, notebook, with_ranks

TRAINED = (
    "import torch\nmodel = torch.nn.Linear(1, 1, bias=False)\n"
    "torch.nn.init.ones_(model.weight)\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    'ranks["model"] = model',
    "%%px\nopt = torch.optim.SGD(model.parameters(), lr=1.0 + rank)\n"
    "model(torch.ones(1, 1)).sum().backward()\nopt.step()\nw = model.weight.item()",
    "model(torch.ones(1, 1)).sum().backward()\noptimizer.step()\n"
    'result("w", round(model.weight.item(), 3))\nresult("ws", ranks["w"])',
)
TWO_VARIABLES = (
    "%%px\nx = rank + 10",
    'x = 2\nresult("xs", ranks["x"])\nresult("x", x)',
    'y = 1\nranks["y"] = 5\nresult("y", y)\nresult("ys", ranks["y"])',
    "%%px\nz = rank",
    'z = ranks["z"]\nresult("z", z)',
    "%%px\nz += 1",
    'result("z_there", ranks["z"])\nz.append(7)\nresult("z_here", z)',
    "e = 2.7",
    "%%px\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n    pass",
    'result("e", e)',
    'max = 3\nresult("max", max)',
    "%%px\nm = max(1, 2)",
    'del max\nresult("m", [ranks["m"], max(4, 5)])',
)
CHANGED_AFTER = (
    'a = [1]\nranks["a"] = a\na.append(2)',
    "%%px\na.append(rank)\nlast = list(a)",
    'result("a", a)\nresult("last", ranks["last"])',
    'n = 1\nif n:\n    ranks["n"] = n\n    n = 2',
    "%%px\nn2 = n",
    'result("n", [n, *ranks["n2"]])',
    "p = [0]\nq = p",
    'ranks["p"] = p\nranks["q"] = q',
    "%%px\np.append(1)\nlengths = len(p), len(q)",
    'q.append(2)\nresult("p", p)\nresult("lengths", ranks["lengths"])',
)
ITERATED = (
    'u = [1.0]\nfor it in range(3):\n    ranks["u"] = u\n'
    "    parts = ranks.run(lambda: u[0] * (rank + 1))\n    u[0] -= sum(parts) / 10\n"
    'result("u", round(u[0], 6))',
    'for i in [5, 6]:\n    ranks["i"] = i\n    seen = ranks.run(lambda: i)\n    i += 1\n'
    'result("i", [i, *seen])',
)
IN_FUNCTIONS = (
    'k = 1\nranks["k"] = 10\n\ndef times(v):\n    return k * v',
    'result("times", [times(2), *ranks.run(times, 2)])',
    "%%px\nk += rank\n\ndef here():\n    return k",
    'k = 3\n\ndef bump():\n    global k\n    k += 1\n    return k\n\nresult("bumped", bump())',
    "%%px\nk3 = here()",
    'result("k3", [k, *ranks["k3"]])\nlater = (k * v for v in (1, 2))',
    "%%px\nk = 0",
    'result("later", list(later))',
)
CODE = (
    "def step(v):\n    return v + 1\n\nclass Meter:\n    unit = 'm'\n    def of(self, v):\n"
    "        return f'{v} {self.unit}'",
    "%%px\ndef step(v):\n    return v - 1\n\nclass Meter:\n    unit = 'km'\n"
    "    def of(self, v):\n        return f'{v} {self.unit}'\n\nm3, s3 = Meter(), step(rank)",
    'result("steps", [step(5), *ranks["s3"], *ranks.run(lambda: step(5))])',
    'm4 = ranks["m3"]\nresult("units", [Meter().of(1), *(m.of(2) for m in m4)])',
)
# What a rank 0 keeps that the others do not get: aliases, registered functions, attributes.
KEPT = (
    "registry = {}\n\ndef op(f):\n    registry[f.__name__] = f\n    return f\n\n"
    "@op\ndef add(a, b):\n    return a + b",
    'result("added", registry["add"](1, 2))',
    'class O:\n    pass\n\no = O()\nfor o.x in [1, 2]:\n    ranks["s"] = 3\nresult("o", o.x)',
    'for lr in [0.1, 0.2]:\n    ranks["lr"] = lr',
    "%%px\nlr2 = lr",
    'Alias = list\nzs: Alias = ranks["lr2"]\nresult("zs", zs)',
    "ranks.close()",
    "ranks.close()",
)
HIDDEN = (
    "scale = 10\n\nclass T:\n    @staticmethod\n    def of(v):\n        return v * scale",
    "%%px\nscale = 2\nprint(scale)",
    'result("static", T.of(1))\nfor f in [T.of]:\n    result("listed", f(1))',
    "acc = log = []",
    "%%px\nacc = [0]\nprint(acc)",
    'acc += [7]\nresult("log", log)',
    "%%px\nq1 = 1\nprint(q1)",
    "q1 = 5\nprint(q1)",
    "%%px\nq1: int\nq2 = q1",
    'result("annotated", ranks["q2"])',
    "class Counter:\n    made = 0\n    def __init__(self):\n        Counter.made += 1",
    "%%px\nclass Counter:\n    made = 0\n    def __init__(self):\n        Counter.made += 1\n\n"
    "Counter(), Counter()\nm6 = Counter.made",
    'Counter()\nresult("made", [Counter.made, *ranks["m6"]])',
    "from dataclasses import dataclass\n@dataclass\nclass Config:\n    lr: float\n\n"
    "config = Config(0.5)",
    "%%px\nfrom dataclasses import dataclass\n@dataclass\nclass Config:\n    lr: float",
    'result("equal", config == Config(0.5))',
    "%%px\nrest = 5",
    "match {'a': 1, 'b': 2}:\n    case {'a': 1, **rest}:\n        pass",
    'result("rest", [rest["b"], *ranks["rest"]])',
)
CELLS = (*CODE, *HIDDEN, *TRAINED, *TWO_VARIABLES, *CHANGED_AFTER, *ITERATED, *IN_FUNCTIONS, *KEPT)
WANTED = {
    "static": "10",
    "listed": "10",
    "log": "[7]",
    "annotated": "[1, 1]",
    "made": "[1, 2, 2]",
    "equal": "True",
    "rest": "[2, 5, 5]",
    "steps": "[6, -1, 0, 4, 4]",
    "units": "['1 m', '2 km', '2 km']",
    "w": "0.9",
    "ws": "[0.0, -1.0]",
    "xs": "[10, 11]",
    "x": "2",
    "y": "1",
    "ys": "[5, 5]",
    "z": "[0, 1]",
    "z_there": "[1, 2]",
    "z_here": "[0, 1, 7]",
    "e": "2.7",
    "max": "3",
    "m": "[[2, 2], 5]",
    "a": "[1, 2]",
    "last": "[[1, 0], [1, 1]]",
    "n": "[2, 1, 1]",
    "p": "[0, 2]",
    "lengths": "[[2, 1], [2, 1]]",
    "u": "0.343",
    "i": "[7, 6, 6]",
    "times": "[2, 20, 20]",
    "bumped": "4",
    "k3": "[4, 10, 11]",
    "later": "[4, 8]",
    "added": "3",
    "o": "2",
    "zs": "[0.2, 0.2]",
}


def test_the_script_keeps_them_apart(tmp_path):
    script = tmp_path / "apart.py"
    script.write_text(with_ranks(*CELLS))
    assert results_in(run_script(script, "forked", 2, tmp_path / "run")) == WANTED


@pytest.mark.everything
def test_the_notebook_has_the_same(monkeypatch):
    monkeypatch.setenv("IPP_NONINTERACTIVE", "1")
    monkeypatch.setenv("RANKLAB_RANKS", "2")
    nb = notebook(IMPORTS, RANKS, *CELLS)
    NotebookClient(nb, timeout=250, kernel_name="python3", startup_timeout=250).execute()
    shown = [o.text for cell in nb.cells for o in cell.outputs if o.get("name") == "stdout"]
    assert results_in("".join(shown)) == WANTED


@pytest.mark.everything
def test_a_name_that_was_never_pushed_is_missing_on_every_rank(tmp_path):
    script = tmp_path / "stops.py"
    script.write_text(with_ranks("n = [1]", "%%px\nprint(n)", 'ranks["n"] = n'))
    done = subprocess.run(
        LAUNCHERS["torchrun"](script, 2), capture_output=True, text=True, timeout=250
    )
    assert done.returncode != 0 and "NameError: name 'n' is not defined" in done.stderr
    assert "[1]" not in done.stdout


@pytest.mark.everything
def test_code_of_two_meanings_does_not_travel(tmp_path):
    script = tmp_path / "stops.py"
    script.write_text(
        with_ranks("class A:\n    n = 1", "%%px\nclass A:\n    n = 2", "ranks['a'] = [A()]")
    )
    done = subprocess.run(
        LAUNCHERS["torchrun"](script, 2), capture_output=True, text=True, timeout=250
    )
    assert done.returncode != 0
    assert "`A` of the kernel goes to the ranks, which have their own `A`" in done.stderr


# Where one variable does: in how many lines of the script the parts change.
ONE = {
    "a number, pushed as it is": ('n = 3\nranks["n"] = n', "%%px\nprint(n)", "print(n)"),
    "a loop's variable on both sides": (
        "for i in range(2):\n    print(i)",
        "%%px\nfor i in range(3):\n    print(i)",
    ),
    "a function, pushed": ('def f():\n    return 1\nranks["f"] = f', "%%px\nf()", "f()"),
    "a name of one side": ("a = [1]\na.append(2)", "%%px\nb = [1]\nb.append(2)", 'ranks["b"]'),
}


@pytest.mark.parametrize("name", ONE)
def test_one_variable_is_enough(name):
    assert "play(" not in body(*ONE[name])


def test_the_parts_change_only_where_such_a_name_is_used():
    text = body('n = [3]\nranks["n"] = n', "%%px\nx = 1", "y = 2", "%%px\nprint(n)", "print(n)")
    assert text.count('play("ranks")') == text.count('play("kernel")') == 1
    assert text.index("y = 2") < text.index("play") < text.index("print(n)")
