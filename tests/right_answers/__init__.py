"""Unusual but right answers to the exercises, a module for each chapter.

Other algorithms, other calls, other styles than the book's own. test_right_answers.py runs them.

    from right_answers import right

    @right("own_broadcast")
    def along_a_row(x, src):
        ...

Where an exercise wants several answers (a class and two functions, say), the function decorated by
`@right(..., several=True)` is called, without arguments, and returns the tuple of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Right:
    """A right answer, and the exercise that it is for."""

    exercise: str
    answers: tuple
    name: str


found = []  # in the order of the modules, as they are imported


def right(exercise, *, several=False):
    """Mark a function or a class as a right answer."""

    def mark(answer):
        answers = answer() if several else (answer,)
        found.append(Right(exercise, tuple(answers), answer.__name__))
        return answer

    return mark
