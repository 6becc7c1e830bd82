"""The maximum over all ranks, with the messages of a barrier."""

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.collectives import sendrecv

MESSAGES = "sendrecv(x, (me + step) % n, incoming, (me - step) % n)"
TAKES_THE_LARGER = "torch.maximum(x, incoming, out=x)"


def case(what, length, ranks, dtype=torch.float32):
    """Every rank's x: its largest number is at another place on each."""

    def make(rank, world_size):
        return (((torch.arange(length) * (rank + 3) * 7 + 5 * rank) % 23 - 30).to(dtype),)

    return Case(what, make, ranks=ranks)


def judge(seen):
    """Say so where a rank sent more messages than the barrier does."""
    most, needed = max(seen.messages), (len(seen.inputs) - 1).bit_length()
    if any(seen.collectives):
        return "The numbers are right. But build it from messages: sendrecv is all that you need."
    if most > needed:
        return (
            f"The numbers are right, but a rank sent {most} messages where {needed} would do: the "
            "distance doubles from round to round."
        )
    return None


def from_far_to_near(x):
    n, me = dist.get_world_size(), dist.get_rank()
    for k in reversed(range((n - 1).bit_length())):
        came = torch.empty_like(x)
        sendrecv(x, (me + 2**k) % n, came, (me - 2**k) % n)
        x.copy_(torch.where(came > x, came, x))


exercise = Exercise(
    cases=[
        case("3 numbers", 3, 4),
        case("4 numbers", 4, 3),
        case("5 numbers", 5, 2),
        case("no number at all", 0, 2),
        case("int64", 6, 4, torch.int64),
        case("bfloat16", 3, 2, torch.bfloat16),
        case("2 numbers", 2, 1),
    ],
    twin=lambda inputs: [torch.stack([x for (x,) in inputs]).amax(0)] * len(inputs),
    judge=judge,
    in_place=True,
    trace=True,
    limit=3.0,
    hint="It is the barrier, with a message in it that says something.",
    mistakes=[
        Mistake(
            "Everyone sends to the right and receives from the left, from as far away as it sends; "
            "and both at the same time, or all wait in a circle. That is what sendrecv is for.",
            {MESSAGES: "dist.send(x, (me + step) % n)\n        dist.recv(x, (me - step) % n)"},
            {"(me - step)": "(me + step)"},
            happened="stuck",
        ),
        Mistake(
            "The loop ends once `step` has reached n: does it double in every round?",
            {"        step *= 2\n": ""},
            happened="slow",
            test=lambda seen: len(seen.inputs) > 1,
        ),
        Mistake(
            "Python's `max` compares two things as a whole. torch.maximum does it place by place.",
            {TAKES_THE_LARGER: "x.copy_(max(x, incoming))"},
            happened="error",
            test=lambda seen: "ambiguous" in seen.error,
        ),
        Mistake(
            "The ranks stand in a circle: after the last one comes rank 0.",
            {"(me + step) % n": "me + step"},
            happened="error",
            test=lambda seen: "no rank" in seen.error or "invalid rank" in seen.error.lower(),
        ),
        Mistake(
            "The loop of the stub has the rounds already. Each one wants one message to the right "
            "and one from the left.",
            {MESSAGES: "dist.all_reduce(x, op=dist.ReduceOp.MAX)", TAKES_THE_LARGER: "pass"},
            test=lambda seen: seen.found == "judge" and any(seen.collectives),
        ),
        Mistake(
            "After the first round a rank's x is the larger of two ranks', after the second it can "
            "be that of four. How far must the message go for that?",
            {"step *= 2": "step += 1"},
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "Nobody's x has changed. The answer is what stands in x afterwards, not what is "
            "returned.",
            {TAKES_THE_LARGER: "x = torch.maximum(x, incoming)"},
        ),
        Mistake(
            "There are numbers that nobody had. What is to be done with what comes: add, or take "
            "the larger one?",
            {TAKES_THE_LARGER: "x += incoming"},
        ),
        Mistake(
            "Numbers are missing. In the round with `step`, how far away is your partner, and do "
            "you keep the larger of both?",
            {"(me + step)": "(me + 1)", "(me - step)": "(me - 1)"},
            {TAKES_THE_LARGER: "x.copy_(incoming)"},
            {TAKES_THE_LARGER: "torch.minimum(x, incoming, out=x)"},
        ),
    ],
    also_right=[from_far_to_near],
)
