"""Pushes under their own name, in exported scripts: one object on rank 0, compared."""

import subprocess

import pytest
from launch import BIN, LAUNCHERS, results_in, run_script
from small_notebooks import body, with_ranks

MODEL = (
    "import torch\nmodel = torch.nn.Linear(1, 1, bias=False)\n"
    "torch.nn.init.ones_(model.weight)\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
)
CHECK = "unchanged("


def test_numbers_are_sent_as_they_are():
    text = body('n = 3\nranks["n"] = n', "%%px\nprint(n)", "print(n)")
    assert "n = from_rank_0(lambda: n)" in text and CHECK not in text


def test_a_push_without_a_reader_on_the_other_side_is_not_compared():
    text = body('x = [1]\nranks["x"] = x', "%%px\nprint(x)", "%%px\nprint(x)")
    assert "x = keep_and_send(lambda: x)" in text
    assert CHECK not in text and "note(" not in text


def test_numbers_in_a_list_are_not_compared():
    push = 'sizes = [4**k for k in range(3)]\nranks["sizes"] = sizes'
    text = body(push, "%%px\nys = [bytes(n) for n in sizes]", "print(sizes)")
    assert CHECK not in text


def test_the_comparison_stands_before_the_cell():
    text = body(
        'def f(v):\n    v.append(1)\n\nx = [1]\nranks["x"] = x',
        "f(x)",
        "%%px\nimport time\nstart = time.time()\nprint(x)",
    )
    assert "note(x=x)" in text
    assert text.rindex(CHECK) < text.rindex("everyone()") < text.index("start =")


def test_only_the_push_that_is_compared_is_noted():
    again = 'ranks["x"] = x'
    reads = ["%%px\nx.index(1)", "print(x)"]
    text = body(f"x = [1]\n{again}", "%%px\nprint(x)", again, *reads)
    assert text.count("keep_and_send") == 2 and text.count("note(x=x)") == 1
    assert text.rindex("keep_and_send") < text.index("note(x=x)")


# What the notebook does behind MODEL -> whether its two sides would have been one.
STOPS = {
    "trained on the ranks": (
        'ranks["model"] = model',
        "%%px\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(1, 1)).sum().backward()\nopt.step()",
        'result("w", model.weight.item())',
    ),
    "trained in the kernel": (
        'ranks["model"] = model',
        "model(torch.ones(1, 1)).sum().backward()\noptimizer.step()",
        "%%px\nw = model.weight.item()",
    ),
    "another name on the ranks": (
        'n = [1]\nranks["n"] = n',
        "%%px\nm = n\nm.append(1)",
        "print(n)",
    ),
    "another name in the kernel": (
        'n = [1]\nranks["n"] = n',
        "from heapq import heappush\nheappush(n, 0)",
        "%%px\nprint(n)",
    ),
    "a list of its parts": (
        'parts = list(model.parameters())\nranks["model"] = model',
        "%%px\ntorch.nn.init.zeros_(model.weight)",
        "print(parts[0])",
    ),
    "in a method": (
        'n = [1]\nranks["n"] = n',
        "class T:\n    def total(self):\n        return sum(n)\n\nt = T()",
        "%%px\n(lambda v: v.append(5))(n)",
        "print(t.total())",
    ),
    "the same cell": (
        'def fill(v):\n    v.append(1)\n\ndef f():\n    return len(n)\n\nn = [1]\nranks["n"] = n\n'
        "fill(n)\nprint(ranks.run(f))",
    ),
    "in a loop": (
        'def fill(v):\n    v.append(1)\n\ndef f():\n    return len(n)\n\nn = [1]\nranks["n"] = n',
        "for i in (1, 2):\n    print(ranks.run(f))\n    fill(n)",
    ),
}


@pytest.mark.parametrize("name", STOPS)
def test_every_way_to_share_is_compared(name):
    text = body(MODEL, *STOPS[name])
    assert CHECK in text and "note(" in text


def test_a_script_stops_where_the_two_would_differ(tmp_path):
    script = tmp_path / "stops.py"
    script.write_text(with_ranks(MODEL, *STOPS["trained on the ranks"]))
    done = subprocess.run(
        [*LAUNCHERS["torchrun"](2), script], capture_output=True, text=True, timeout=60
    )
    assert BIN.exists() and done.returncode != 0
    assert "`model` has changed since it was pushed" in done.stderr
    assert "w = " not in done.stdout


def test_what_rank_0_keeps_and_the_others_get(tmp_path):
    """Aliases live on in the kernel, ranks train on, a registered function stays rank 0's."""
    script = tmp_path / "goes_on.py"
    script.write_text(
        with_ranks(
            f"{MODEL}\na = [1]\nb = a",
            'ranks["a"] = a\nranks["model"] = model',
            'a.append(2)\nresult("b", b)',
            "%%px\ny = model(torch.ones(1, 1)).item()",
            'model(torch.ones(1, 1)).sum().backward()\noptimizer.step()\nresult("y", ranks["y"])',
            'result("w", round(model.weight.item(), 3))',
            "registry = {}\n\ndef op(f):\n    registry[f.__name__] = f\n    return f\n\n"
            "@op\ndef add(a, b):\n    return a + b",
            'result("added", registry["add"](1, 2))',
            "class O:\n    pass\n\no = O()\nfor o.x in [1, 2]:\n"
            '    ranks["s"] = 3\nresult("x", o.x)',
            'for lr in [0.1, 0.2]:\n    ranks["lr"] = lr',
            "%%px\nz = lr",
            'result("z", ranks["z"])',
            'Alias = list\nys: Alias = ranks["y"]\nresult("ys", ys)',
            "ranks.close()",
            "ranks.close()",
        )
    )
    assert results_in(run_script(script, "torchrun", 2, tmp_path / "run", limit=60)) == {
        "b": "[1, 2]",
        "y": "[1.0, 1.0]",
        "w": "0.9",
        "added": "3",
        "x": "2",
        "z": "[0.2, 0.2]",
        "ys": "[1.0, 1.0]",
    }


def test_arrays_drawn_from_one_generator_are_two_objects():
    body(
        "import numpy as np\nrng = np.random.default_rng(0)",
        "a = rng.normal(size=3)\nb = rng.permutation(3)\nranks['a'] = a\nranks['b'] = b",
        "%%px\nprint(a + b)",
    )
