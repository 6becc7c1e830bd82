"""Wrong answers to the exercises of chapter 02."""

from itertools import pairwise

import numpy as np
import torch

from ranklab.taught.graphs import Tensor, backward, mul, schedule
from wrong_answers import wrong

# earliest_end


@wrong("earliest_end", says=["the formula of the chapter", "Nobody waits for a level"])
def level_by_level(graph, seconds):
    end, now = {}, 0.0
    for names in schedule(graph):
        for name in names:
            end[name] = now + seconds[name]
        now = max(end.values())
    return end


@wrong("earliest_end", says=["the formula of the chapter", "the latest of its own inputs"])
def after_the_sum_of_its_inputs(graph, seconds):
    end = {}
    for names in schedule(graph):
        for name in names:
            end[name] = seconds[name] + sum(end[s] for s in graph[name][1:] if s in graph)
    return end


@wrong("earliest_end", says=["KeyError: 'x'", "Not every input is an operation"])
def with_inputs_as_operations(graph, seconds):
    end = {}
    for names in schedule(graph):
        for name in names:
            end[name] = seconds[name] + max(end[source] for source in graph[name][1:])
    return end


@wrong("earliest_end", says=["changed its second argument seconds", "a dict of your own"])
def written_into_the_question(graph, seconds):
    for names in schedule(graph):
        for name in names:
            seconds[name] += max((seconds[s] for s in graph[name][1:] if s in graph), default=0)
    return seconds


@wrong("earliest_end", says=["the same, written down in the opposite order", "`schedule` gives"])
def in_the_order_of_the_text(graph, seconds):
    end = {}
    for name, (_, *sources) in graph.items():
        end[name] = seconds[name] + max((end[s] for s in sources if s in graph), default=0)
    return end


@wrong("earliest_end", says=["a ladder of 60 operations", "Keep it"])
def every_path_again(graph, seconds):
    def end_of(name):
        return seconds[name] + max((end_of(s) for s in graph[name][1:] if s in graph), default=0)

    return {name: end_of(name) for name in graph}


@wrong("earliest_end", says=["the formula of the chapter", "max() ", "when do those start"])
def the_latest_of_none(graph, seconds):
    end = {}
    for names in schedule(graph):
        for name in names:
            end[name] = seconds[name] + max(end[s] for s in graph[name][1:] if s in graph)
    return end


@wrong("earliest_end", says=["the formula of the chapter", "the times at which they start"])
def when_it_starts(graph, seconds):
    start = {}
    for names in schedule(graph):
        for name in names:
            sources = [s for s in graph[name][1:] if s in graph]
            start[name] = max((start[s] + seconds[s] for s in sources), default=0.0)
    return start


@wrong("earliest_end", says=["the formula of the chapter", "Those are steps"])
def numbers_of_steps(graph, seconds):
    steps = enumerate(schedule(graph), start=1)
    return {name: float(step) for step, names in steps for name in names}


@wrong("earliest_end", says=["the formula of the chapter", "said to end too early"])
def after_the_first_input(graph, seconds):
    end = {}
    for names in schedule(graph):
        for name in names:
            end[name] = seconds[name] + end.get(graph[name][1], 0)
    return end


@wrong("earliest_end", says=["the formula of the chapter", "its own `seconds` are over"])
def without_its_own_time(graph, seconds):
    end = {}
    for names in schedule(graph):
        for name in names:
            end[name] = max((end[s] for s in graph[name][1:] if s in graph), default=0.0)
    return end


@wrong("earliest_end", says=["It returns a dict"])
def the_end_of_all(graph, seconds):
    return sum(seconds.values())


@wrong("earliest_end", says=["is a `return` missing"])
def ends_without_a_return(graph, seconds):
    schedule(graph)


@wrong("earliest_end", says=["was not done after", "come to its end"])
def until_the_inputs_are_there(graph, seconds):
    end = {}
    while len(end) < len(graph):
        for name in graph:
            if all(source in end for source in graph[name][1:]):
                end[name] = seconds[name] + max(end[source] for source in graph[name][1:])
    return end


