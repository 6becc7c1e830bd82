"""Is a result what it should be, and if not, where does it differ, in a sentence."""

import math
from dataclasses import dataclass

import torch

from .shown import kind, shape, short

# For Python's floats, which may come from float32: torch's tolerance for that, but none near 0.
OF_A_NUMBER = (1.3e-6, 1e-9)


@dataclass(frozen=True)
class Difference:
    """What is wrong with a result. of: "type", "shape", "dtype" or "value"."""

    of: str
    sentence: str


def difference(expected, got, tolerance=None):
    """Return the first Difference of `got` from `expected`, or None.

    tolerance: (relative, absolute) for floats; None for the usual ones of their dtype.
    """
    if torch.is_tensor(expected):
        return _of_tensors(expected, got, tolerance)
    if isinstance(expected, dict):
        return _of_dicts(expected, got, tolerance)
    if isinstance(expected, (list, tuple)):
        return _of_lists(expected, got, tolerance)
    if isinstance(expected, (int, float)):
        return _of_numbers(expected, got, tolerance)
    if type(expected).__module__ == "numpy":
        if type(got).__module__ != "numpy":
            return _wrong_type(expected, got)
        return difference(torch.as_tensor(expected), torch.as_tensor(got), tolerance)
    if type(got) is not type(expected):
        return _wrong_type(expected, got)
    return None if same(expected, got) else Difference("value", "")


def _wrong_type(expected, got):
    if got is None:
        return Difference("type", "It returned nothing (None): is a `return` missing?")
    return Difference("type", f"It should return {kind(expected)}, and returned {kind(got)}.")


def _of_tensors(expected, got, tolerance):
    if not torch.is_tensor(got):
        return _wrong_type(expected, got)
    if got.shape != expected.shape:
        return Difference("shape", f"The shape should be {shape(expected)}, and is {shape(got)}.")
    if got.dtype != expected.dtype:
        should, does = (str(x.dtype).removeprefix("torch.") for x in (expected, got))
        return Difference("dtype", f"The dtype should be {should}, and is {does}.")
    if _close(expected, got, tolerance):
        return None
    return Difference("value", _first_difference(expected, got, tolerance))


def _close(expected, got, tolerance):
    relative, absolute = tolerance or (None, None)
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(expected, got)
    try:
        torch.testing.assert_close(
            got, expected, rtol=relative, atol=absolute, equal_nan=True, check_device=False
        )
    except AssertionError:
        return False
    return True


def _first_difference(expected, got, tolerance):
    """Say where two tensors of one shape and dtype differ; nothing for those seen at a glance."""
    if expected.numel() < 2:
        return ""
    flat, others = expected.reshape(-1), got.reshape(-1)
    wrong = (
        [i for i in range(len(flat)) if not _close(flat[i], others[i], tolerance)]
        if (len(flat) <= 10_000)
        else (flat != others).nonzero().reshape(-1).tolist()
    )
    first = torch.unravel_index(torch.tensor(wrong[0]), expected.shape)
    index = ", ".join(str(int(i)) for i in first)
    all_wrong = len(wrong) == expected.numel()
    where = "at all places" if all_wrong else f"at {len(wrong):,} of {expected.numel():,} places"
    one, other = short(flat[wrong[0]].item()), short(others[wrong[0]].item())
    return f"They differ {where}, first at [{index}]: {one} expected, got {other}."


def _of_dicts(expected, got, tolerance):
    if not isinstance(got, dict):
        return _wrong_type(expected, got)
    if lacking := [key for key in expected if key not in got]:
        return Difference("type", f"The key {lacking[0]!r} is missing in the dict.")
    if more := [key for key in got if key not in expected]:
        return Difference("type", f"There is a key {more[0]!r} too many in the dict.")
    return _of_parts(((f"[{key!r}]", expected[key], got[key]) for key in expected), tolerance)


def _of_lists(expected, got, tolerance):
    if not isinstance(got, (list, tuple)):
        return _wrong_type(expected, got)
    if len(got) != len(expected):
        should, does = len(expected), len(got)
        return Difference("shape", f"It should return {should} values, and returned {does}.")
    parts = enumerate(zip(expected, got))
    return _of_parts(((f"[{i}]", one, other) for i, (one, other) in parts), tolerance)


def _of_parts(parts, tolerance):
    for name, expected, got in parts:
        if found := difference(expected, got, tolerance):
            sentence = (
                f"At {name}: {found.sentence}"
                if found.sentence
                else (f"At {name}: {short(expected)} expected, got {short(got)}.")
            )
            return Difference(found.of, sentence)
    return None


def _of_numbers(expected, got, tolerance):
    if (torch.is_tensor(got) and got.ndim == 0) or type(got).__module__ == "numpy":
        got = got.item() if getattr(got, "ndim", 0) == 0 else got
    wants_bool = isinstance(expected, bool)
    if not isinstance(got, (int, float)) or wants_bool != isinstance(got, bool):
        return _wrong_type(expected, got)
    if isinstance(expected, float):
        relative, absolute = tolerance or OF_A_NUMBER
        both_nan = math.isnan(expected) and math.isnan(got)
        if both_nan or math.isclose(got, expected, rel_tol=relative, abs_tol=absolute):
            return None
    elif got == expected:
        return None
    return Difference("value", "")


def same(one, other):
    """Are two values alike to the last bit? True for things that cannot be compared."""
    if torch.is_tensor(one):
        if not torch.is_tensor(other) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.equal(one, other) or bool(((one == other) | (one != one)).all())
    if isinstance(one, dict):
        return (
            type(one) is type(other)
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if type(one).__module__ == "numpy":
        return same(torch.as_tensor(one), torch.as_tensor(other))
    if isinstance(one, (int, float, str, bytes, bool, set, type(None))):
        return one == other or one != one
    return True


def plain(value):
    """Return a result without what ties it to its process: gradients, and memory that is shared."""
    if torch.is_tensor(value):
        return value.detach().cpu().clone(memory_format=torch.contiguous_format)
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(part) for part in value)
    return value
