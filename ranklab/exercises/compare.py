"""Is a result what it should be, and if not, where does it differ, in a sentence."""

import math
from dataclasses import dataclass, replace

import torch

from ranklab.exercises.shown import Raised, Thing, kind, shape, short

# For Python's floats, which may come from float32: torch's tolerance for that, but none near 0.
OF_A_NUMBER = (1.3e-6, 1e-9)
LOOKED_AT = 10_000  # numbers that differ, each of which is compared by itself


@dataclass(frozen=True)
class Difference:
    """What is wrong with a result. of: "type", "shape", "dtype" or "value".

    sentence: "" where expected and got say it all. path: of the part that is wrong, "[0]['a']", and
    part: (expected, got) there; None where it is the whole result.
    """

    of: str
    sentence: str
    path: str = ""
    part: tuple | None = None

    @property
    def told(self):
        """The sentence, with the part that it is about."""
        if not self.path or not self.sentence:
            return self.sentence
        said = self.sentence
        if said.startswith(("It ", "The ", "They ", "There ")):
            said = said[0].lower() + said[1:]
        return f"At {self.path}: {said}"


def difference(expected, got, tolerance=None):
    """Return the first Difference of `got` from `expected`, or None.

    tolerance: (relative, absolute) for floats; None for the usual ones of their dtype.
    """
    return _find(expected, got, tolerance, "")


def _find(expected, got, tolerance, path):
    if torch.is_tensor(expected):
        found = _of_tensors(expected, got, tolerance, path)
    elif isinstance(expected, dict):
        found = _of_dicts(expected, got, tolerance, path)
    elif isinstance(expected, (list, tuple)):
        found = _of_lists(expected, got, tolerance, path)
    elif isinstance(expected, (int, float)):
        found = _of_numbers(expected, got, tolerance, path)
    elif type(expected).__module__ == "numpy":
        if type(got).__module__ != "numpy":
            return _wrong_type(expected, got, path)
        return _find(torch.as_tensor(expected), torch.as_tensor(got), tolerance, path)
    elif type(got) is not type(expected):
        return _wrong_type(expected, got, path)
    else:
        found = None if same(expected, got) else Difference("value", "", path)
    if found and path and not found.sentence:
        return replace(found, sentence=f"{short(expected)} expected, got {short(got)}.")
    return found


def _wrong_type(expected, got, path):
    if path:
        return Difference("type", f"It should be {kind(expected)}, and is {kind(got)}.", path)
    if got is None and not isinstance(expected, Raised):
        return Difference("type", "It returned nothing (None): is a `return` missing?")
    should = (
        f"raise {expected.error}" if isinstance(expected, Raised) else f"return {kind(expected)}"
    )
    did = f"raised {got.error}" if isinstance(got, Raised) else f"returned {kind(got)}"
    return Difference("type", f"It should {should}, and {did}.")


def _of_tensors(expected, got, tolerance, path):
    if not torch.is_tensor(got):
        return _wrong_type(expected, got, path)
    if got.shape != expected.shape:
        said = f"The shape should be {shape(expected)}, and is {shape(got)}."
        return Difference("shape", said, path)
    if got.dtype != expected.dtype:
        should, does = (str(x.dtype).removeprefix("torch.") for x in (expected, got))
        return Difference("dtype", f"The dtype should be {should}, and is {does}.", path)
    if _close(expected, got, tolerance):
        return None
    return Difference("value", _first_difference(expected, got, tolerance), path)


def _close(expected, got, tolerance):
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(expected, got)
    relative, absolute = tolerance or (None, None)
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
    wrong = (flat != others).nonzero().reshape(-1).tolist()
    if len(wrong) <= LOOKED_AT:  # those that are within the tolerance do not count
        wrong = [i for i in wrong if not _close(flat[i], others[i], tolerance)]
    first = torch.unravel_index(torch.tensor(wrong[0]), expected.shape)
    index = ", ".join(str(int(i)) for i in first)
    where = f"at {len(wrong):,} of {expected.numel():,} places"
    if len(wrong) == expected.numel():
        where = "at all places"
    one, other = short(flat[wrong[0]].item()), short(others[wrong[0]].item())
    return f"They differ {where}, first at [{index}]: {one} expected, got {other}."


def _of_dicts(expected, got, tolerance, path):
    if not isinstance(got, dict):
        return _wrong_type(expected, got, path)
    if lacking := [key for key in expected if key not in got]:
        return Difference("type", f"The key {lacking[0]!r} is missing in the dict.", path)
    if more := [key for key in got if key not in expected]:
        return Difference("type", f"There is a key {more[0]!r} too many in the dict.", path)
    parts = [(f"{path}[{key!r}]", expected[key], got[key]) for key in expected]
    return _of_parts(parts, tolerance)


def _of_lists(expected, got, tolerance, path):
    if not isinstance(got, (list, tuple)):
        return _wrong_type(expected, got, path)
    if len(got) != len(expected):
        said = f"It should return {len(expected)} values, and returned {len(got)}."
        if path:
            said = f"It should have {len(expected)} values, and has {len(got)}."
        return Difference("shape", said, path)
    parts = enumerate(zip(expected, got))
    return _of_parts([(f"{path}[{i}]", one, other) for i, (one, other) in parts], tolerance)


def _of_parts(parts, tolerance):
    for path, expected, got in parts:
        if found := _find(expected, got, tolerance, path):
            return found if found.part else replace(found, part=(expected, got))
    return None


def _of_numbers(expected, got, tolerance, path):
    from_library = torch.is_tensor(got) or type(got).__module__ == "numpy"
    if from_library and getattr(got, "ndim", 0) == 0:
        got = got.item()
    wants_bool = isinstance(expected, bool)
    if not isinstance(got, (int, float)) or wants_bool != isinstance(got, bool):
        return _wrong_type(expected, got, path)
    if isinstance(expected, float):
        relative, absolute = tolerance or OF_A_NUMBER
        both_nan = math.isnan(expected) and math.isnan(got)
        if both_nan or math.isclose(got, expected, rel_tol=relative, abs_tol=absolute):
            return None
    elif got == expected:
        return None
    return Difference("value", "", path)


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
    if isinstance(one, (int, float, str, bytes, bool, set, Raised, Thing, type(None))):
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
