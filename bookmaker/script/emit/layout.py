"""The pieces of a translated cell, and how they are set out as lines of a script."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Piece:
    """One statement of the script.

    render: gives its text for an indentation (the first line has none).
    everywhere: whether all ranks run it; otherwise rank 0 alone does.
    above: comment lines; behind: a comment on its last line.
    """

    render: Callable[[int], str]
    everywhere: bool
    above: list[str] = field(default_factory=list)
    behind: str = ""
    defines: bool = False
    joined: bool = False


@dataclass
class Block(Piece):
    """A statement with a body that all ranks enter: a loop, a condition, a ``with``."""

    body: list[Piece] = field(default_factory=list)


def line(text: str, everywhere: bool, above=()) -> Piece:
    """A statement made here, on one line."""
    return Piece(lambda indent: text, everywhere, list(above))


def block(head: str, body: list[Piece], above=(), behind="", joined=False) -> Block:
    """A compound statement; ``joined`` for an ``else`` that belongs to the one before."""
    return Block(lambda indent: head, True, list(above), behind, joined=joined, body=body)


def lines(pieces: list[Piece], indent: int = 0, guarded: bool = True) -> list[str]:
    """The pieces as lines; runs of those for rank 0 alone stand under one ``if rank == 0:``."""
    out: list[str] = []
    under = False
    for piece in pieces:
        if piece.everywhere or not guarded:
            if under and not piece.joined:
                _blank_before(out, piece)
            under = False
            out += _one(piece, indent, guarded)
        else:
            if not under:
                if out and pieces[0] is not piece:
                    _blank_after_definition(out, piece)
                out.append(" " * indent + "if rank == 0:")
            under = True
            out += _one(piece, indent + 4, guarded)
    return out


def _blank_before(out: list[str], piece: Piece) -> None:
    if out and out[-1] and not (piece.above and not piece.above[0]):
        out.append("")


def _blank_after_definition(out: list[str], piece: Piece) -> None:
    while piece.above and not piece.above[0]:
        out.append("")
        piece.above = piece.above[1:]


def _one(piece: Piece, indent: int, guarded: bool) -> list[str]:
    margin = " " * indent
    out = [(margin + text).rstrip() for text in piece.above]
    head = (margin + piece.render(indent)).split("\n")
    if piece.behind:
        head[-1] += "  " + piece.behind
    out += head
    if isinstance(piece, Block):
        out += lines(piece.body, indent + 4, guarded) or [margin + "    pass"]
    return out
