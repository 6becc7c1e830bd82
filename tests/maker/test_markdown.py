"""MyST Markdown as plain text, and as a notebook's Markdown and back."""

import itertools
import random

import pytest

from bookmaker.errors import FormError
from bookmaker.manuscript import markdown
from bookmaker.notebook.plain_markdown import Places, to_myst, to_notebook

pytestmark = pytest.mark.timeout(60)

PLACES = Places("https://example.org/our/book", "https://our.example.org/book", "06_messages")

PLAIN = {
    "{term}`rank`": "rank",
    "{term}`ranks <rank>`": "ranks",
    "{glue:text}`alpha:.2f` µs": "(alpha) µs",
    "{doc}`06_messages`": "chapter 06_messages",
    "{doc}`the next <06_messages>`": "the next",
    "{cite}`x`": "[x]",
    "{cite}`x,y`": "[x, y]",
    "{ref}`the list <a-list>`": "the list",
    "[a *b*](https://x.y/a_b_(c) 'no')": "[a b](https://x.y/a_b_(c) 'no')",
    '[a *b*](https://x.y/a_b_(c) "t")': "a b (https://x.y/a_b_(c))",
    "[{term}`rank`s](u)": "ranks (u)",
    "<https://x.y>": "https://x.y",
    "![seen](a.svg)": "[figure: seen]",
    "*a* **b** ***c*** _d_ __e__": "a b c d e",
    "**who waits, {term}`ranks <rank>`?**": "who waits, ranks?",
    "a * b * c, snake_case_name, 2 ** 3": "a * b * c, snake_case_name, 2 ** 3",
    "`{term}` and `` {term}`x` `` and `*x*`": "`{term}` and `` {term}`x` `` and `*x*`",
    "$a_{1} * b_{2} * c$": "$a_{1} * b_{2} * c$",
    r"\*not\* \{term}": r"*not* {term}",
    "(label)=\n## A heading": "## A heading",
    "% mine\ntext": "text",
    "a <!-- hidden --> b": "a  b",
    "<!-- hidden -->\n\ntext": "text",
    ":::{admonition} Predict\n:class: predict\n\nWhat?\n:::": "Predict: What?",
    ":::{dropdown} Why is *x* 1?\nIt is.\n:::": "Why is x 1? It is.",
    ":::{note}\n- a\n- b\n:::": "Note:\n\n- a\n- b",
    "text\n:::{tip}\nT\n:::\nmore": "text\n\nTip: T\n\nmore",
    ":::{tip}\nT\n:::\n\n\nmore": "Tip: T\n\nmore",
    "```python\n'{term}`x`'  # *x*\n\n\n\n1\n```": "```python\n'{term}`x`'  # *x*\n\n\n\n1\n```",
    "| {term}`a` | b |\n| --- | --- |\n| 1 | 2 |": "| a | b |\n| --- | --- |\n| 1 | 2 |",
    "a\n\n\n\nb": "a\n\nb",
}


@pytest.mark.parametrize(("text", "expected"), PLAIN.items())
def test_plain_text(text, expected):
    assert markdown.plain(text) == expected


