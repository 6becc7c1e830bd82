"""Exported scripts, run as a reader runs them: in an empty folder, without ranklab."""

import re
import subprocess
from pathlib import Path

import nbformat
import pytest
import torch
from launch import BIN, LAUNCHERS, results_in, run_script
from nbclient import NotebookClient
from small_notebooks import IMPORTS, whole, with_ranks
from tiers import few

DARTS = Path(__file__).parent / "notebooks" / "darts.ipynb"


@pytest.fixture(scope="module")
def darts(tmp_path_factory):
    """Somebody's notebook, exported by the command that they would use."""
    folder = tmp_path_factory.mktemp("exported")
    subprocess.run(
        [BIN / "jupyter", "nbconvert", "--to", "ranklab_script", DARTS, "--output-dir", folder],
        check=True,
        capture_output=True,
        timeout=250,
    )
    return folder / "darts.py"


def expected(ranks):
    """What the notebook finds out on so many ranks, worked out without any."""
    hits = []
    for r in range(ranks):
        generator = torch.Generator().manual_seed(r)
        x, y = torch.rand(2, 20_000, generator=generator, dtype=torch.float64)
        hits.append(int((x * x + y * y < 1).sum()))
    return {
        "hits": str(hits),
        "estimate": str(4 * sum(hits) / (20_000 * ranks)),
        "tokens": str([10 + r * (r + 1) // 2 for r in range(ranks)]),
        "tried": "[100, 1000]",
        "reached": str([True] * ranks),
        "total": str(float(sum(hits))),
    }


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    few(
        [("forked", 2), ("alone", 2), ("torchrun", 2), ("mpiexec", 4)],
        lambda launcher, _: launcher == "forked",  # others: tests/chapters/test_chapters.py
    ),
)
def test_every_way_of_starting_it(darts, launcher, ranks, tmp_path):
    text = run_script(darts, launcher, ranks, tmp_path)
    assert results_in(text) == expected(ranks)
    shown = re.findall(r"^rank (\d): (\d+)$", text, re.MULTILINE)
    assert sorted(shown) == [
        (str(r), h) for r, h in enumerate(re.findall(r"\d+", expected(ranks)["hits"]))
    ]
    assert (
        len(re.findall(r"^rank \d failed, as it may here: RuntimeError: .*", text, re.MULTILINE))
        == ranks
    )
    pictures = [path.name for path in (tmp_path / "empty").glob("*.svg")]
    assert pictures == ["darts-errors.svg"]
    assert f"'{ranks} ranks, {ranks} counts'" in text


@pytest.mark.everything
def test_the_notebook_says_the_same(monkeypatch):
    nb = nbformat.read(DARTS, as_version=4)
    monkeypatch.setenv("IPP_NONINTERACTIVE", "1")
    client = NotebookClient(nb, timeout=250, kernel_name="python3", startup_timeout=250)
    try:
        client.execute()
    except (
        RuntimeError
    ):  # the kernel's ports were free when they were chosen, and not when it asked
        client.execute()
    outputs = [o.get("metadata", {}) for cell in nb.cells for o in cell.get("outputs", [])]
    recorded = [told["ranklab"] for told in outputs if "ranklab" in told]
    assert {one["name"]: str(one["value"]) for one in recorded} == expected(4)


@pytest.mark.parametrize("launcher", few(LAUNCHERS, lambda launcher: launcher == "alone"))
def test_a_plain_notebook_runs_once(launcher, tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        whole(IMPORTS, 'result("three", 1 + 2)', "'shown'", ("1 / 0", "raises-exception"))
    )
    text = run_script(script, launcher, 2, tmp_path)
    assert text.count("three = 3") == 1 and text.count("'shown'") == 1
    assert text.count("ZeroDivisionError: division by zero") == 1


def test_a_rank_that_fails_ends_the_script(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        whole(
            IMPORTS,
            "ranks = Ranks(2)",
            "%%px\nif rank == 1:\n    raise ValueError('no file')\nx = 1",
            "print('not reached')",
        )
    )
    command = LAUNCHERS["alone"](script, 2)
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert run.returncode == 1
    assert "ValueError: no file" in run.stderr and "not reached" not in run.stdout


@pytest.mark.parametrize("with_ranklab", [True, False])
def test_ranks_that_are_sampled(with_ranklab, tmp_path):
    script = tmp_path / "sampled.py"
    script.write_text(
        with_ranks(
            "from ranklab.gpu import utilization_plot",
            "%%px\nfrom ranklab.gpu import sampled\n"
            "with sampled(device=device, hz=50) as s:\n"
            '    with s.phase("sum"):\n'
            "        total = torch.ones(1)\n        dist.all_reduce(total)",
            'utilization_plot(ranks["s"], name="sampled")',
            'result("phases", [s.phases[0][0] for s in ranks["s"]])',
            'result("total", ranks["total"][0].item())',
        )
    )
    text = run_script(script, "forked", 2, tmp_path, with_ranklab=with_ranklab)
    phases = {"phases": "['sum', 'sum']"} if with_ranklab else {}
    assert results_in(text) == {**phases, "total": "2.0"}
    assert text.count("What ranklab.gpu measures is left out") == (not with_ranklab)
    drawn = tmp_path / "empty" / "sampled-sampled.svg"
    assert drawn.exists() == with_ranklab


def test_nbconvert_names_the_cell_that_it_refuses(tmp_path):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("%timeit 1")])
    nbformat.write(nb, tmp_path / "mine.ipynb")
    command = [BIN / "jupyter", "nbconvert", "--to", "ranklab_script", "mine.ipynb"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert run.returncode != 0 and "mine, cell 1 (`%timeit 1`): `%timeit` means" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "mine.py").exists()


