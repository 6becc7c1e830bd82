"""How long a chapter is, and the minutes that its first lines promise."""

from bookmaker.manuscript import lengths, manuscript

HEAD = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3 (ipykernel)
  language: python
  name: python3
---
"""
CHAPTER = (
    HEAD
    + """
# A title

*5 minutes to read · 3 seconds to run*

four words of text

:::{admonition} Predict
:class: predict
what comes out
:::

```python
no words = at all
```

```{code-cell} ipython3
a = 1

b = 2
```

```{code-cell} ipython3
:fold: 'Drawn: nothing'

c = 3
```

## Extra: more

five words, one of code: `x`

```{code-cell} ipython3
d = 4
e = 5
```

### Below it

two more

## Back

in the chapter

## Exercises

not counted any more

```{code-cell} ipython3
f = 6
```
"""
)


def chapter(text=CHAPTER):
    return manuscript.parse(text, "book/90_long.md")


def test_what_is_shown_is_told_from_what_is_folded():
    found = lengths.measure(chapter())
    assert (found.shown, found.longest, found.folded) == (2, 2, 3)
    assert found.extra == 3 + 6 + 3 + 2
    assert found.words == 3 + 9 + 4 + 4 + 2 + 3
    assert found.predictions == 1


def test_the_minutes_are_those_of_200_words_and_25_lines():
    assert lengths.Lengths(words=1000, shown=50).minutes == 7
    assert lengths.Lengths(words=3900, shown=390).minutes == 35
    said = manuscript.write(lengths.with_minutes(chapter()))
    assert "*1 minutes to read, 1 prediction ·" in said
    assert manuscript.write(lengths.with_minutes(manuscript.parse(said, "book/90_long.md"))) == said
