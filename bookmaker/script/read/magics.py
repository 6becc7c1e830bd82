"""The options of ``%%px``: which of them a script can follow."""

import ast
import shlex
from dataclasses import dataclass

_SHOWN_ONLY = {
    "--block",
    "--stream",
    "--no-stream",
    "--verbose",
    "--noverbose",
    "-v",
}
_SHOWN_ONLY_WITH_VALUE = {"--group-outputs", "--progress-after", "-g"}
_REFUSED = {
    "--noblock": "a script's ranks all run the cell before the next one starts",
    "-a": "a script's ranks all run the cell before the next one starts",
    "--out": "a script has no AsyncResult; pull the values with ranks[...]",
    "-o": "a script has no AsyncResult; pull the values with ranks[...]",
    "--local": "it also runs the cell in the kernel, which a script does not have",
    "--signal-on-interrupt": "a script's ranks are interrupted with the script",
}


@dataclass(frozen=True)
class Targets:
    """The ranks that a ``%%px`` cell runs on: all, or those that ``chosen`` describes."""

    chosen: slice | tuple[int, ...] | None = None

    def ranks(self, world_size: int) -> set[int]:
        """The ranks meant, of so many."""
        everyone = range(world_size)
        if self.chosen is None:
            return set(everyone)
        if isinstance(self.chosen, slice):
            return set(everyone[self.chosen])
        return {everyone[r] for r in self.chosen if -world_size <= r < world_size}

    def condition(self) -> str:
        """The test, in the script, of whether this rank is meant."""
        if isinstance(self.chosen, slice):
            return f"rank in range(world_size)[{_slice_text(self.chosen)}]"
        if all(r >= 0 for r in self.chosen):
            return f"rank in {self.chosen}"
        return f"rank in ({', '.join(_rank_text(r) for r in self.chosen)},)"


def _rank_text(r: int) -> str:
    return str(r) if r >= 0 else f"world_size - {-r}"


def _slice_text(chosen: slice) -> str:
    start, stop, step = (("" if v is None else str(v)) for v in _bounds(chosen))
    return f"{start}:{stop}" + (f":{step}" if step else "")


def _bounds(chosen: slice):
    return chosen.start, chosen.stop, chosen.step


def px_options(place, line: str) -> Targets:
    """The targets that a ``%%px`` line names; an error for what a script cannot follow."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise place.refuse(f"the options of `%%px` cannot be read: {error}.") from None
    targets, words = Targets(), iter(words)
    for word in words:
        option, has_value, value = word.partition("=")
        if option.startswith("-t") and not option.startswith("--") and option != "-t":
            option, has_value, value = "-t", "=", word[2:]
        if option in _REFUSED:
            raise place.refuse(f"`%%px {option}` has no translation: {_REFUSED[option]}.")
        if option in _SHOWN_ONLY:
            continue
        if option in _SHOWN_ONLY_WITH_VALUE or option in ("--targets", "-t"):
            value = value if has_value else next(words, "")
            if option in ("--targets", "-t"):
                targets = Targets(_chosen(place, value))
            continue
        raise place.refuse(f"`%%px {word}` has no translation; only `--targets` has.")
    return targets


def _chosen(place, text: str) -> slice | tuple[int, ...] | None:
    """What ``--targets`` names: ``all``, ``0``, ``-1``, ``0,2``, ``[0, 2]``, ``1:``, ``::2``."""
    bare = text.strip().strip("[]() ").rstrip(",")
    if bare == "all":
        return None
    try:
        if ":" in bare:
            parts = [int(part) if part.strip() else None for part in bare.split(":")]
            return slice(*parts)
        return tuple(int(ast.literal_eval(part.strip())) for part in bare.split(","))
    except (ValueError, SyntaxError, TypeError):
        raise place.refuse(
            f"`--targets {text}` cannot be read; write ranks (0,2), a slice (1:), or `all`."
        ) from None
