"""Which module of taught code a cell is saved in: ``#@save``, or ``#@save name``."""

import re

MARK = re.compile(r"#@save(?: +([a-z]\w*))? *")


def module_name(chapter: str) -> str:
    """The taught module's name: "messages" for the chapter "06_messages"."""
    return re.sub(r"^\d+_", "", chapter)


def module_of(python: str, chapter: str) -> str:
    """The module that a cell of a chapter is saved in; "" if in none."""
    mark = MARK.fullmatch(python.lstrip().partition("\n")[0])
    return (mark[1] or module_name(chapter)) if mark else ""
