"""What the doctor found, in words: where ranks are, what they wait for, what ended them, and why.

Each function makes text of a value that another module of this folder found (the value's own
module says what it means); telling.py makes the error of a cell out of them.
"""

from ranklab.doctor.one_rank import ENDED
from ranklab.errors import named
from ranklab.upstream import torch_says

STATES = {
    "running": "runs",
    "failing": "has failed, and still writes its error",
    "died": "has died",
    "failed": "has failed",
    "finished": "has finished the cell",
    "idle": "runs nothing",
    "silent": "does not answer",
}
SILENCE = {
    "stopped": "its process is stopped (SIGSTOP); it goes on with kill -CONT {pid}",
    "in one call": "a long call that lets nothing else of Python run",
}
RULE = (
    "All ranks of a group must make the same calls in the same order, on tensors of the same "
    "shape and type."
)

# Where they are


def places_of(reports, only=None, seconds=True):
    """Say where ranks are (all, or those in `only`), those at the same place together.

    seconds: say for how long, too.
    """
    alike = {}
    for report in reports:
        if only is None or report.rank in only:
            key = (_state(report), report.place, _note(report))
            alike.setdefault(key, []).append(report)
    said = []
    for (state, place, note), group in alike.items():
        who = named(report.rank for report in group)
        longest = max(report.seconds for report in group)
        verb = _plural(state) if len(group) > 1 else state
        timed = seconds and group[0].state == "running"
        how_long = f", for {longest:.1f} s" if timed else ""
        said.append("\n".join(filter(None, [f"{who} {verb}{how_long}", place, note])))
    return said


def _state(report):
    if report.call and report.state not in ENDED:
        return wait(report.call)
    return STATES[report.state]


def _note(report):
    known = SILENCE.get(report.silence, "").format(pid=report.pid)
    said = known or report.silence or death(report)
    return f"    {said}" if said else ""


def _plural(state):
    first, _, rest = state.partition(" ")
    plural = {"has": "have", "does": "do", "is": "are"}.get(first, first.removesuffix("s"))
    return f"{plural} {rest.replace('for its ', 'for their ')}".strip()


def wait(call, whom=None):
    """Say what a call waits for: "waits to receive float32[2] from rank 1".

    whom: the rank to name where the call itself waits for several.
    """
    what = f" {call['payload']}" if call["payload"] else ""
    of, tag = f" of{what}" if what else "", _tag(call)
    if call["kind"] in ("send", "recv"):
        if call["handle"]:
            return f"waits for its {call['name']}{of}{_peer(call)}{tag}"
        waits = f"waits in {call['name']}, to" if call.get("mpi") else "waits to"
        also = f" and to {_end(call['also'], '')}" if "also" in call else ""
        return f"{waits} {_end(call, what)}{also}"
    details = [call["op"] if call["op"] != "SUM" else ""]
    details += [f"root {call['root']}"] if call["root"] is not None else []
    details += _communicator(call)
    details = f" ({', '.join(filter(None, details))})" if any(details) else ""
    others = "" if whom is None else f" for rank {whom}"
    return f"waits in {call['name']}{of}{details}{others}"


def _communicator(call):
    """Name a communicator of MPI that is not the world's."""
    other = call.get("mpi") and call["group"] not in ("", "MPI_COMM_WORLD")
    return [f"communicator {call['group']}"] if other else []


def _end(call, what):
    """Say of one end of a message what is done: "receive float32[2] from rank 1 with tag 3"."""
    verb = "send" if call["kind"] == "send" else "receive"
    return f"{verb}{what}{_peer(call)}{_tag(call)}"


def _peer(call):
    way = "to" if call["kind"] == "send" else "from"
    if not call.get("known", True):
        return ""
    return f" {way} anyone" if call["peer"] is None else f" {way} rank {call['peer']}"


def _tag(call):
    return f" with tag {call['tag']}" if call["tag"] else ""


# What ended them


def death(report):
    """Say what ended a rank; "" where nobody here knows."""
    how = report.death and report.death.exit
    if not how or how.by_mpiexec:
        return ""
    if how.signal == "SIGABRT" and report.call:
        return _abort(report.call, how.said)
    killed = f"killed by {how.signal}" if how.signal else f"exit code {how.code}"
    said = [f"the process is gone ({killed}).", how.said]
    if report.death.lines:
        said.append(f"Python was in {', called by '.join(report.death.lines)}.")
    return "\n".join(filter(None, said))


