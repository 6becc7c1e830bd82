"""The faster way to add up tensors, from latency and bandwidth."""

import math

from ranklab.exercises import Case, Exercise, Mistake
from ranklab.traces.data import counted

ALONE = (
    "A rank alone sends nothing, so both ways take no time. Which is to be said if the times are "
    "the same?"
)
TWO = "With two ranks, doubling is one round of the whole tensor, the ring two of a half."
FEW = "For so few bytes only alpha counts. Which way has fewer messages one after the other?"
MESSAGES = "How many messages does a rank of the ring send, one by one? Each costs alpha."
BYTES = "How many bytes has one message of the ring, if the tensor is cut into n parts?"


def seconds(nbytes, n, alpha, beta):
    return {
        "doubling": math.log2(n) * (alpha + nbytes / beta),
        "ring": 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / beta,
    }


def least_of_a_table(*args):
    return min(seconds(*args), key=seconds(*args).get)


def case(nbytes, n, alpha=50e-6, beta=1e9):
    what = f"{nbytes:,} bytes, {counted(n, 'rank')}, {1e6 * alpha:.0f} µs and {beta / 1e9:g} GB/s"
    hint = BYTES if least_of_a_table(nbytes, n, alpha, beta) == "ring" else MESSAGES
    hint = {1: ALONE, 2: TWO}.get(n, FEW if nbytes < 1000 else hint)
    return Case(what, lambda *_: (nbytes, n, alpha, beta), ranks=1, hint=hint)


def mistake(sentence, *wrong):
    return Mistake(sentence, *wrong, test=lambda seen: seen.case.hint == sentence)


exercise = Exercise(
    cases=[
        case(4, 4),
        case(100_000_000, 4),
        case(390_000, 4),
        case(410_000, 4),
        case(1 << 30, 2),
        case(1000, 2, 1e-9),
        case(1_000_000, 64),
        case(20_000_000, 64),
        case(1_000_000, 64, 1e-6),
        case(1_000_000, 1024, 5e-6, 25e9),
        case(100, 1),
    ],
    twin=lambda inputs: [least_of_a_table(*inputs[0])],
    hint="Count for each way the messages that a rank sends one after the other, and the bytes of "
    "each of them.",
    mistakes=[
        Mistake(
            'The answer is one of two words, "doubling" or "ring".',
            {'return "doubling"': 'return "recursive doubling"'},
            test=lambda seen: seen.results[0] not in ("ring", "doubling"),
        ),
        mistake(ALONE, {"doubling <= ring": "doubling < ring"}),
        mistake(
            FEW, {"alpha + nbytes / beta": "nbytes / beta", "alpha + nbytes / n": "nbytes / n"}
        ),
        mistake(MESSAGES, {"2 * (n - 1)": "(n - 1)"}, {"doubling <= ring": "nbytes < 1 << 16"}),
        mistake(BYTES, {"doubling <= ring": "True"}, {"nbytes / n / beta": "nbytes / beta"}),
    ],
    also_right=[least_of_a_table],
)
