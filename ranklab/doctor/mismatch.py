"""Collectives that do not match: two ranks, and what each of them called.

All ranks of a group must make the same collectives in the same order, on tensors of the same shape
and type. Three sources tell where they did not: torch's record of each rank's last collectives, the
message of torch's own checks (`Ranks(debug=True)`), and what Gloo said as it aborted a process.
"""

import re
from dataclasses import dataclass

# Of these, every rank hands over a tensor of the same shape and type.
SAME_PAYLOAD = {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"}
# Torch's record and its checks call the types by their names in C++.
TYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
}
ABORTED = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
# What torch's checks say on each rank: what this one calls, and then, not always rightly (a barrier
# is called something else), what another one does.
FOUND_BY_TORCH = re.compile(
    r"Rank \d+ is running collective: CollectiveFingerPrint\((.*?)\), but Rank \d+ is running ",
    re.S,
)


@dataclass(frozen=True)
class Called:
    """A collective as a rank called it. tensors: "float32[4] and int64[1]", where it is known."""

    name: str
    tensors: str = ""
    op: str | None = None
    root: int | None = None


@dataclass(frozen=True)
class Mismatch:
    """What two ranks called in place of the same.

    number: which collective of the group it is, from 1, where it is known. second: None where
    those that called something else did not live to say so.
    """

    first: int
    one: Called
    second: int | None = None
    other: Called | None = None
    number: int | None = None


def found(reports):
    """Return the Mismatch of the first collective of each group that ranks do not agree on."""
    made = {}  # {(group, number): {rank: what it called}}
    for report in reports:
        for entry in report.recent:
            at = made.setdefault((entry["group"], entry["number"]), {})
            at[report.rank] = entry
    mismatches = {}  # {group: the first of it}
    for (group, number), calls in sorted(made.items()):
        first = min(calls)
        other = next((r for r in sorted(calls) if not _match(calls[first], calls[r])), None)
        if other is not None and group not in mismatches:
            called = _called(calls[first]), _called(calls[other])
            mismatches[group] = Mismatch(first, called[0], other, called[1], number)
    return list(mismatches.values())


def _match(one, other):
    if one["name"] != other["name"]:
        return False
    for what in ("op", "root"):  # not known of collectives that C++ makes, as DDP's
        if None not in (one.get(what), other.get(what)) and one[what] != other[what]:
            return False
    if one["name"] not in SAME_PAYLOAD:
        return True
    return one["dtypes"] == other["dtypes"] and _count(one) == _count(other)


def _count(entry):
    """Return how many numbers each tensor of the call has; Gloo does not look at the shape."""
    counts = []
    for size in entry["sizes"]:
        count = 1
        for n in size:
            count *= n
        counts.append(count)
    return counts


def tensors_of(entry):
    """Return "float32[4] and int64[1]" of an entry of torch's record."""
    return " and ".join(f"{_type(d)}{s}" for d, s in zip(entry["dtypes"], entry["sizes"]))


def _called(entry):
    return Called(entry["name"], tensors_of(entry), entry.get("op"), entry.get("root"))


def _type(name):
    return TYPES.get(name.lower(), name.lower())


def found_by_torch(message):
    """Return what the rank Called on which torch's own checks said `message`, or None."""
    said = FOUND_BY_TORCH.search(message)
    return _fingerprint(said[1]) if said else None


def of_calls(calls):
    """Return the Mismatch in {rank: what it Called}."""
    first = min(calls)
    other = next((rank for rank in sorted(calls) if calls[rank] != calls[first]), None)
    return Mismatch(first, calls[first], other, calls.get(other))


def _fingerprint(text):
    text = text.replace("OpType", ", OpType")  # torch forgets this comma
    known = dict(re.findall(r"(\w+)=(\[.*?\]|[^,\]]*)", text))
    name = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather"}.get(known.get("OpType"))
    name = name or known.get("OpType", "a collective").lower()
    shape, dtype = known.get("TensorShape"), _type(known.get("TensorDtypes", ""))
    return Called(name, f"{dtype}{shape}" if shape else "")


def too_long(said):
    """Return (bytes of a message, bytes that fit), where Gloo said so as it aborted; or None."""
    sizes = ABORTED.search(said)
    return sizes and (sizes[1], sizes[2])
