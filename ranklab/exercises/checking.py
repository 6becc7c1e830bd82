"""`check`: from the reader's answer to a report on it."""

import inspect
from dataclasses import replace

from IPython import get_ipython

from ranklab import checks
from ranklab.errors import SaidInWords
from ranklab.exercises import checker_process, marks
from ranklab.exercises.attempted import stub_lines
from ranklab.exercises.model import Choice
from ranklab.exercises.report import Report
from ranklab.traces.data import listed


class CheckInterrupted(SaidInWords, KeyboardInterrupt):
    """The reader interrupted a check. Whatever runs checks in a row is to stop, too."""


def check(name, *answers):
    """Run an answer against the cases of the exercise `name`; return a Report that says what came.

    answers: the function or the class; several, where the exercise wants several. A report is true
    where they are right. A wrong answer raises nothing. In a notebook the report is shown below the
    cell, elsewhere it is printed.
    """
    report = _report(name, answers)
    if report:
        report = replace(report, done=marks.done(name))
    if get_ipython() is None:
        print(report, flush=True)
    return report


def _report(name, answers):
    exercise = checks.find(name) if isinstance(name, str) else None
    if exercise is None:
        return Report(name, "open", _unknown(name))
    if said := _not_an_answer(exercise, answers):
        return Report(name, "wrong", said)
    stubs = [stub_lines(answer) for answer in answers]
    gaps = [line for lines in stubs for line in lines]
    if all(stubs) and len(gaps) >= getattr(exercise, "gaps", 0):  # else it says how far they get
        return Report(name, "open", _not_attempted(name, gaps))
    if isinstance(exercise, Choice):
        return Report(name, *_of_choice(exercise, answers[0]))
    return Report(name, *_of_answer(exercise, answers))


def _unknown(name):
    if not isinstance(name, str):
        return f"check wants the name of an exercise first, a string, and got {name!r}."
    near = " or ".join(repr(known) for known in checks.close_to(name))
    return f"There is no exercise called {name!r}.{f' Is it {near}?' if near else ''}"


def _not_an_answer(exercise, answers):
    """Say so where what `check` was given cannot be an answer."""
    wanted = 1 if isinstance(exercise, Choice) else exercise.answers
    if len(answers) != wanted:
        things = "function or class" if wanted == 1 else "functions or classes"
        return f"{exercise.name} wants {wanted} {things} after its name, and got {len(answers)}."
    for answer in answers:
        if not callable(answer):
            kind = type(answer).__name__
            return (
                f"{exercise.name} wants the function or class itself, check({exercise.name!r}, f) "
                f"without a call, and got a value of type {kind}."
            )
        if isinstance(exercise, Choice) and inspect.isclass(answer):
            return f"{exercise.name} wants a function without arguments, and got a class."
    return ""


def _not_attempted(name, lines):
    numbers = listed(map(str, sorted(lines)))
    raises = f"Line {numbers} raises" if len(lines) == 1 else f"Lines {numbers} raise"
    place = "it" if len(lines) == 1 else "them"
    return (
        f"{name}: not attempted yet. {raises} NotImplementedError: write your code in place of "
        f"{place}."
    )


def _of_choice(exercise, answer):
    """Return (verdict, text) for a prediction."""
    letters = " or ".join(filter(None, [", ".join(exercise.letters[:-1]), exercise.letters[-1]]))
    try:
        chosen = answer()
    except Exception as error:
        return "wrong", f"{exercise.name}() raised {type(error).__name__}: {error}"
    chosen = chosen.strip().lower() if isinstance(chosen, str) else chosen
    if chosen not in exercise.letters:
        return "wrong", f"Choose one: return {letters}, as a string. It returned {chosen!r}."
    if chosen == exercise.right:
        return "right", f"Right: {chosen}. {exercise.because}"
    return "wrong", f"Not {chosen}. {exercise.why[chosen]}"


def _of_answer(exercise, answers):
    """Return (verdict, text) for an answer that has to run."""
    from ranklab.exercises import parcel

    name = exercise.name
    if not checker_process.is_there():  # that takes seconds, on a busy machine many
        print("The first check starts ranks ...", flush=True)
    try:
        said = checker_process.ask(parcel.pack(exercise, answers))
    except parcel.NotPackable as error:
        return "wrong", str(error)
    except checker_process.CheckerGone as error:
        return "open", _gone(error)
    except KeyboardInterrupt:
        raise CheckInterrupted(
            f"Interrupted: the check of {name} was ended, and nothing is known of the answer."
        ) from None
    return said["verdict"], said["text"]


def _gone(error):
    """Say that the checking process is gone, and what it said itself."""
    advice = "Another one will start: call check again."
    if not error.last_words:
        return f"{error} {advice}"
    words = "\n".join(f"    {line.strip()}" for line in error.last_words)
    return f"{error} The last that it said:\n{words}\n\n{advice}"