# What notebook programs must show plainly, and what must come back to the letter.
EXACT = [
    "{term}`rank` at the start and at the end {term}`rank`",
    "a {term}`rank`,{term}`rank`;\n{term}`rank`\n{cite}`a,b`",
    "``{term}`rank` `` and ``` `` ` `` ``` and {term}`` a`b ``",
    "{term}`several\nlines <rank>` go on",
    'a title with "quotes" & <tags>: {ref}`"a" & [b] <x>`',
    "- {term}`a`\n  - {cite}`b`\n\n    {doc}`05_ranks`\n1. {glue:text}`c:.1e`",
    "| {term}`a` | `{b}` |\n|:--|--:|\n| {term}`c\\|d` | {glue:text}`e` |",
    "# {term}`a` in a heading\n\nSet\n---\n{term}`a`",
    "$x_{a}$ and $\\text{`{term}`b`}$ and $$\\frac{1}{{n}}$$ and 5\\$ {term}`a`",
    "$$\nx_{a}\n{term}`a`\n$$\n\n{term}`a`",
    "$$\nx\n$$ (eq)\n",
    '```python\n{term}`a`\n:::{note}\n<!-- myst ":::{note}" -->\n> x\n```\n{term}`a`',
    "~~~\n```\n{term}`a`\n~~~",
    "    {term}`a`\n\n{term}`b`",
    '``[r](x "{term}`r`")`` and $[r](x "{term}`r`")$ and {term}`r`',
    '    <!-- myst ":::{dropdown} A" -->\n    <details><summary>A</summary>\n    </details>',
    "> {term}`a`\n>\n> ```\n> {term}`b`\n> ```",
    "*5 minutes · stands on {doc}`05_ranks`*",
    "a lone ` here and {term}`b`",
    '[a link](x "title") [{term}`b`](y) \\[c\\](d)',
    "(label)=\n# Heading\n\n% comment\n% -- another {term}`b`\ntext",
    "<!-- {term}`a` -->\n\n<div>\n{term}`a`\n</div>\n\n{term}`a`",
    ":::{note}\nA {term}`rank`.\n:::",
    ":::{note}\n\n\nA\n\n\n:::",
    ":::{admonition} A {term}`rank` -- *now*\n:class: predict\n\n> q\n\n```\n:::{x}\n```\n:::",
    "::::{warning}\nx\n::::",
    ':::{dropdown} Why <b> & "c"?\n\n| a |\n|---|\n| {term}`b` |\n\n:::\n\nafter',
    ":::{dropdown} Empty\n:::",
    ":::{tip}\n:::",
    "before\n:::{tip}\nx\n:::\n\n:::{tip}\ny\n:::",
    ":::{admonition} **Bold**\nx\n:::",
    "\n\n  leading and trailing\n\n",
    "tabs\tand trailing spaces  \nhere",
    "ümläut {term}`größe` → {cite}`é`",
]


@pytest.mark.parametrize("text", EXACT)
def test_notebook_markdown_and_back(text):
    assert to_myst(to_notebook(text, PLACES)) == text


def test_random_mixtures_come_back_or_are_refused():
    pieces = [
        *("{term}`rank`", "{cite}`a,b`", "`code`", "``a ` b``", "$x_{a}$", "$", "`", "\\", "|"),
        *("\n", "\n\n", "\n- ", "\n> ", "\n    ", "\n```\n", "\n$$\n", "\n:::\n", "\n:::{note}\n"),
        *("<!--", "-->", "\n</details>\n", "**", "[a](b)", '"', "\n% c\n", "\n(a)=\n", " ", "word"),
        *('\n<!-- myst ":::{note}" -->\n', '<!-- myst "\\x" -->', "\n> **Note**\n", "<details>"),
        *('\n<!-- myst ":::{dropdown} A" "" -->\n', "<details><summary>", "</summary>\n"),
    ]
    rng = random.Random(0)
    refused = 0
    for _ in range(800):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 12)))
        to_myst(text)  # whatever a reader types, there is some MyST for it
        try:
            assert to_myst(to_notebook(text, PLACES)) == text
        except FormError:
            refused += 1
    assert refused < 400


def test_code_and_math_are_not_touched():
    text = "`{term}` `` {term}`a` `` $x_{term}$\n\n```\n{term}`a`\n```\n\n$$\n{term}`a`\n$$"
    assert to_notebook(text, PLACES) == text


def test_a_directives_lines_are_in_one_html_comment():
    shown = to_notebook(":::{note}\n:class: a--b -->\n\nx\n:::", PLACES).splitlines()
    assert shown[0].count("--") == 2
    assert shown[1:] == ["> **Note**", ">", "> x"]


def test_links_lead_to_the_glossary_the_references_and_the_neighbor():
    shown = to_notebook("{term}`World sizes <world size>` {cite}`a` {doc}`05_ranks`", PLACES)
    assert shown == (
        "[World sizes](https://our.example.org/book/glossary.html#term-world-size "
        '"{term}`World sizes &lt;world size&gt;`") '
        '[\\[a\\]](https://our.example.org/book/references.html "{cite}`a`") '
        '[05_ranks](05_ranks.ipynb "{doc}`05_ranks`")'
    )