def _abort(call, said):
    """Say what a process was aborted in, and why, if Gloo said so."""
    of = f" of {call['payload']}" if call["payload"] else ""
    doing = f"its process was aborted (SIGABRT) in {call['name']}{of}"
    sizes = torch_says.does_not_fit(said)
    if not sizes:
        return f"{doing}."
    if call["kind"] == "collective":  # the bytes are those of a part that Gloo made
        return f"{doing}: Gloo got a message that does not fit."
    peer = "" if call["peer"] is None else f" from rank {call['peer']}"
    return f"{doing}: Gloo got a message{peer} of {sizes[0]} bytes, and {sizes[1]} fit."


# Why nobody goes on


def reasons(diagnosis, mismatches=True):
    """Say why nobody goes on, one sentence for each reason; mismatches: also those."""
    differ = diagnosis.mismatches
    said = [difference(one) for one in differ if mismatches]
    if diagnosis.crossed and diagnosis.settled(diagnosis.crossed):
        return [_crossed(diagnosis), *said]
    circle = [diagnosis.reports[rank] for rank in diagnosis.circle]
    told = differ and all(report.call["kind"] == "collective" for report in circle)
    if circle and diagnosis.settled(diagnosis.circle) and not told:
        return [_circle(circle), *said]
    return said if differ else _in_vain(diagnosis)


def difference(found):
    """Say of a Mismatch which two ranks do not agree, and on what."""
    one, which = called(found.one), ""
    if found.second is None:
        return f"The collectives do not match: rank {found.first} calls {one}. {RULE}"
    if found.number:
        which = f" as collective number {found.number} of the group,"
    return (
        f"The collectives do not match:{which} rank {found.first} calls {one}, and "
        f"rank {found.second} calls {called(found.other)}. {RULE}"
    )


def called(collective):
    """Return "all_reduce of float32[4] (MAX)" for what a rank Called."""
    of = f" of {collective.tensors}" if collective.tensors else ""
    root = None if collective.root is None else f"root {collective.root}"
    details = ", ".join(filter(None, [collective.op, root]))
    return f"{collective.name}{of}{f' ({details})' if details else ''}"


def _crossed(diagnosis):
    sender, receiver = (diagnosis.reports[rank] for rank in diagnosis.crossed)
    what = "tag" if sender.call["tag"] != receiver.call["tag"] else "group"
    name = "communicator" if what == "group" and "mpi" in sender.call else what
    return (
        f"Rank {sender.rank} sends to rank {receiver.rank} with {name} {sender.call[what]}"
        f"{_at(sender)}, and rank {receiver.rank} receives from rank {sender.rank} with "
        f"{name} {receiver.call[what]}{_at(receiver)}: that is another message."
    )


def _circle(circle):
    links = [
        f"rank {report.rank} {wait(report.call, after.rank)}{_at(report)}"
        for report, after in zip(circle, [*circle[1:], circle[0]])
    ]
    kinds = {"both" if "also" in report.call else report.call["kind"] for report in circle}
    nobody = {"recv": ": nobody sends.", "send": ": nobody receives."}
    end = nobody.get(kinds.pop(), ".") if len(kinds) == 1 else "."
    who = named(report.rank for report in circle).capitalize()
    return f"{who} wait in a circle: {', '.join(links)}{end}"


def _in_vain(diagnosis):
    """Say who waits for ranks that have ended, and what became of those."""
    reports, alike = diagnosis.reports, {}  # {(what it waits for, who has ended): ranks}
    for rank, ended in diagnosis.waits_in_vain().items():
        went_well = all(reports[r].state not in ("died", "failed") for r in ended)
        if went_well and not diagnosis.settled([rank]):
            continue  # what it waits for may have been sent
        alike.setdefault((wait(reports[rank].call), tuple(ended)), []).append(rank)
    said = []
    for (waits, ended), ranks in alike.items():
        # The gravest names the cause: who merely ended may only have heard of a death first.
        gravest = min((reports[r].state for r in ended), key=ENDED.index)
        ended = [r for r in ended if reports[r].state == gravest]
        sends = reports[ranks[0]].call["kind"] == "send"
        end = "nobody there receives any more" if sends else "nothing more comes from there"
        waits = _plural(waits) if len(ranks) > 1 else waits
        state = _plural(STATES[gravest]) if len(ended) > 1 else STATES[gravest]
        said.append(f"{named(ranks).capitalize()} {waits}, but {named(ended)} {state}: {end}.")
    return said


def _at(report):
    """Return " (line 3)", or "" for a rank that waits outside of the reader's lines."""
    return f" ({report.line})" if report.line else ""