# largest_batch


@wrong("largest_batch", says=["784-128-64-10 in float32", "once as its gradient"])
def without_gradients(widths, itemsize, memory):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return max(0, (memory - parameters * itemsize) // (itemsize * sum(widths)))


@wrong("largest_batch", says=["784-128-64-10 in float32", "The input batch is kept as well"])
def without_the_input(widths, itemsize, memory):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return max(0, (memory - 2 * parameters * itemsize) // (itemsize * sum(widths[1:])))


@wrong("largest_batch", says=["784-128-64-10 in float32", "Or are the biases missing"])
def without_biases(widths, itemsize, memory):
    parameters = sum(n_in * n_out for n_in, n_out in pairwise(widths))
    return max(0, (memory - 2 * parameters * itemsize) // (itemsize * sum(widths)))


@wrong("largest_batch", says=["the same in float64"])
def float32_alone(widths, itemsize, memory):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return max(0, (memory // 4 - 2 * parameters) // sum(widths))


@wrong("largest_batch", says=["not enough for the parameters", "less than nothing"])
def below_zero(widths, itemsize, memory):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    left = memory - 2 * parameters * itemsize
    return (
        left // (itemsize * sum(widths))
        if left < -itemsize * 986
        else max(0, left // (itemsize * sum(widths)))
    )


@wrong("largest_batch", says=["a whole number of samples"])
def a_part_of_a_sample(widths, itemsize, memory):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return max(0, (memory - 2 * parameters * itemsize) / (itemsize * sum(widths)))


@wrong("largest_batch", says=["784-128-64-10 in float32", "part of a sample rounded up"])
def to_the_nearest(widths, itemsize, memory):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return max(0, round((memory - 2 * parameters * itemsize) / (itemsize * sum(widths))))


@wrong("largest_batch", says=["31.0", "A batch is a whole one", "`np.floor`"])
def as_a_float(widths, itemsize, memory):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return max(0.0, (memory - 2.0 * parameters * itemsize) // (itemsize * sum(widths)))


@wrong("largest_batch", says=["784-128-64-10 in float32", "Too small, more would fit"])
def with_gradients_of_activations(widths, itemsize, memory):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return max(0, (memory - 2 * parameters * itemsize) // (2 * itemsize * sum(widths)))


@wrong("largest_batch", says=["was not done after", "A search has to end"])
def one_more_and_one_more(widths, itemsize, memory):
    batch = 0
    while batch * itemsize * sum(widths) >= 0:
        batch += 1
    return batch


@wrong("largest_batch", says=["31", "the same in float64"])
def the_shown_number(widths, itemsize, memory):
    return 31


# scale_rows


@wrong("scale_rows", says=["2 rows of 3", "sum over that row"])
def a_gradient_for_every_entry(a, s):
    column = s.data[:, None]
    return Tensor(a.data * column, (a, s), lambda grad: (grad * column, grad * a.data))


@wrong("scale_rows", says=["2 rows of 3", "multiplied by the scale of its row"])
def the_scale_forgotten_in_backward(a, s):
    column = s.data[:, None]
    return Tensor(a.data * column, (a, s), lambda grad: (grad, (grad * a.data).sum(axis=1)))


@wrong("scale_rows", says=["2 rows of 3", "ValueError", "in the value, and in the rule"])
def columns_for_rows(a, s):
    return Tensor(
        a.data * s.data, (a, s), lambda grad: (grad * s.data, (grad * a.data).sum(axis=0))
    )


@wrong("scale_rows", says=["2 rows of 3", "ValueError", "in the value, and in the rule"])
def columns_for_rows_in_the_rule(a, s):
    return Tensor(
        a.data * s.data[:, None], (a, s), lambda grad: (grad * s.data, (grad * a.data).sum(axis=1))
    )


@wrong("scale_rows", says=["got:      'a torch.Tensor'", "a Tensor of the chapter"])
def a_tensor_of_pytorch(a, s):
    return torch.from_numpy(a.data * s.data[:, None])


@wrong("scale_rows", says=["nothing (None)", "is a `return` missing"])
def rows_without_a_return(a, s):
    Tensor(a.data * s.data[:, None], (a, s))


@wrong("scale_rows", says=["without a rule"])
def without_a_rule(a, s):
    return Tensor(a.data * s.data[:, None], (a, s))


@wrong("scale_rows", says=["a rule that returned nothing"])
def a_rule_without_a_return(a, s):
    def rule(grad):
        (grad * s.data[:, None], (grad * a.data).sum(axis=1))

    return Tensor(a.data * s.data[:, None], (a, s), rule)


@wrong("scale_rows", says=["one gradient for each source"])
def one_gradient_of_two(a, s):
    return Tensor(a.data * s.data[:, None], (a, s), lambda grad: (grad * s.data[:, None],))


@wrong("scale_rows", says=["2 rows of 3", "taken apart into its rows"])
def a_rule_that_gives_an_array(a, s):
    column = s.data[:, None]
    return Tensor(a.data * column, (a, s), lambda grad: grad * column)


@wrong("scale_rows", says=["in the order of the sources"])
def gradients_exchanged(a, s):
    column = s.data[:, None]
    return Tensor(a.data * column, (a, s), lambda grad: ((grad * a.data).sum(1), grad * column))


@wrong("scale_rows", says=["among the sources"])
def without_s_as_a_source(a, s):
    column = s.data[:, None]
    return Tensor(a.data * column, (a,), lambda grad: (grad * column,))


@wrong("scale_rows", says=["2 rows of 3", "`s` has one dimension"])
def a_gradient_that_is_a_column(a, s):
    column = s.data[:, None]
    return Tensor(
        a.data * column,
        (a, s),
        lambda grad: (grad * column, (grad * a.data).sum(axis=1, keepdims=True)),
    )


@wrong("scale_rows", says=["2 rows of 3", "What was s[i] multiplied by"])
def a_gradient_without_the_data(a, s):
    column = s.data[:, None]
    return Tensor(a.data * column, (a, s), lambda grad: (grad * column, grad.sum(axis=1)))


@wrong("scale_rows", says=["got:      'a numpy.ndarray'", "a Tensor of the chapter"])
def an_array(a, s):
    return a.data * s.data[:, None]


@wrong("scale_rows", says=["changed its first argument a", "Make a new array"])
def in_place(a, s):
    before, column = a.data.copy(), s.data[:, None]
    a.data *= column
    return Tensor(a.data.copy(), (a, s), lambda grad: (grad * column, (grad * before).sum(axis=1)))


# checkpoint


@wrong("checkpoint", says=["f ran only once"])
def all_of_it_kept(f, a):
    return f(a)


@wrong("checkpoint", says=["f ran only once"])
def kept_in_the_rule(f, a):
    leaf = Tensor(a.data)
    out = f(leaf)

    def rule(grad):
        backward(mul(out, Tensor(grad)))
        return (leaf.grad,)

    return Tensor(out.data, (a,), rule)


@wrong("checkpoint", says=["where does that come in"])
def from_ones(f, a):
    def rule(grad):
        leaf = Tensor(a.data)
        backward(f(leaf))
        return (leaf.grad,)

    return Tensor(f(Tensor(a.data)).data, (a,), rule)


@wrong("checkpoint", says=["TypeError", "from a fresh leaf"])
def on_beyond_the_leaf(f, a):
    def rule(grad):
        backward(mul(f(a), Tensor(grad)))  # a has sources: this goes on behind it
        return (a.grad,)

    return Tensor(f(Tensor(a.data)).data, (a,), rule)


@wrong("checkpoint", says=["and `a` as its one source"])
def out_of_what_f_returned(f, a):
    def rule(grad):
        leaf = Tensor(a.data)
        backward(mul(f(leaf), Tensor(grad)))
        return (leaf.grad,)

    out = f(a)
    out.sources, out.rule = (
        (*out.sources, a),
        lambda grad: (*(0 * s.data for s in out.sources[:-1]), *rule(grad)),
    )
    return out


@wrong("checkpoint", says=["expected: 0", "does the rule mention f's first result"])
def mentioned_in_the_rule(f, a):
    out = f(Tensor(a.data))

    def rule(grad):
        assert grad.shape == out.data.shape
        leaf = Tensor(a.data)
        backward(mul(f(leaf), Tensor(grad)))
        return (leaf.grad,)

    return Tensor(out.data, (a,), rule)


@wrong("checkpoint", says=["expected: 1", "got:      2", "from a fresh leaf"])
def straight_through_a(f, a):
    def rule(grad):
        backward(mul(f(a), Tensor(grad)))
        return (np.zeros_like(a.data),)

    return Tensor(f(Tensor(a.data)).data, (a,), rule)


@wrong("checkpoint", says=["Nothing leads from the output back to `a`"])
def without_a_source(f, a):
    return Tensor(f(Tensor(a.data)).data)


@wrong("checkpoint", says=["nothing (None)", "is a `return` missing"])
def checkpoint_without_a_return(f, a):
    Tensor(f(Tensor(a.data)).data, (a,))


@wrong("checkpoint", says=["a rule that returned nothing"])
def checkpoint_rule_without_a_return(f, a):
    def rule(grad):
        leaf = Tensor(a.data)
        backward(mul(f(leaf), Tensor(grad)))

    return Tensor(f(Tensor(a.data)).data, (a,), rule)


@wrong("checkpoint", says=["AttributeError", "take Tensors"])
def times_an_array(f, a):
    def rule(grad):
        leaf = Tensor(a.data)
        backward(mul(f(leaf), grad))
        return (leaf.grad,)

    return Tensor(f(Tensor(a.data)).data, (a,), rule)


@wrong("checkpoint", says=["ValueError", "has the shape of f's result"])
def times_grad_afterwards(f, a):
    def rule(grad):
        leaf = Tensor(a.data)
        backward(f(leaf))
        return (leaf.grad * grad,)

    return Tensor(f(Tensor(a.data)).data, (a,), rule)


@wrong("checkpoint", says=["Tensors behind the output", "`a` itself, and not a copy"])
def from_the_leaf_on(f, a):
    start = Tensor(a.data)

    def rule(grad):
        leaf = Tensor(start.data)
        backward(mul(f(leaf), Tensor(grad)))
        return (leaf.grad,)

    return Tensor(f(start).data, (start,), rule)


@wrong("checkpoint", says=["one gradient for each source"])
def a_gradient_without_its_tuple(f, a):
    def rule(grad):
        leaf = Tensor(a.data)
        backward(mul(f(leaf), Tensor(grad)))
        return leaf.grad

    return Tensor(f(Tensor(a.data)).data, (a,), rule)


@wrong("checkpoint", says=["was not done after", "What makes the loop end?"])
def until_it_has_a_gradient(f, a):
    def rule(grad):
        leaf = Tensor(a.data)
        while leaf.grad is None:
            f(leaf)
        return (leaf.grad,)

    return Tensor(f(Tensor(a.data)).data, (a,), rule)


@wrong("checkpoint", says=["runs of f", "once more in the rule"])
def twice_forward(f, a):
    def rule(grad):
        leaf = Tensor(a.data)
        backward(mul(f(leaf), Tensor(grad)))
        return (leaf.grad,)

    f(a)
    return Tensor(f(Tensor(a.data)).data, (a,), rule)


@wrong("checkpoint", says=["The gradient that the fresh leaf got"])
def handing_on_what_came(f, a):
    def rule(grad):
        leaf = Tensor(a.data)
        backward(mul(f(leaf), Tensor(grad)))
        return (np.zeros_like(leaf.grad),)

    return Tensor(f(Tensor(a.data)).data, (a,), rule)
