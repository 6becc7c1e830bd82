"""MyST Markdown as plain text, and as a notebook's Markdown."""

import pytest

from bookmaker.errors import FormError
from bookmaker.manuscript import markdown
from bookmaker.notebook.plain_markdown import Places, to_notebook

PLACES = Places("https://example.org/our/book", "https://our.example.org/book", "06_messages")

PLAIN = {
    "{term}`rank`": "rank",
    "{term}`ranks <rank>`": "ranks",
    "{glue:text}`alpha:.2f` µs": "(alpha) µs",
    "{doc}`06_messages`": "chapter 6",
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


# What notebook programs show: the MyST, and the Markdown.
SITE = PLACES.site
SHOWN = {
    "{term}`ranks <rank>`": f"[ranks]({SITE}/glossary.html#term-rank)",
    "{glue:text}`alpha:.2f` µs": f"[`alpha`]({SITE}/06_messages.html) µs",
    "{cite}`a,b`;\n{term}`rank`": (
        f"[\\[a,b\\]]({SITE}/references.html);\n[rank]({SITE}/glossary.html#term-rank)"
    ),
    "{term}`several\nlines <rank>` go": f"[several\nlines]({SITE}/glossary.html#term-rank) go",
    "| {term}`c\\|d` | `{b}` |\n|--|--|": (
        f"| [c\\|d]({SITE}/glossary.html#term-c-d) | `{{b}}` |\n|--|--|"
    ),
    "{ref}`the list <a-list>`, {doc}`stuck`": (
        f"[the list]({SITE}/06_messages.html#a-list), [stuck]({SITE}/stuck.html)"
    ),
    "(label)=\n# Heading\n\n% mine {term}`b`\ntext": "# Heading\n\ntext",
    "a\n(label)=\n": "a\n",
    ":::{note}\nA *rank*.\n\n```\nx\n```\n:::": "> **Note**\n>\n> A *rank*.\n>\n> ```\n> x\n> ```",
    ":::{note}\n:class: a--b -->\n\nx\n:::": "> **Note**\n>\n> x",
    ":::{tip}\n:::": "> **Tip**",
    ":::{admonition} What {term}`ranks <rank>` *do*\n:class: predict\n\nx\n:::": (
        "> **What ranks do**\n>\n> x"
    ),
    "before\n:::{tip}\nx\n:::\n\n:::{tip}\ny\n:::": (
        "before\n> **Tip**\n>\n> x\n\n> **Tip**\n>\n> y"
    ),
    ":::{dropdown} Why <b> & so?\n\n| a |\n|---|\n:::\n\nafter": (
        "<details><summary>Why &lt;b&gt; &amp; so?</summary>\n\n| a |\n|---|\n\n</details>\n\nafter"
    ),
    ":::{exercise} Twice\n:label: twice\n\nWrite.\n:::": (
        f"> **Twice** · [solution]({SITE}/06_messages.html#twice-solution)\n>\n> Write."
    ),
    "<!-- {term}`a` -->": "<!-- {term}`a` -->",
    "<div>\n{term}`a`\n</div>": "<div>\n{term}`a`\n</div>",
}


@pytest.mark.parametrize(("myst", "expected"), SHOWN.items())
def test_notebook_markdown(myst, expected):
    assert to_notebook(myst, PLACES) == expected


def test_code_and_math_are_not_touched():
    text = "`{term}` `` {term}`a` `` $x_{term}$\n\n```\n{term}`a`\n```\n\n$$\n{term}`a`\n$$"
    assert to_notebook(text, PLACES) == text


def test_links_lead_to_the_glossary_the_references_and_the_neighbor():
    shown = to_notebook("{term}`World sizes <world size>` {cite}`a` {doc}`05_ranks`", PLACES)
    assert shown == (
        "[World sizes](https://our.example.org/book/glossary.html#term-world-size) "
        "[\\[a\\]](https://our.example.org/book/references.html) [chapter 5](05_ranks.ipynb)"
    )


REFUSED = {
    "- a\n\n  :::{note}\n  x\n  :::": "Move it out",
    "::::{note}\n:::{tip}\nx\n:::\n::::": "Move it out",
    "```{note}\nx\n```": "with colons",
    ":::{figure} x.svg\n:::": "is not a directive that every form can show",
    ":::{note}\nx": "is never closed",
    ":::{note}\nx\n:::\ntext": "leave an empty line",
    "{numref}`x`": "Use term, cite",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items())
def test_what_not_every_form_can_show_is_refused(text, message):
    with pytest.raises(FormError, match=message.replace("(", r"\(")):
        to_notebook(text, PLACES)
