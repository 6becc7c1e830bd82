"""Is an answer still the stub? Found without running it."""

import dis
import functools
import types

BETWEEN = {"CACHE", "PRECALL", "CALL", "PUSH_NULL", "NOP"}  # of a call without arguments


def stub_lines(answer):
    """Return the lines on which the code of `answer`, a function or a class, is still missing.

    That is where it says `raise NotImplementedError()`, as the stubs of the book do. A reader's own
    NotImplementedError with a message is none.
    """
    return sorted({line for code in codes_of(answer) for line in _stub_lines(code)})


def is_stub(answer):
    """Is what is to be written in `answer` still missing in it?"""
    return bool(stub_lines(answer))


def _stub_lines(code):
    line, after_name = None, False
    for step in dis.get_instructions(code):
        if step.positions and step.positions.lineno:
            line = step.positions.lineno
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == "NotImplementedError":
            after_name = True
        elif step.opname == "RAISE_VARARGS" and after_name:
            yield line
            after_name = False
        elif step.opname not in BETWEEN or (step.opname == "CALL" and step.arg):
            after_name = False


def codes_of(answer):
    """Return all code objects of a function or a class: methods and nested functions, too."""
    found = [function.__code__ for function in functions_of(answer)]
    for code in found:  # grows as it is gone through
        found += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return found


def functions_of(answer):
    """Return the functions that the methods of a class are, also behind what wraps them, or [f].

    Of another object that can be called, as some decorators make, they are those of its class.
    """
    members = vars(answer).values() if isinstance(answer, type) else [answer]
    found = [one for one in map(_function, members) if isinstance(one, types.FunctionType)]
    return found if found or isinstance(answer, type) else functions_of(type(answer))


def _function(member):
    member = member.func if isinstance(member, functools.partial) else member
    member = member.fget if isinstance(member, property) else member
    member = getattr(member, "__func__", member)  # of a static, a class or a bound method
    return getattr(member, "__wrapped__", member)  # as functools.wraps leaves it
