"""Graphs to schedule, in the notation of chapter 02: name -> (function, *names of its inputs)."""

import operator

FORMULA = {
    "z": (operator.mul, "x", "y"),
    "u": (operator.mul, "z", "λ"),
    "k": (operator.mul, "a", "b"),
    "t": (operator.add, "u", "k"),
}
SECONDS = {"z": 1.0, "u": 1.0, "k": 5.0, "t": 1.0}


def layers(number):
    """The graph of a training step, as in the chapter, with any function in its nodes."""
    outputs = ["x", *(f"F{i}" for i in range(1, number + 1))]
    graph = {f"F{i}": (None, outputs[i - 1], f"W{i}") for i in range(1, number + 1)}
    graph["G"] = (None, outputs[-1], "target")
    grad = "G"
    for i in range(number, 0, -1):
        graph[f"dW{i}"] = (None, grad, outputs[i], outputs[i - 1])
        if i > 1:
            graph[f"dX{i}"] = (None, grad, outputs[i], f"W{i}")
            grad = f"dX{i}"
    return graph


def ladder(rungs):
    """Two nodes on each rung, each of which needs both of the rung before: 2**rungs paths."""
    graph = {"L0": (None, "x"), "R0": (None, "x")}
    for i in range(1, rungs):
        graph |= {f"{side}{i}": (None, f"L{i - 1}", f"R{i - 1}") for side in "LR"}
    return graph


def uneven(graph):
    return {name: 1.0 + 0.5 * (i % 4) for i, name in enumerate(graph)}


def backwards(graph):
    return dict(reversed(graph.items()))
