"""The book's build: execute the chapters, stage the pages, let jupyter-book make the site.

    python -m bookmaker.site

`execute` runs one chapter, `cache` knows whether it must,
`stage` gathers what Sphinx reads, `build` calls jupyter-book, `pages` and `references` are
Sphinx extensions for the pages themselves.
"""
