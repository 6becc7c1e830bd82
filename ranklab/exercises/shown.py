"""Values in short form, for sentences: a large tensor as its first numbers, shape and dtype."""

from dataclasses import dataclass

FEW = 8  # numbers of a tensor that are shown
LONGEST = 200  # characters of anything


@dataclass(frozen=True)
class Thing:
    """Stands for a result that cannot leave its process. kind: what it is, in words."""

    kind: str


@dataclass(frozen=True)
class Raised:
    """Stands for an error in place of a result, where an answer is to raise it. error: its name."""

    error: str


def short(value):
    """Return a value as a reader would write it, or as much of it as fits."""
    text = _shown(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def _shown(value):
    import torch  # here, so that what only lists the lab's names need not wait for it

    if isinstance(value, Thing):
        return value.kind
    if isinstance(value, Raised):
        return f"{value.error} is raised"
    if torch.is_tensor(value):
        return _tensor(value)
    if type(value).__module__ == "numpy":
        return (
            _tensor(torch.as_tensor(value)) if getattr(value, "ndim", 0) else _shown(value.item())
        )
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else repr(value)
    if isinstance(value, (list, tuple)):
        parts = [_shown(part) for part in value[:FEW]] + ["..."] * (len(value) > FEW)
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        left, right = "[]" if isinstance(value, list) else "()"
        return f"{left}{', '.join(parts)}{comma}{right}"
    if isinstance(value, dict):
        parts = [f"{key!r}: {_shown(part)}" for key, part in list(value.items())[:FEW]]
        return "{" + ", ".join(parts + ["..."] * (len(value) > FEW)) + "}"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    text = repr(value)
    return kind(value) if text.startswith("<") else text  # nobody wants its address


def _tensor(value):
    dtype = str(value.dtype).removeprefix("torch.")
    value = value.detach().cpu()
    if value.numel() <= FEW:
        numbers = _nested(value.tolist())
    else:
        numbers = ", ".join(map(_number, value.reshape(-1)[:4].tolist()))
        numbers = f"[{numbers}, ..., {_number(value.reshape(-1)[-1].item())}]"
    return f"{numbers} ({dtype}{list(value.shape)})"


def _nested(numbers):
    if isinstance(numbers, list):
        return f"[{', '.join(map(_nested, numbers))}]"
    return _number(numbers)


def _number(number):
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def shape(tensor):
    """Return the shape of a tensor in words: "[2, 3]", or "[] (a single number)"."""
    return str(list(tensor.shape)) if tensor.ndim else "[] (one number)"


def kind(value):
    """Return what sort of thing a value is: "a list of 3", "a number (float)", "a tensor"."""
    if isinstance(value, Thing):
        return value.kind
    import torch

    if isinstance(value, torch.distributed.Work):
        return "a handle (its operation may not be done: wait for it, and return the tensor)"
    if torch.is_tensor(value):
        return f"a tensor ({str(value.dtype).removeprefix('torch.')}{list(value.shape)})"
    if isinstance(value, bool):
        return "True or False"
    if isinstance(value, (int, float)):
        return f"a number ({type(value).__name__})"
    if isinstance(value, (list, tuple, dict, set)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str):
        return "a string"
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__} itself"
    if type(value).__module__ == "numpy":
        return f"a NumPy {type(value).__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
