"""Parameters dealt into buckets."""

from ranklab.exercises import Case, Exercise, Mistake

FULL = "sum(nbytes[j] for j in filling) >= limit"
LEFT_OVER = "    if filling:\n        buckets.append(filling)\n"


def case(what, *args):
    return Case(what, lambda rank, world_size: args, ranks=1)


def by_a_running_sum(nbytes, first_bytes, bucket_bytes):
    buckets, full = [[]], 0
    for k in reversed(range(len(nbytes))):
        if buckets[-1] and full >= (bucket_bytes if len(buckets) > 1 else first_bytes):
            buckets.append([])
            full = 0
        buckets[-1].append(k)
        full += nbytes[k]
    return buckets if nbytes else []


def never_more_than_the_limit(nbytes, first_bytes, bucket_bytes):
    buckets, filling, full = [], [], 0
    for k in reversed(range(len(nbytes))):
        if filling and full + nbytes[k] > (bucket_bytes if buckets else first_bytes):
            buckets.append(filling)
            filling, full = [], 0
        filling.append(k)
        full += nbytes[k]
    return buckets + [filling] * bool(filling)


exercise = Exercise(
    cases=[
        case("five parameters of 4 bytes, 4 and 8", [4] * 5, 4, 8),
        case("the last bucket is not full", [4] * 6, 4, 8),
        case("one larger than a bucket", [4, 100, 4, 4], 4, 8),
        case("nothing to deal", [], 4, 8),
        case("all in the first bucket", [1, 2, 3], 100, 8),
        case("some without bytes", [0, 4, 0, 8, 4], 4, 8),
        case("weights and biases", [400, 40, 4000, 40, 400, 4], 100, 1000),
    ],
    twin=lambda inputs: [by_a_running_sum(*args) for args in inputs],
    hint="A bucket is closed as soon as it has so many bytes, or more.",
    also_right=[by_a_running_sum],
    mistakes=[
        Mistake(
            "One of the buckets is empty: where the last one is closed just in time, nothing is "
            "left over.",
            {"    if filling:\n": "    if True:\n"},
        ),
        Mistake(
            "The gradients of the last layers come first: the parameters are to be dealt from the "
            "last one to the first.",
            {"reversed(range(len(nbytes)))": "range(len(nbytes))"},
        ),
        Mistake(
            "Every parameter must be in one bucket, those too that come when no bucket gets full.",
            {LEFT_OVER: ""},
        ),
        Mistake(
            "The first bucket is closed by `first_bytes`, all others by `bucket_bytes`.",
            {"bucket_bytes if buckets else first_bytes": "bucket_bytes"},
            {"bucket_bytes if buckets else first_bytes": "first_bytes"},
        ),
        Mistake(
            "A bucket that has just as many bytes is full, too.", {FULL: FULL.replace(">=", ">")}
        ),
        Mistake(
            "A bucket may have more bytes than its limit: it is closed by the parameter that fills "
            "it, and no sooner.",
            never_more_than_the_limit,
        ),
    ],
)
