"""What ranks import from the chapter's own taught code is, in the script, the definition itself."""

import pytest
from small_notebooks import body, with_ranks

from bookmaker.errors import FormError

SAVED = (
    "#@save\nHALF = 0.5\n\n\nclass Base:\n    def __init__(self):\n        self.half = HALF",
    "#@save\nclass Halved(Base):\n    def __init__(self):\n        super().__init__()\n\n\n"
    "def made():\n    return Halved()",
    "#@save\nkinds = dict(halved=Halved)",
)
IMPORTED = "%%px\nfrom ranklab.taught.x import made, kinds\nx = made().half\ny = kinds"


def test_every_rank_has_what_it_imports():
    """And all that this needs: base classes, constants. Other constants are the kernel's alone."""
    text = body("n = 1", *SAVED, IMPORTED, "n = made()")
    assert "ranklab" not in text and "play(" not in text
    for statement in ("HALF = 0.5", "class Halved(Base):", "def made():", "kinds = dict("):
        assert f"\n{statement}" in text  # at the left margin, not under `if rank == 0:`
    assert "\n    n = 1\n" in f"\n{text}\n" and "\nx = made().half\n" in text
    without = body(*SAVED, "n = made()")
    assert "\n    HALF = 0.5\n" in without and "\n    kinds = dict(" in without


def test_the_kernel_may_import_what_ranks_define():
    text = body(
        "%%px\n#@save more\ndef f():\n    return 1", "from ranklab.taught.more import f\nf();"
    )
    assert text.startswith("def f():") and text.endswith("if rank == 0:\n    f()")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["%%px\nfrom ranklab.taught.x import Base as B"], "import what a `#@save` cell defines"),
        (["%%px\nfrom ranklab.taught.x import dict"], "import what a `#@save` cell defines"),
        ([IMPORTED, "HALF = 2"], "`HALF`, of this chapter's own taught code, would be another"),
        (
            ["#@save\ndef g(a=print()):\n    pass", "%%px\nfrom ranklab.taught.x import g"],
            "`g`, of",
        ),
    ],
)
def test_what_would_be_another_thing_on_the_ranks(cells, words):
    with pytest.raises(FormError, match=words):
        with_ranks(*SAVED, *cells)
