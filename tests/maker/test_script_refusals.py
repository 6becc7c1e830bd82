"""What the script exporter refuses: each with the cell, the reason, and what to write instead."""

import pytest
from small_notebooks import IMPORTS, RANKS, body, whole

from bookmaker.errors import FormError

F = "def f(n=1):\n    return n"
X = "%%px\nx = 1"

# What is wrong -> (the cells from number 3 on, the cell that is named, words of the sentence).
WITH_RANKS = {
    "a function made in a loop": (
        ["for i in (1, 2):\n    def f(x):\n        return x\n    ranks.run(f, i)"],
        3,
        "in a loop or an `if`, or given another value elsewhere. Define it at the left margin",
    ),
    # the order of a set
    "a set's words numbered": (
        ["%%px\nvocab = {w: i for i, w in enumerate(set(words))}"],
        3,
        "differs from process to process",
    ),
    "a loop over a set": (["%%px\nfor w in {'a', 'b'}:\n    print(w)"], 3, "Sort it first"),
    "a set in a variable": (
        ["%%px\nwords = set('ab')", "%%px\nmore = words | {'c'}\nfor w in more:\n    print(w)"],
        4,
        "go through a set, `more`",
    ),
    "a set in a function that is sent": (
        ["def f():\n    return [w for w in set('ab')]", "ranks.run(f)"],
        3,
        "go through a set",
    ),
    "a hash": (["%%px\nhere = hash('word') % world_size"], 3, "zlib.crc32"),
    "a list of a set": (["%%px\nlist({w[0] for w in ('a', 'b')} | {1})"], 3, "Sort it first"),
    "an array of a set": (["%%px\ntorch.tensor([len(w) for w in set('ab')])"], 3, "Sort it first"),
    # magics
    "line magic": (["%timeit 1"], 3, "`%timeit` means nothing to Python"),
    "cell magic": (["%%bash\nls"], 3, "`%%bash` means nothing to Python"),
    "magic on the ranks": (["%%px\n%time 1"], 3, "`%time` means nothing"),
    "line px": (["%px x = 1"], 3, "write a `%%px` cell"),
    "shell": (["!ls"], 3, "`!ls` is IPython's. Write subprocess.run"),
    "shell, assigned": (["files = !ls"], 3, "`!ls` is IPython's"),
    "help": (["len?"], 3, "`len?` asks IPython for help"),
    "more help": (["len??"], 3, "`len??` asks IPython"),
    "help on a cell magic": (["%%px?"], 3, "is for notebooks"),
    "autocall": (["/print 1"], 3, "IPython's own syntax"),
    "await": (["import asyncio\nawait asyncio.sleep(0)"], 3, "asyncio.run(...)"),
    "async for": (["async for x in y:\n    pass"], 3, "asyncio.run(...)"),
    "no Python": (["x = = 1"], 3, "not Python"),
    "bad indentation": (["def g():\n        x = 1\n    y = 2"], 3, "not Python: unindent"),
    "a string without end": (['x = """\n1'], 3, "not Python: unterminated"),
    "get_ipython": (['get_ipython().run_line_magic("time", "1")'], 3, "without IPython"),
    "last output": (["1", "x = _"], 4, "`_` is IPython's"),
    "__file__": (["print(__file__)"], 3, "a notebook has no `__file__`"),
    # options of %%px
    "noblock": (["%%px --noblock\n1"], 3, "`%%px --noblock` has no translation: "),
    "-a": (["%%px -a\n1"], 3, "`%%px -a` has no translation"),
    "out": (["%%px --out r\n1"], 3, "no AsyncResult"),
    "local": (["%%px --local\n1"], 3, "also runs the cell in the kernel"),
    "unknown option": (["%%px --quick\n1"], 3, "only `--targets` has"),
    "targets by name": (
        ["%%px --targets first\n1"],
        3,
        "write ranks (0,2), a slice (1:), or `all`",
    ),
    # rank operations where they may run never or often
    "pull in a function": ([X, 'def g():\n    return ranks["x"]'], 4, "stands in the function `g`"),
    "pull in a lambda": ([X, 'g = lambda: ranks["x"]'], 4, "stands in a lambda"),
    "pull in a class": ([X, 'class A:\n    x = ranks["x"]'], 4, "the class `A`"),
    "pull in a comprehension": ([X, '[ranks["x"] for i in "ab"]'], 4, "body of a comprehension"),
    "pull in its condition": ([X, '[i for i in "ab" if ranks["x"]]'], 4, "body of a comprehension"),
    "pull in its second for": ([X, '[1 for i in "a" for j in ranks["x"]]'], 4, "comprehension"),
    "pull behind and": ([X, 'y = 1 and ranks["x"]'], 4, "the right side of `and`"),
    "pull behind or": ([X, 'y = 1 or ranks["x"]'], 4, "the right side of `or`"),
    "pull in an arm": ([X, 'y = ranks["x"] if 1 else 2'], 4, "one arm of"),
    "pull in a chain": ([X, 'y = 1 < 2 < len(ranks["x"])'], 4, "chain of comparisons"),
    "pull in a while": ([X, 'while ranks["x"]:\n    pass'], 4, "the test of a `while`"),
    "pull in an assert's message": ([X, 'assert 1, ranks["x"]'], 4, "message of an assert"),
    "pull in a try": ([X, 'try:\n    ranks["x"]\nfinally:\n    pass'], 4, "a `try` block"),
    "push in a with": (["import io\nwith io.StringIO():\n    ranks['x'] = 1"], 3, "a `with` block"),
    "run in a match": ([F, "match 1:\n    case 1:\n        ranks.run(f)"], 4, "a `match`"),
    "break in a with": (
        ['import io\nfor i in (1, 2):\n    ranks["n"] = 1\n    with io.StringIO():\n        break'],
        3,
        "`break` or `continue` inside `with`",
    ),
    "run behind a call": ([F, "n = [1]\nprint(n.pop(), ranks.run(f, n))"], 4, "a line of its own"),
    "pull in a cell that may fail": ([X, ('ranks["x"]', "raises-exception")], 4, "may fail cannot"),
    # ways of writing them
    "a name in a variable": (['n = "x"\nranks[n]'], 3, 'write it as a string, as in ranks["x"]'),
    "a rank's number": (["ranks[0]"], 3, "write it as a string"),
    "no name": (['ranks["a.b"] = 1'], 3, "write it as a string"),
    "two pushes": (['ranks["a"] = ranks["b"] = 1'], 3, "one name, `=`, and one value"),
    "push in a tuple": (['ranks["a"], b = 1, 2'], 3, "one name, `=`, and one value"),
    "push of a sum": (['ranks["a"] += 1'], 3, "one name, `=`, and one value"),
    "push by a loop": (['for ranks["a"] in (1, 2):\n    pass'], 3, "one name, `=`, and one value"),
    "del": (['del ranks["a"]'], 3, "one name, `=`, and one value"),
    "reset in an expression": (["x = ranks.reset()"], 3, "a statement of its own"),
    "push of a lambda": (['ranks["g"] = lambda: 1'], 3, "write it with `def`"),
    # the ranks themselves
    "restart": (["ranks.restart()"], 3, "use ranks.reset()"),
    "view": (["ranks.view.apply(f)"], 3, "ipyparallel's own"),
    "client": (["c = ranks.client"], 3, "ipyparallel's own"),
    "something else": (["ranks.wait()"], 3, "`ranks.wait` has no translation"),
    "passed on": (["def g(r):\n    pass", "g(ranks)"], 4, "Pass the values instead"),
    "another value": (["ranks = 3"], 3, "give the other value another name"),
    "two Ranks": (["more = Ranks(2)"], 3, "the second `Ranks`"),
    "in a with": (["with Ranks(2) as r:\n    pass"], 3, "on a line of its own"),
    "pull after close": ([X, "ranks.close()", 'ranks["x"]'], 5, "closed in an earlier cell"),
    "close in a condition": (["if len(ranks) > 2:\n    ranks.close()"], 3, "top level of a cell"),
    "result as a variable": (["result = 3"], 3, "takes from ranklab"),
    "px after close": (["ranks.close()", X], 4, "closed in an earlier cell"),
    "ranks in px": (["%%px\nprint(ranks)"], 3, "`ranks` lives in the kernel"),
    "result in px": (["%%px\nresult('n', 1)"], 3, "in a plain cell"),
    "figure in px": (
        ["%%px\nimport matplotlib.pyplot as plt\nplt.plot([1])"],
        3,
        "draw in the kernel",
    ),
    "group destroyed": (["%%px\ndist.destroy_process_group()"], 3, "use ranks.reset()"),
    # names
    "never pushed": (["n = 1", "%%px\nprint(n)"], 4, '`ranks["n"] = n`'),
    "never pushed, in a function": (
        ["n = 1", "%%px\ndef g():\n    return n", "%%px\ng()"],
        4,
        "the ranks read `n` (in `g`), which only the kernel has",
    ),
    "never pushed, by run": (
        ["n = 1\ndef g():\n    return n", "ranks.run(g)"],
        4,
        "the ranks read `n` (in `g`)",
    ),
    "never pushed, by a variable's run": (
        ["n = 1\ndef g():\n    return n", "for h in (g,):\n    ranks.run(h)"],
        4,
        "(in `g`)",
    ),
    "never pulled": ([X, "print(x)"], 4, 'Pull it first, as in `xs = ranks["x"]`'),
    "the world size": (["print(world_size)"], 3, "In the kernel it is `ranks.world_size`"),
    "a function of the ranks'": (["%%px\ndef g():\n    pass", "g()"], 4, "`g` is on the ranks"),
    "called in both worlds": (["def g():\n    return rank", "g()"], 3, "`rank` is on the ranks"),
    "pulled from the kernel": (
        ["x = 1", 'ranks["x"]'],
        4,
        "which only the kernel has. Push it before",
    ),
    "rank as a variable": (["for rank, x in enumerate('ab'):\n    pass"], 3, "another name"),
    "rank in px": (["%%px\nrank = 1"], 3, "given to every rank by `Ranks`"),
    "rank pushed": (['ranks["rank"] = 1'], 3, "push the value under another name"),
    "another torch": (["import numpy as torch"], 3, "another name"),
    "imported on one side": (["import math", "%%px\nmath.pi"], 4, "Import it in a `%%px` cell too"),
    "two imports": (["import json as j", "%%px\nimport math as j"], 4, "another name (`as`)"),
    "an import after a value": (["math = 1", "import math"], 4, "use two names"),
    "a default of the kernel's": (
        ["n = 1\ndef g(n=n):\n    return n", "ranks.run(g)"],
        4,
        "its definition reads the kernel's variables",
    ),
    # what is sent to the ranks
    "a function with another value": (
        [
            "def g(x=1):\n    return x",
            "import functools\ng = functools.partial(g, 2)",
            "ranks.run(g)",
        ],
        5,
        "or given another value elsewhere",
    ),
    "a function of a condition": (
        ["def g():\n    return 1\nif g():\n    def g():\n        return 2", "ranks.run(g)"],
        4,
        "or given another value elsewhere",
    ),
    "a function that is pushed, and another of its name": (
        ["def g():\n    return 1", "ranks['g'] = g", "def g():\n    return 2"],
        4,
        "or given another value elsewhere",
    ),
    "an instance of a class that counts": (
        [
            "class C:\n    n = 0\n    def up(self):\n        type(self).n += 1",
            "c = C()",
            "cs = [c]\nranks['cs'] = cs",
        ],
        5,
        "`C` goes to the ranks, but a value",
    ),
    "an instance of a class with an attribute set": (
        ["class C:\n    n = 0", "setattr(C, 'n', 1)", "ranks.run(print, C())"],
        5,
        "`C` goes to the ranks, but a value",
    ),
    "a decorator that counts": (
        [
            "def counted(f):\n    def inner():\n        inner.n += 1\n    inner.n = 0\n"
            "    return inner\n\n@counted\ndef g():\n    pass",
            "ranks.run(g)",
        ],
        4,
        "`g` goes to the ranks, but a value",
    ),
    "a push of what is imported": (["from math import pi\nranks['pi'] = 3"], 3, "also imported"),
    "a function used before it is pushed": (
        ["def g():\n    pass", "%%px\ng()", "ranks['g'] = g"],
        4,
        "only the kernel has",
    ),
    "a name given in a push": (["ranks['n'] = (m := len([]))"], 3, "`:=` stands in"),
    "a name given in a loop": (
        ["for x in (y := [1, 2]):\n    ranks['n'] = x"],
        3,
        "`:=` stands in",
    ),
    "a name given in a condition": (["if (k := 5) > 1:\n    ranks['n'] = k"], 3, "`:=` stands in"),
    "a rank's environment": (["import os\nos.environ.get('RANK')"], 3, "in the environment of"),
    "a key that asks for the rank": (
        ["def key(v):\n    return v - rank", "sorted([2, 1], key=key)"],
        3,
        "`rank` is on the ranks",
    ),
    "a class with an attribute set": (
        ["class C:\n    k = 0", "C.k = 5", 'ranks["C"] = C'],
        5,
        "an attribute that is set",
    ),
    "a class with a list": (["class C:\n    k = []", 'ranks["C"] = C'], 4, "a list or a call"),
    "a default that is a list": (["def g(a=[]):\n    pass", "ranks.run(g)"], 4, "a list or a call"),
    "a default that is drawn": (
        ["import random\ndef g(w=random.random()):\n    pass", "ranks.run(g)"],
        4,
        "goes to the ranks",
    ),
    "a decorator with a memory": (
        [
            "calls = []\ndef log(f):\n    calls.append(f)\n\n@log\ndef g():\n    pass",
            "ranks.run(g)",
        ],
        4,
        "(a default, a decorator, a base class)",
    ),
    "a lambda's default": (
        [X, 'xs = ranks["x"]', "ranks.run(lambda v=xs: v)"],
        5,
        "`ranks.run(lambda xs: ..., xs)`",
    ),
    "a lambda's default that is called": (["ranks.run(lambda v=dict(): v)"], 3, "calls a function"),
    "a function that another made": (
        ["def adder(n):\n    return lambda x: x + n\n\nadd = adder(3)", "ranks.run(add, 4)"],
        4,
        "`add` is a function that `adder` has made",
    ),
    "a function of the ranks', pulled": (["%%px\ndef g():\n    pass", 'ranks["g"]'], 4, "rank 0's"),
    "a function of the ranks', run": (
        ["%%px\ndef g():\n    pass", "ranks.run(g)"],
        4,
        "goes to the ranks by itself",
    ),
    "an import and a variable": (
        ["import math as m\nm.pi", "%%px\nm = 3\nprint(m)"],
        4,
        "another name on one side",
    ),
    "made in a left-out cell": (
        [("n = 1", "notebook-only"), "print(n)"],
        4,
        "from cell 3",
    ),
    "pulled from a left-out cell": (
        [("%%px\nn = 1", "notebook-only"), 'ranks["n"]'],
        4,
        "from cell 3",
    ),
    # the lab's
    "a view's value": (
        ["from ranklab import traffic\nx = traffic(1)"],
        3,
        "use its value nowhere else",
    ),
    "where's value": (["x = ranks.where()"], 3, "use its value nowhere else"),
    "a view on the ranks": (
        ["%%px\nfrom ranklab import traffic\ntraffic(1)"],
        3,
        "`with traffic() as t:`",
    ),
    "no such function": (["from ranklab.plots import nothing"], 3, "there is no `nothing` to take"),
    "no such chapter": (["from ranklab.taught.nowhere import f"], 3, "no `ranklab.taught.nowhere`"),
    "a hidden import": (
        ["def g():\n    from ranklab import Ranks"],
        3,
        "at the top level of a cell",
    ),
    "a star": (["from ranklab.plots import *"], 3, "name them"),
}

