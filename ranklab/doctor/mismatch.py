"""Collectives that do not match: one sentence that names two ranks and what each of them called.

All ranks of a group must make the same collectives in the same order, on tensors of the same shape
and type. Three sources tell where they did not: torch's record of each rank's last collectives, the
message of torch's own checks (`Ranks(debug=True)`), and what Gloo said as it aborted a process.
"""

from ranklab.upstream import torch as upstream
from ranklab.upstream import torch_says

# Of these, every rank hands over a tensor of the same shape and type.
SAME_PAYLOAD = {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"}
RULE = (
    "All ranks of a group must make the same calls in the same order, on tensors of the same "
    "shape and type."
)


def sentences(reports):
    """Return the sentence for the first collective of each group that ranks do not agree on."""
    made = {}  # {(group, number): {rank: what it called}}
    for report in reports:
        for entry in report.recent:
            at = made.setdefault((entry["group"], entry["number"]), {})
            at[report.rank] = entry
    said, seen = [], set()
    for (group, number), calls in sorted(made.items()):
        if group in seen:
            continue
        first = min(calls)
        other = next((r for r in sorted(calls) if not _match(calls[first], calls[r])), None)
        if other is not None:
            seen.add(group)
            said.append(_sentence(first, _said(calls[first]), other, _said(calls[other]), number))
    return said


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


def _said(entry):
    tensors = tensors_of(entry)
    of = f" of {tensors}" if tensors else ""
    root = entry.get("root")
    details = [entry.get("op"), None if root is None else f"root {root}"]
    details = ", ".join(filter(None, details))
    return f"{entry['name']}{of}{f' ({details})' if details else ''}"


def _sentence(first, one, second, other, number=None):
    which = f" as collective number {number} of the group," if number else ""
    return (
        f"The collectives do not match:{which} rank {first} calls {one}, and "
        f"rank {second} calls {other}. {RULE}"
    )


def found_by_torch(message):
    """Return what the rank called on which torch's own checks said `message`, or None."""
    called = torch_says.called_by_checks(message)
    if called is None:
        return None
    of = f" of {called['dtype']}{called['shape']}" if called["shape"] else ""
    return f"{called['name']}{of}"


def sentence_of_calls(calls):
    """Return the sentence for {rank: what it called}."""
    first = min(calls)
    other = next((rank for rank in sorted(calls) if calls[rank] != calls[first]), None)
    if other is None:  # those that called something else did not live to say so
        return f"The collectives do not match: rank {first} calls {calls[first]}. {RULE}"
    return _sentence(first, calls[first], other, calls[other])


def why_aborted(what, report):
    """Say what a process was aborted in, from its last words, and why, if Gloo said so; or None."""
    call, found = report.call, torch_says.does_not_fit(what)
    if "SIGABRT" not in what or not call:
        return None
    of = f" of {call['payload']}" if call["payload"] else ""
    doing = f"its process was aborted (SIGABRT) in {call['name']}{of}"
    if not found:
        return f"{doing}."
    if call["kind"] == "collective":  # the bytes are those of a part that Gloo made
        return f"{doing}: Gloo got a message that does not fit."
    peer = "" if call["peer"] is None else f" from rank {call['peer']}"
    return f"{doing}: Gloo got a message{peer} of {found[0]} bytes, and {found[1]} fit."
