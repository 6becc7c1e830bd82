"""A reduce-scatter around a ring to the right."""

import torch
import torch.distributed as dist

from ranklab.checks.all_reduce._numbers import names, numbers
from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.collectives import reduce_scatter
from ranklab.taught.messages import sendrecv

FIRST, SECOND = "- step - 1)", "- step - 2)"  # what is sent, and what comes
BY_SENDRECV = "sendrecv(outgoing, right, incoming, left)"
ORDER = "8 numbers whose sum depends on the order"


def order_tells(rank, world_size):
    """Numbers whose float32 sum is another one in another order than that of the ring."""
    return (torch.full((8,), [2.0**25, -(2.0**25), 1.0, 1.0][rank]),)


def twin(inputs):
    """Each rank's part of the sum, added up as a ring to the right does: from rank r + 1 to r."""
    n = len(inputs)
    parts = [x.tensor_split(n) for (x,) in inputs]
    return [sum(parts[(r + k) % n][r] for k in range(1, n + 1)) for r in range(n)]


def judge(seen):
    """Say so where collectives were used, or more bytes sent than n - 1 parts have."""
    if any(seen.collectives):
        used = names(seen.collectives)
        return f"The result is right, but it was to come around the ring; this used {used}."
    xs = [x for (x,) in seen.inputs]
    enough = (len(xs) - 1) * xs[0].tensor_split(len(xs))[0].nbytes
    if max(seen.sent) > enough:
        r = seen.sent.index(max(seen.sent))
        return (
            f"The result is right, but rank {r} sent {seen.sent[r]} bytes. {enough} are enough: in "
            "each step one part, to the right neighbor."
        )
    return None


def a_part_of_an_all_reduce(x):
    total = x.clone()
    dist.all_reduce(total)
    return total.tensor_split(dist.get_world_size())[dist.get_rank()]


def whole_tensors_instead_of_parts(x):
    n, me = dist.get_world_size(), dist.get_rank()
    total, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(x)
        sendrecv(passing, (me + 1) % n, incoming, (me - 1) % n)
        total, passing = total + incoming, incoming
    return total.tensor_split(n)[me]


def the_one_of_chapter_7(x):
    parts = list(x.tensor_split(dist.get_world_size()))
    box = torch.empty_like(parts[dist.get_rank()])
    reduce_scatter(box, parts)
    return box


def one_part_travels(x):
    n, me = dist.get_world_size(), dist.get_rank()
    own = x.tensor_split(n)
    carried = own[(me - 1) % n].clone()
    for step in range(2, n + 1):
        box = torch.empty_like(own[(me - step) % n])
        both = [dist.P2POp(dist.isend, carried, (me + 1) % n)]
        both += [dist.P2POp(dist.irecv, box, (me - 1) % n)]
        for handle in dist.batch_isend_irecv(both):
            handle.wait()
        carried = box + own[(me - step) % n]
    return carried


exercise = Exercise(
    cases=[
        Case("4 numbers", lambda rank, world_size: (torch.full((4,), float(rank)),), ranks=4),
        numbers("8 numbers", 8, 4),
        numbers("7 numbers", 7, 3),
        numbers("2 numbers", 2, 4),
        numbers("no number at all", 0, 3),
        numbers("int64", 11, 2, torch.int64),
        numbers("float64", 23, 3, torch.float64),
        numbers("5 numbers", 5, 1),
        Case(ORDER, order_tells, ranks=4),
    ],
    twin=twin,
    judge=judge,
    trace=True,
    hint="Follow one part around the ring: which rank has it in step 0, which in step 1?",
    mistakes=[
        Mistake(
            "The loop of the stub sends what is to be sent, one part a step. Only which part goes "
            "and which one comes is for you to say.",
            a_part_of_an_all_reduce,
            whole_tensors_instead_of_parts,
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "The sums are rounded in another order than around a ring to the right, where part r "
            "begins at rank r + 1 and ends at rank r. Chapter 7's went to the left.",
            the_one_of_chapter_7,
            test=lambda seen: seen.found == "value" and seen.case.what == ORDER,
        ),
        Mistake(
            "That is a total, but of another rank's part: begin with another one.",
            {FIRST: "- step)", SECOND: FIRST, "return parts[me]": "return parts[right]"},
            {FIRST: SECOND, SECOND: "- step - 3)", "return parts[me]": "return parts[left]"},
        ),
        Mistake(
            "That is part r of rank r's own x: nothing was added to it. In your loop, which part "
            "comes in last, and has the total? It should be part r.",
            {FIRST: "- step)", SECOND: FIRST},
        ),
        Mistake(
            "What a rank sends must be as long as what its right neighbor expects: if I receive "
            "part p, my left neighbor sends part p.",
            {BY_SENDRECV: "sendrecv(x, right, incoming, left)"},
            {BY_SENDRECV: "dist.send(outgoing, right)\n        dist.recv(incoming, left)"},
            happened=("died", "stuck"),
        ),
        Mistake(
            "Parts differ in length where n does not divide it. What a rank sends must be as long "
            "as what its right neighbor expects.",
            {"x.clone().tensor_split(n)": "x.clone().view(n, -1)"},
            happened="error",
            test=lambda seen: "size" in seen.error or "shape" in seen.error,
        ),
        Mistake(
            "Not a total. What is sent in a step must be what was received, and added to, in the "
            "step before.",
            {"outgoing, mine = parts": "outgoing, mine = x.tensor_split(n)"},
            test=lambda seen: seen.found == "value",
        ),
    ],
    also_right=[one_part_travels],
)