# The same for notebooks of which the cells are all there is.
ALONE = {
    "px without ranks": ([X], 1, "make them in a cell before"),
    "px before ranks": ([IMPORTS, X, RANKS], 2, "Make them in a cell before"),
    "a pull before": ([IMPORTS, 'ranks["x"]', RANKS], 2, "before cell 3 makes it"),
    "a size of the notebook's": (
        [IMPORTS, "n = 4", "ranks = Ranks(n)"],
        3,
        "plain numbers and strings",
    ),
    "no rank": ([IMPORTS, "ranks = Ranks(0)"], 2, "a whole number from 1"),
    "an unknown argument": ([IMPORTS, "ranks = Ranks(4, color=1)"], 2, "does not know"),
    "Ranks in px": ([IMPORTS, "%%px\nranks = Ranks(4)"], 2, "none yet"),
    "two names": ([IMPORTS, "a = b = Ranks(4)"], 2, "one name on the left"),
    "Ranks in an expression": ([IMPORTS, "print(Ranks(4))"], 2, "on a line of its own"),
}


def refusal(number, cells, call):
    with pytest.raises(FormError) as raised:
        call(*cells)
    text = str(raised.value)
    first = cells[number] if isinstance(cells[number], str) else cells[number][0]
    assert text.splitlines()[0].startswith(
        f"x, cell {number + 1 if call is whole else number + 3} (`"
    )
    assert first.splitlines()[0][:40] in text
    return text


@pytest.mark.parametrize("name", WITH_RANKS)
def test_with_ranks(name):
    cells, number, words = WITH_RANKS[name]
    assert words in refusal(number - 3, cells, body)


@pytest.mark.parametrize("name", ALONE)
def test_alone(name):
    cells, number, words = ALONE[name]
    assert words.lower() in refusal(number - 1, cells, whole).lower()


@pytest.mark.parametrize(
    "code",
    [
        "{w: i for i, w in enumerate(sorted(set('ab')))}",
        "sorted(w + 'x' for w in {'a', 'b'})",
        "len(set('ab')), 'a' in {'a', 'b'}, max({'a', 'b'}), sum(len(w) for w in {'a', 'b'})",
        "{w + 'x' for w in set('ab')}",
        "[r for r in {0, 2}]",
    ],
)
def test_a_set_of_which_no_order_comes(code):
    assert code in body(f"%%px\nx = {code}")
