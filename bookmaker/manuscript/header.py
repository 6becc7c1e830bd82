"""What the head of a manuscript says of its chapter, under the key `chapter`.

It is all that a central file or a test knows of a chapter by itself.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from bookmaker.errors import FormError

LAUNCHERS = ("alone", "torchrun", "mpiexec")


@dataclass(frozen=True)
class Header:
    """A chapter's header.

    about: what the lists of chapters say of it, in a line of MyST.
    ranks: the numbers of ranks with which the tests run its script; the first of them every time.
    launchers: by which they start it.
    """

    about: str
    ranks: tuple[int, ...] = (4, 2)
    launchers: tuple[str, ...] = LAUNCHERS


# key -> what may stand there, and how to say so.
_RIGHT = {
    "about": (lambda v: isinstance(v, str) and v.strip(), "a line of text"),
    "ranks": (lambda v: _some_of(v, range(2, 9)), "a list of numbers from 2 to 8"),
    "launchers": (lambda v: _some_of(v, LAUNCHERS), f"a list of {', '.join(LAUNCHERS)}"),
}


def read(path: Path) -> Header:
    """The header of the manuscript at `path`. Raises FormError for one that is not right."""
    parts = path.read_text(encoding="utf-8", errors="replace").split("---\n", 2)
    try:
        whole = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0] else None
    except yaml.YAMLError as error:
        raise FormError(f"{path.stem}: the header is not YAML: {error}") from error
    return _checked(whole.get("chapter") if isinstance(whole, dict) else None, path.stem)


def _checked(said: object, name: str) -> Header:
    said = said if isinstance(said, dict) else {}
    known = [field.name for field in fields(Header)]
    for key in said:
        if key not in known:
            raise FormError(
                f"{name}: `chapter: {key}:` in the header says nothing to anybody. "
                f"There are {', '.join(known)}."
            )
    if "about" not in said:
        raise FormError(
            f"{name}: the header does not say what the chapter is about. Write "
            "`chapter:` and below it, indented, `about: ...`, the line of the start page."
        )
    for key, value in said.items():
        is_right, what = _RIGHT[key]
        if not is_right(value):
            raise FormError(f"{name}: `chapter: {key}:` in the header is {value!r}; write {what}.")
    return Header(**{k: tuple(v) if isinstance(v, list) else v for k, v in said.items()})


def _some_of(value: object, allowed) -> bool:
    return isinstance(value, list) and bool(value) and all(one in allowed for one in value)
