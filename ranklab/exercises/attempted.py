"""Is an answer still the stub? Found without running it."""

import types


def is_stub(answer):
    """Is what is to be written in `answer`, a function or a class, still missing in it?

    So it is where its code names NotImplementedError, as the stubs of the book do.
    """
    return any("NotImplementedError" in code.co_names for code in codes_of(answer))


def codes_of(answer):
    """Return all code objects of a function or a class: methods and nested functions, too."""
    found = [_code(answer)] if not isinstance(answer, type) else []
    if isinstance(answer, type):
        found = [_code(member) for member in vars(answer).values()]
    found = [code for code in found if code is not None]
    for code in found:  # grows as it is gone through
        found += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return found


def _code(member):
    member = member.fget if isinstance(member, property) else member
    member = getattr(member, "__func__", member)  # of a static, a class or a bound method
    member = getattr(member, "__wrapped__", member)  # as functools.wraps leaves it
    return getattr(member, "__code__", None)
