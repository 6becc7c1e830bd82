"""Exercises that are not well made are refused, with their place and what to do."""

import pytest
from exercise_sample import SAMPLE

from bookmaker.errors import FormError
from bookmaker.manuscript import exercises, manuscript

CODE = "```{code-cell} ipython3"
# (what to replace in the sample, by what, what the error says)
MALFORMED = {
    "no end": ("    ### END SOLUTION\n```", "```", "cell 2 .*is never followed by `### END"),
    "no begin": ('    ### BEGIN SOLUTION\n    return "a"', "    x = 1", "cell 2 .*BEGIN.*first"),
    "end before begin": (
        '    ### BEGIN SOLUTION\n    return "a"\n    ### END SOLUTION',
        '    ### END SOLUTION\n    return "a"\n    ### BEGIN SOLUTION',
        "cell 2 .*`### END SOLUTION` stands where `### BEGIN SOLUTION` is to come first",
    ),
    "nested": (
        '    return "a"',
        '    ### BEGIN SOLUTION\n    return "a"',
        "cell 2 .*`### BEGIN SOLUTION` stands where `### END SOLUTION` is to come first",
    ),
    "no region": (
        '    ### BEGIN SOLUTION\n    return "a"\n    ### END SOLUTION',
        '    return "a"',
        "cell 2 .*there is no solution",
    ),
    "an empty region": (
        '    return "a"\n    ### END',
        "    # a\n\n    ### END",
        "cell 2 .*no code",
    ),
    "at the left margin": (
        "import math\n",
        "### BEGIN SOLUTION\nimport math\n### END SOLUTION\n",
        "cell 4 .*left margin",
    ),
    "a marker behind code": ("    secret = x + x\n    ###", "    x ###", "cell 4 .*its own"),
    "no Python": ("    return checked(secret)", "    return (", "cell 4 .*stub is not Python"),
    "a solution that is no Python": ("secret = x + x", "secret = x +", "the solution is not Py"),
    "a magic": ("import math\n", "%%px\nimport math\n", "cell 4 .*no magic"),
    "taught": ("import math\n", "#@save\nimport math\n", "cell 4 .*no `#@save`"),
    "no check": (
        '```{code-cell} ipython3\n:tags: [check]\n\ncheck("twice", twice)\n```\n',
        "",
        "cell 4 .*is followed by its check",
    ),
    "the check of another": (
        'check("twice", twice)',
        'check("thrice", twice)',
        'cell 5 .*`twice` ends with `check\\("twice", ...\\)`',
    ),
    "a check without an answer": ('check("twice", twice)', 'check("twice")', "cell 5 .*ends with"),
    "something after the check": (
        'check("twice", twice)',
        'check("twice", twice)\nx = 1',
        "cell 5 .*ends with",
    ),
    "two of one label": (
        ":label: twice\n",
        ":label: twice-two\n",
        "the text after cell 3 .*another label",
    ),
    "a label that is no name": (":label: twice\n", ":label: Twice_1\n", "needs a label of small"),
    "no label": (":label: twice\n", "", "needs a label"),
    "no kind": (":class: fill-in\n", "", "one of predict, fill-in, build"),
    "no title": ("{exercise} Twice anything", "{exercise}", "needs a title"),
    "no time": ("*Fill in, about 2 minutes.*", "*Fill in.*", r"must begin .*\*Fill in, about 10"),
    "another kind": ("*Fill in, about 2", "*Build, about 2", r"must begin .*\*Fill in, about 10"),
    "a text in between": (
        "```python\ntwice(3)  # is 6\n```\n:::\n",
        ":::\n\nmore text\n",
        "after `:::{exercise} Twice anything` comes its cell",
    ),
    "a cell in between": (
        f"{CODE}\n:tags: [exercise]\n\nimport",
        f"{CODE}\nx = 1\n```\n\n{CODE}\n:tags: [exercise]\n\nimport",
        "the text after cell 3 .*has no code cell tagged `exercise` below it",
    ),
    "no directive": (
        "## What you can do now",
        "```{code-cell} ipython3\n:tags: [exercise]\n\nx = 1\n```\n\n## What",
        "cell 8 .*is tagged `exercise`, and what comes directly",
    ),
    "a lonely check": (
        "## What you can do now",
        "```{code-cell} ipython3\n:tags: [check]\n\nx = 1\n```\n\n## What",
        "cell 8 .*is tagged `check`, and what comes directly before it is not a cell",
    ),
    "a solution that anybody sees": (
        'result("three", 3)',
        "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION",
        "cell 1 .*not tagged `exercise`",
    ),
    "a solution of another": (
        "{solution} twice",
        "{solution} twice-two",
        "the text after cell 5 .*directly below the check",
    ),
    "a solution elsewhere": (
        "## What you can do now",
        "## What you can do now\n\n:::{solution} twice\nx\n:::\n",
        "the text after cell 7 .*directly below the check",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_not_well_made_is_refused_with_its_place(case):
    old, new, message = MALFORMED[case]
    text = SAMPLE.read_text()
    assert old in text
    nb = manuscript.parse(text.replace(old, new, 1), "book/93_exercises.md")
    with pytest.raises(FormError, match=message) as raised:
        exercises.find(nb)
    assert str(raised.value).startswith("93_exercises, ")
