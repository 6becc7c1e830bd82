# Generated from book/17_pipeline.md by `make forms`: edit the manuscript, not this file.

# %% check('twice_as_many', twice_as_many)

def twice_as_many():
    """The letter of the right line above."""
    return "a"

# %% check('first_wrong', first_wrong)

def first_wrong(program):
    """The index of the first impossible instruction, or None."""
    done = set()
    for index, (kind, *which) in enumerate(program):
        must = {"F": [], "B": ["F"], "I": ["F"], "W": ["I"]}[kind]
        must_not = {"F": ["F"], "B": ["B", "I"], "I": ["B", "I"], "W": ["W"]}
        if not all((other, *which) in done for other in must):
            return index
        if any((other, *which) in done for other in must_not[kind]):
            return index
        done.add((kind, *which))
    return None

# %% check('warm_program', warm_program)

def warm_program(stage, stages, micro_batches):
    """The program of a stage in 1F1B, a list of ("F", k, 0) and ("B", k, 0)."""
    program = []
    warm_up = min(stages - stage - 1, micro_batches)
    for k in range(warm_up):
        program.append(("F", k, 0))
    for k in range(micro_batches):
        if warm_up + k < micro_batches:
            program.append(("F", warm_up + k, 0))
        program.append(("B", k, 0))
    return program

# %% check('split_backward', split_backward)

import torch


def split_backward(y, x, weights, gradient):
    """(The gradient of x, a function that adds the weights' to their .grad.)"""
    (of_x,) = torch.autograd.grad(y, x, gradient, retain_graph=True)

    def later():
        torch.autograd.backward(y, gradient, inputs=weights)

    return of_x, later

# %% check('within_limit', within_limit)

def within_limit(stages, micro_batches, limit):
    """A schedule in which no stage ever holds more than `limit` activations."""
    starts = []  # of each micro-batch's forward on stage 0
    for k in range(micro_batches):
        starts.append(starts[-1] + 3 if k else 0)
        if k >= limit:  # there is room when the one `limit` before it is back
            starts[k] = max(starts[k], starts[k - limit] + 3 * stages)
    schedule = []
    for stage in range(stages):
        times = [(start + stage, ("F", k, 0)) for k, start in enumerate(starts)]
        back = 3 * stages - 2 * (stage + 1)
        times += [(start + back, ("B", k, 0)) for k, start in enumerate(starts)]
        schedule.append([instruction for _, instruction in sorted(times)])
    return schedule
