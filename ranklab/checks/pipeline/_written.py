"""What an answer returned as a program, in the short form of the chapter."""

from ranklab.taught.pipeline import name


def written(program):
    """Return "F0 F1 B0" of a list of instructions."""
    try:
        return " ".join(name((str(kind), k, chunk)) for kind, k, chunk in program)
    except (TypeError, ValueError):
        returned = "nothing (None)" if program is None else repr(program)
        raise TypeError(
            f'A program is a list of instructions, such as ("F", 0, 0); it returned {returned:.80}.'
        ) from None
