"""Collectives that do not match: two ranks, and what each of them called.

All ranks of a group must make the same collectives in the same order, on tensors of the same shape
and type. Three sources tell where they did not: torch's record of each rank's last collectives, the
message of torch's own checks (`Ranks(debug=True)`), and what Gloo said as it aborted a process.
"""

from dataclasses import dataclass

from ranklab.upstream import torch as upstream
from ranklab.upstream import torch_says

# Of these, every rank hands over a tensor of the same shape and type.
SAME_PAYLOAD = {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"}


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


def under_mpi(reports, patience):
    """Return the Mismatch of each communicator whose ranks are all in collectives that differ.

    MPI keeps no record: what ranks are in can be compared only when all of them stay there.
    """
    inside = {}  # {communicator: {rank: the call that it is in}}
    for report in reports:
        call = report.call or {}
        if call.get("mpi") and call["kind"] == "collective" and report.seconds >= patience:
            inside.setdefault(call["group"], {})[report.rank] = call
    found = []
    for calls in inside.values():
        first = min(calls)
        differ = (r for r in sorted(calls) if not _match(calls[first], calls[r]))
        if set(calls) == set(calls[first]["ranks"]) and (other := next(differ, None)) is not None:
            found.append(Mismatch(first, _in_mpi(calls[first]), other, _in_mpi(calls[other])))
    return found


def _in_mpi(call):
    return Called(call["name"], call["payload"], call["op"] or None, call["root"])


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
    return " and ".join(
        f"{upstream.type_name(d)}{s}" for d, s in zip(entry["dtypes"], entry["sizes"])
    )


def _called(entry):
    return Called(entry["name"], tensors_of(entry), entry.get("op"), entry.get("root"))


def found_by_torch(message):
    """Return what the rank Called on which torch's own checks said `message`, or None."""
    said = torch_says.called_by_checks(message)
    if said is None:
        return None
    return Called(said["name"], f"{said['dtype']}{said['shape']}" if said["shape"] else "")


def of_calls(calls):
    """Return the Mismatch in {rank: what it Called}."""
    first = min(calls)
    other = next((rank for rank in sorted(calls) if calls[rank] != calls[first]), None)
    return Mismatch(first, calls[first], other, calls.get(other))