RANDOM = (
    "import torch\ntorch.manual_seed(0)\na = torch.rand(1).item()",
    "%%px\ntorch.manual_seed(1)\ny = [torch.rand(1).item()]",
    "a = [a, torch.rand(1).item()]",
    "%%px\ny.append(torch.rand(1).item())",
    'result("kernel", a)\nresult("rank_0", ranks["y"][0])',
)
COPIES = (
    'b = [1]\nranks["c"] = b',
    "%%px\nc.append(rank)",
    'result("not_pushed_to", b)\nresult("pushed", ranks["c"])',
)
LOOPS = (
    "def numbers():\n    n = 0\n    while True:\n        yield n\n        n += 1",
    'for n in numbers():\n    ranks["last"] = n\n    if n == 3:\n        break\n'
    'result("last", ranks["last"])',
    'boxes, seen = [[], []], []\nfor i, box in enumerate(boxes):\n    ranks["i"] = i\n'
    '    box.append(lambda: 1)\n    seen.append(ranks["i"])\n'
    'result("lengths", [len(box) for box in boxes])\nresult("seen", seen)',
    'left = 2\nwhile left:\n    ranks["left_now"] = left\n    left -= 1\n'
    'if left:\n    ranks["never"] = 1\nelse:\n    result("left", ranks["left_now"])',
)
ITERATION = (
    'v = 1.0\nfor it in range(3):\n    ranks["v"] = v\n'
    "    parts = ranks.run(lambda: v * (rank + 1))\n    v = sum(parts) / 10\n"
    'result("iterated", round(v, 6))',
)
FAILURES = (
    ("%%px\nif rank == 1:\n    raise ValueError\nx = 1", "raises-exception"),
    'ranks["d"] = 2\nresult("d", ranks["d"])',
)
PICTURES = (
    "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(num='twice')\nplt.show()",
    "fig",
    "class Star:\n    name = 'a star'\n    def _repr_svg_(self):\n        return '<svg/>'\nStar()",
    "plt.plot([1, 2]);",
)


def test_what_the_preamble_promises(tmp_path):
    """Values are copies, loops go in step, each part has its random numbers, failures go on."""
    script = tmp_path / "x.py"
    script.write_text(with_ranks(*RANDOM, *COPIES, *LOOPS, *ITERATION, *FAILURES, *PICTURES))
    text = run_script(script, "forked", 2, tmp_path)
    wanted = {
        "not_pushed_to": "[1]",
        "pushed": "[[1, 0], [1, 1]]",
        "last": "[3, 3]",
        "lengths": "[1, 1]",
        "seen": "[[0, 0], [1, 1]]",
        "left": "[1, 1]",
        "iterated": "0.027",
        "d": "[2, 2]",
    }
    for name, seed in (("kernel", 0), ("rank_0", 1)):
        torch.manual_seed(seed)
        wanted[name] = str([torch.rand(1).item() for _ in range(2)])
    assert results_in(text) == wanted
    assert "rank 1 failed, as it may here: ValueError: \n" in text
    pictures = {path.name for path in (tmp_path / "empty").glob("*.svg")}
    assert pictures == {"x-twice.svg", "x-twice-2.svg", "x-a-star.svg", "x-1.svg"}
