"""What the reader's source says where a frame stands: the call, and the values in it.

Nothing of the reader's is run for it. A value is found where it is a constant, a name, arithmetic
with numbers, a part of a list or a dict, or an attribute that is just there; else it is UNKNOWN.
"""

import ast
import functools
import inspect
import itertools
import linecache
import operator
from collections import ChainMap, Counter

UNKNOWN = object()
HARMLESS = {("mpi4py.MPI", "rank"), ("mpi4py.MPI", "size")}  # attributes by code that says a number
PLAIN = (int, float, bool, type(None))  # with these, operators run no code of anybody's
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.RShift: operator.rshift,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def call_in(frame):
    """Return the call, an ast.Call, that a frame is in the middle of; None where there is none."""
    code = frame.f_code
    at = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), None)
    # A call is known by its end: in a chain of methods, Python has it begin elsewhere.
    return _calls(_text_of(frame)).get(at[1::2]) if at else None


def given_once(frame, name):
    """Return the expression that gave a name its value, if no other one did; else None.

    The names in it, too, have been given one value at most, and so have it still.
    """
    scope = _scope(_tree(_text_of(frame)), frame.f_code)
    count = Counter(n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and _stores(n))
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=given)], value=expression) if given == name:
                used = [n.id for n in ast.walk(expression) if isinstance(n, ast.Name)]
                return expression if max(count[one] for one in [name, *used]) == 1 else None
    return None


def _stores(node):
    return isinstance(node.ctx, ast.Store)


def _scope(tree, code):
    """Return the function that has this code, or the whole tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return tree


def _text_of(frame):
    return "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))


@functools.lru_cache(maxsize=32)
def _tree(text):
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # it is not what runs there any more
        return ast.Module([], [])


@functools.lru_cache(maxsize=32)
def _calls(text):
    calls = (node for node in ast.walk(_tree(text)) if isinstance(node, ast.Call))
    return {(call.end_lineno, call.end_col_offset): call for call in calls}


def names_of(frame):
    """Return the names that a frame knows."""
    return ChainMap(frame.f_locals, frame.f_globals)


def arguments(call, parameters, names):
    """Return {parameter: value} of a call, for the parameters that are given by it.

    parameters: their names, in order. names: as of `names_of`.
    """
    given = {}
    for parameter, node in zip(parameters, call.args):
        if isinstance(node, ast.Starred):
            break
        given[parameter] = value(node, names)
    given.update((k.arg, value(k.value, names)) for k in call.keywords if k.arg)
    return given


def value(node, names):
    """Return the value of an expression, or UNKNOWN."""
    try:
        return _value(node, names)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # it may not even be run
        return UNKNOWN


def _value(node, names):
    match node:
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id=name):
            return names.get(name, UNKNOWN)
        case ast.Attribute(value=owner, attr=name):
            return attribute(_value(owner, names), name)
        case ast.Subscript(value=of, slice=index):
            return _part(_value(of, names), _value(index, names))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, names) for part in parts]
        case ast.UnaryOp(op=op, operand=one):
            return _operate(op, _value(one, names))
        case ast.BinOp(op=op, left=one, right=other):
            return _operate(op, _value(one, names), _value(other, names))
        case ast.Compare(left=one, ops=[op], comparators=[other]):
            return _operate(op, _value(one, names), _value(other, names))
        case ast.IfExp(test=test, body=one, orelse=other):
            decided = _value(test, names)
            if type(decided) in PLAIN:
                return _value(one if decided else other, names)
    return UNKNOWN


def attribute(owner, name):
    """Return an attribute that is just there; one for which code would run is UNKNOWN."""
    if owner is UNKNOWN:
        return UNKNOWN
    if (type(owner).__module__, name) in HARMLESS:
        return getattr(owner, name)
    found = inspect.getattr_static(owner, name, UNKNOWN)
    return UNKNOWN if hasattr(type(found), "__get__") else found


def _part(of, index):
    plain = type(of) in (list, tuple, dict) and type(index) in (*PLAIN, str)
    return of[index] if plain else UNKNOWN


def _operate(op, *values):
    if type(op) not in OPERATORS or any(type(one) not in PLAIN for one in values):
        return UNKNOWN
    return OPERATORS[type(op)](*values)
