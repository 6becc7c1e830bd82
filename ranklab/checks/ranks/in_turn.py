"""One rank after the other."""

import time

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake
from ranklab.upstream.torch import calls_begun, groups


def case(what, ranks, late=lambda r, n: 0.0, speech=lambda r: 0.02):
    return Case(what, lambda rank, world_size: (late(rank, world_size), speech(rank)), ranks=ranks)


def calls():
    """Return how many messages and collectives this rank has begun, in all of its groups."""
    return sum(map(calls_begun, groups()))


def drive(in_turn, late, speech):
    """Come `late`, then take turns: say() takes `speech` seconds.

    Return the moments at which this rank began and ended to speak, in s, and its calls before the
    first say() and after the last one.
    """
    moments, made = [], []

    def say():
        made.append(calls())
        moments.append(time.monotonic())
        time.sleep(speech)
        moments.append(time.monotonic())
        made.append(calls())

    dist.barrier()
    before = calls()
    time.sleep(late)
    in_turn(say)
    first, *_, last = made or [before, before]
    return moments, first - before, calls() - last


def not_once(seen):
    return [r for r, (moments, *_) in enumerate(seen.results) if len(moments) != 2]


def out_of_order(seen):
    """Say who spoke not once, or before the one before had ended."""
    spoken = [moments for moments, _, _ in seen.results]
    for r in not_once(seen):
        return f"Rank {r} called say() {len(spoken[r]) // 2} times, and should have once."
    for r in range(1, len(spoken)):
        if spoken[r][0] < spoken[r - 1][1]:
            return f"Rank {r} began to speak before rank {r - 1} had ended."
    return None


def by_luck(seen):
    """Say so where the order is right, and a rank cannot have known when its turn came."""
    for r in range(1, len(seen.results)):
        if not seen.results[r][1]:
            return (
                f"The order is right by luck: rank {r} waited for nobody before it spoke (no "
                "barrier, no message)."
            )
        if not seen.results[r - 1][2]:
            return (
                f"The order is right by luck: rank {r - 1} told nobody that it had ended (no "
                "barrier, no message after its say())."
            )
    return None


def after_a_sleep(say):
    time.sleep(dist.get_rank() * 0.5)
    say()


def a_barrier_and_then_sleeps(say):
    dist.barrier()
    time.sleep(dist.get_rank() * 0.2)
    say()


def a_token_goes_round(say):
    rank, token = dist.get_rank(), torch.zeros(1)
    if rank > 0:
        dist.recv(token, rank - 1)
    say()
    if rank < dist.get_world_size() - 1:
        dist.send(token, rank + 1)


def a_group_for_each_pair(say):
    rank, n = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([r, r + 1]) for r in range(n - 1)]
    if rank > 0:
        dist.barrier(pairs[rank - 1])
    say()
    if rank < n - 1:
        dist.barrier(pairs[rank])


def with_the_barriers_before(say):
    for _ in range(dist.get_rank()):
        dist.monitored_barrier()
    say()
    for _ in range(dist.get_world_size() - 1 - dist.get_rank()):
        dist.monitored_barrier()


exercise = Exercise(
    cases=[
        case("the first comes last", 4, late=lambda r, n: 0.05 * (n - r)),
        case("all at once", 3),
        case("rank 2 is late", 4, late=lambda r, n: 0.2 * (r == 2)),
        case("alone", 1),
        case("rank 0 is late", 2, late=lambda r, n: 0.2 * (r == 0)),
        case("rank 1 speaks for long", 3, speech=lambda r: 0.6 if r == 1 else 0.02),
    ],
    twin=None,
    judge=lambda seen: out_of_order(seen) or by_luck(seen),
    drive=drive,
    hint="What does rank 1 wait for before it speaks, and what ends that wait?",
    mistakes=[
        Mistake(
            "Nobody knows how late another rank may be, or how long it speaks: no sleep is long "
            "enough. A rank has to wait until the one before says that it has ended.",
            after_a_sleep,
            a_barrier_and_then_sleeps,
            test=lambda seen: not out_of_order(seen),
        ),
        Mistake(
            "A rank speaks in its own turn, and in no other.",
            {"        if turn == rank:\n            say()": "        say()"},
            test=not_once,
        ),
        Mistake(
            "Count the barriers that each rank calls. A barrier ends only when all have come.",
            {"say()\n        dist": "say()\n            break\n        dist"},
            happened="stuck",
            test=lambda seen: len(seen.inputs) > 1,
        ),
    ],
    also_right=[a_token_goes_round, a_group_for_each_pair, with_the_barriers_before],
)
