"""When the operations of a graph can be done, if workers are never lacking."""

import functools
import operator

from ranklab.exercises import Case, Exercise, Mistake

FORMULA = {
    "z": (operator.mul, "x", "y"),
    "u": (operator.mul, "z", "λ"),
    "k": (operator.mul, "a", "b"),
    "t": (operator.add, "u", "k"),
}
LAYERS = (  # of a training step: each operation, and what it needs
    "F1 x W1, F2 F1 W2, F3 F2 W3, G F3 target, dW3 G F3 F2, dX3 G F3 W3, dW2 dX3 F2 F1, "
    "dX2 dX3 F2 W2, dW1 dX2 F1 x"
)
STEP = {name: (None, *sources) for name, *sources in map(str.split, LAYERS.split(", "))}
LADDER = "a ladder of 60 operations"
LOOP, STARTS = "        for name in names:\n", "            start = max(("  # in the solution


def case(what, graph, seconds):
    return Case(what, lambda rank, world_size: (dict(graph), dict(seconds)), ranks=1)


def ladder(rungs):
    """Two nodes on each rung, each of which needs both of the rung before: 2**rungs paths."""
    graph = {"L0": (None, "x"), "R0": (None, "x")}
    for i in range(1, rungs):
        graph |= {f"{side}{i}": (None, f"L{i - 1}", f"R{i - 1}") for side in "LR"}
    return graph


def uneven(what, graph):
    return case(what, graph, {name: 1.0 + 0.5 * (i % 4) for i, name in enumerate(graph)})


def twin(inputs):
    """Relax every arrow until nothing changes (Bellman and Ford)."""
    (graph, seconds) = inputs[0]
    end, before = seconds, None
    while end != before:
        before = end
        start = {n: max((end.get(s, 0.0) for s in graph[n][1:]), default=0.0) for n in graph}
        end = {n: start[n] + seconds[n] for n in graph}
    return [end]


def asking_back(kept):
    """An answer that asks each operation's inputs; kept: what keeps their answers."""

    def earliest_end(graph, seconds):
        @kept
        def end_of(name):
            sources = [source for source in graph[name][1:] if source in graph]
            return seconds[name] + max(map(end_of, sources), default=0.0)

        return {name: end_of(name) for name in graph}

    return earliest_end


def no_key(seen):
    """The key of a KeyError in the answer."""
    kind, _, key = seen.error.partition(": ")
    return key.strip("'\"") if kind == "KeyError" else None


exercise = Exercise(
    cases=[
        case("the formula of the chapter", FORMULA, {"z": 1.0, "u": 1.0, "k": 5.0, "t": 1.0}),
        case("the formula, all operations alike", FORMULA, dict.fromkeys(FORMULA, 2.0)),
        case("a single operation", {"z": FORMULA["z"]}, {"z": 3.0}),
        uneven("a training step of 3 layers", STEP),
        uneven("the same, written down in the opposite order", dict(reversed(STEP.items()))),
        uneven(LADDER, ladder(30)),
        case("no operation at all", {}, {}),
    ],
    twin=twin,
    limit=3.0,
    hint="An operation starts when the latest of its inputs is there; inputs of the whole graph "
    "are there from the start.",
    also_right=[asking_back(functools.cache), {"if source in graph": "if source in end"}],
    mistakes=[
        Mistake(
            "Is the end of an operation worked out again for everybody who needs it? Keep it.",
            asking_back(lambda end_of: end_of),
            happened="slow",
            test=lambda seen: seen.case.what == LADDER,
        ),
        Mistake(
            "Does every loop come to its end?",
            {LOOP: "        while 'x' not in end:\n            pass\n" + LOOP},
            happened="slow",
        ),
        Mistake(
            "An operation comes after those that it needs, in whatever order the graph was "
            "written down: `schedule` gives such an order.",
            {"in schedule(graph)": "in [graph]"},
            happened="error",
            test=lambda seen: no_key(seen) in seen.inputs[0][0],
        ),
        Mistake(
            "Not every input is an operation: some are inputs of the whole, there from the start.",
            {" if source in graph": ""},
            happened="error",
            test=no_key,
        ),
        Mistake(
            "Some operations wait for no other one: when do those start?",
            {"((end[": "(end[", "inputs), default=0)": "inputs)"},
            happened="error",
            test=lambda seen: "max() " in seen.error and "empty" in seen.error,
        ),
        Mistake("Keep the times in a dict of your own.", {"{}": "seconds"}, happened="changed"),
        Mistake(
            "The result has an entry for every operation, and none for the inputs of the whole.",
            {"{}": "{source: 0.0 for node in graph.values() for source in node[1:]}"},
            test=lambda seen: seen.results[0].keys() != seen.expected[0].keys(),
        ),
        Mistake(
            "It returns a dict: name -> when it is done.",
            {"return end": "return max(end.values())"},
            {"    return end": ""},
            test=lambda seen: seen.found == "type",
        ),
        Mistake(
            "Those are the times at which they start.",
            {"return end": "return {name: end[name] - seconds[name] for name in graph}"},
        ),
        Mistake(
            "Those are steps. How long an operation takes is in `seconds`.",
            {"+ seconds[name]": "+ 1.0"},
        ),
        Mistake(
            "No operation is done before its own `seconds` are over.", {" + seconds[name]": ""}
        ),
        Mistake(
            "Some operations are said to end too late. Nobody waits for a level, nor for the sum "
            "of what its inputs took: only for the latest of its own inputs.",
            {
                LOOP: "        before = max(end.values(), default=0)\n" + LOOP,
                STARTS: "            start = before or max((",
            },
            {STARTS: "            start = max(end.values(), default=0) or max(("},
            {"max(": "sum(", ", default=0": ""},
        ),
        Mistake(
            "Some operations are said to end too early: one can start when *all* its inputs are "
            "there.",
            {"[1:]": "[1:2]"},
            {"[1:]": "[2:]"},
            {"max(": "min("},
        ),
    ],
)
