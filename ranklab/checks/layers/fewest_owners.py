"""A cut of layers into as few stages as their memory allows."""

from ranklab.exercises import Case, Exercise, Mistake, Raised

TOO_LARGE = Raised("ValueError")
TOO_MUCH = "sum(nbytes[bounds[-1] : i + 1]) > limit"


def drive(answer, nbytes, limit):
    """The bounds, or that the answer raised ValueError."""
    try:
        return answer(nbytes, limit)
    except ValueError:
        return TOO_LARGE


def layer_by_layer(nbytes, limit):
    bounds, free = [], 0
    for i, size in enumerate(nbytes):
        if size > limit:
            raise ValueError("too large")
        if not bounds or size > free:
            bounds.append(i)
            free = limit
        free -= size
    return [*bounds, len(nbytes)]


def from_the_back(nbytes, limit):
    return [len(nbytes) - i for i in reversed(layer_by_layer(nbytes[::-1], limit))]


def case(what, nbytes, limit):
    return Case(what, lambda rank, world_size: (nbytes, limit), ranks=1)


exercise = Exercise(
    cases=[
        case("layers of 3, 3, 2, 5 and 1 bytes, limit 6", [3, 3, 2, 5, 1], 6),
        case("all fit on one", [1, 2, 3], 10),
        case("each by itself", [4, 4, 4], 5),
        case("a layer that just fits", [2, 6, 2], 6),
        case("the last layer is too large", [2, 2, 7], 6),
        case("the first layer is too large", [7, 1], 6),
        case("a cheap embedding, a head like four blocks", [1, 10, 10, 10, 10, 10, 40], 40),
        case("one layer", [5], 5),
        case("layers without parameters", [0, 6, 0, 6, 0], 6),
    ],
    twin=lambda inputs: [drive(layer_by_layer, *args) for args in inputs],
    drive=drive,
    hint="A new stage begins where the next layer would be too much for the one before.",
    also_right=[layer_by_layer],
    mistakes=[
        Mistake(
            "It raised ValueError, and every layer fits. One that has just `limit` bytes does, "
            "too.",
            {"max(nbytes) > limit": "max(nbytes) >= limit"},
            test=lambda seen: seen.results[0] == TOO_LARGE,
        ),
        Mistake(
            "One layer alone has more than `limit` bytes, and no cut helps. That is to be said "
            "with a ValueError, wherever the layer stands.",
            {"max(nbytes) > limit": "False"},
            {"max(nbytes) > limit": "nbytes[0] > limit"},
            test=lambda seen: seen.expected[0] == TOO_LARGE,
        ),
        Mistake(
            "Bounds begin with 0, rise, and end with the number of layers. Is there a stage "
            "without a layer, or a layer without a stage?",
            {"return [*bounds, len(nbytes)]": "return bounds"},
            {"return [*bounds, len(nbytes)]": "return [*bounds[1:], len(nbytes)]"},
        ),
        Mistake(
            "A stage has more than `limit` bytes: is the new layer counted, before it is taken in?",
            {TOO_MUCH: "sum(nbytes[bounds[-1] : i]) > limit"},
        ),
        Mistake("A stage may have just `limit` bytes.", {TOO_MUCH: TOO_MUCH.replace(">", ">=")}),
        Mistake(
            "As few stages as possible, but another cut: the earlier stages are to take as many "
            "layers as they can.",
            from_the_back,
        ),
        Mistake(
            "These are more stages than it takes.",
            {TOO_MUCH: "i"},
            test=lambda seen: len(seen.results[0]) > len(seen.expected[0]),
        ),
    ],
)