REFUSED = {
    "- a\n\n  :::{note}\n  x\n  :::": "Move it out",
    "::::{note}\n:::{tip}\nx\n:::\n::::": "Move it out",
    "```{note}\nx\n```": "with colons",
    ":::{figure} x.svg\n:::": "is not a directive that every form can show",
    ":::{note}\nx": "is never closed",
    ":::{note}\nx\n:::\ntext": "leave an empty line",
    "{numref}`x`": "Use term, cite",
    '<!-- myst ":::{note}" -->\n> x': "cannot be turned into a notebook's Markdown and back",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items())
def test_what_cannot_come_back_is_refused(text, message):
    with pytest.raises(FormError, match=message.replace("(", r"\(")):
        to_notebook(text, PLACES)


ADMONITION = to_notebook(":::{admonition} Predict\n:class: predict\n\nWhat?\n:::", PLACES)
NOTE = to_notebook(":::{note}\nA {term}`rank`.\n:::", PLACES)
DROPDOWN = to_notebook(":::{dropdown} Why?\nSo.\n:::", PLACES)

# What a reader does to a cell in the notebook, and the MyST that it gives.
EDITS = [
    (ADMONITION, "Predict**", "Guess**", ":::{admonition} Guess\n:class: predict\n\nWhat?\n:::"),
    (
        ADMONITION,
        "What?",
        "What?\n> - a",
        ":::{admonition} Predict\n:class: predict\n\nWhat?\n- a\n:::",
    ),
    (ADMONITION, "> What?", "> :::", "::::{admonition} Predict\n:class: predict\n\n:::\n::::"),
    (NOTE, "**Note**", "**Mind**", ":::{note}\n**Mind**\n\nA {term}`rank`.\n:::"),
    (NOTE, "> **Note**\n>\n", "", ":::{note}\nA {term}`rank`.\n:::"),
    (NOTE, "[rank]", "[ranks]", ":::{note}\nA {term}`ranks <rank>`.\n:::"),
    (NOTE, NOTE.splitlines()[0] + "\n", "", "> **Note**\n>\n> A {term}`rank`."),
    (NOTE, NOTE, NOTE.splitlines()[0], NOTE.splitlines()[0]),
    (NOTE, NOTE, NOTE + "\nlazy", ":::{note}\nA {term}`rank`.\n:::\nlazy"),
    (DROPDOWN, "Why?", "Why &lt; not?", ":::{dropdown} Why < not?\nSo.\n:::"),
    (DROPDOWN, "So.", "So.\n\n```\n</x>\n```", ":::{dropdown} Why?\nSo.\n\n```\n</x>\n```\n:::"),
    (DROPDOWN, "\n\nSo.\n\n", "\nSo.\n", ":::{dropdown} Why?\nSo.\n:::"),
    (DROPDOWN, "</details>", "", None),
    (NOTE, '":::{note}"', '":::{note}\\x"', None),
    (NOTE, ":::{note}", ":::{figure}", None),
    ("{term}`new`", "", "", "{term}`new`"),
]


@pytest.mark.parametrize(("shown", "old", "new", "expected"), EDITS)
def test_an_edited_cell_is_valid_myst(shown, old, new, expected):
    myst = to_myst(shown.replace(old, new) if old else shown)
    if expected is not None:
        assert myst == expected
    for segment in markdown.segments(myst):
        if segment.kind == "directive":
            assert markdown.directive(segment.lines).closer, myst


def test_every_pair_of_constructs_comes_back():
    pairs = list(itertools.product(EXACT, EXACT))
    for one, other in random.Random(0).sample(pairs, 300):
        text = f"{one}\n\n{other}"
        try:
            assert to_myst(to_notebook(text, PLACES)) == text
        except FormError as error:
            pytest.fail(f"{text!r}: {error}")
