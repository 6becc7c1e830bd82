"""Wrong answers to the exercises of chapter 02."""

from itertools import pairwise

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


@wrong("earliest_end", says=["the same, written down in the opposite order", "KeyError"])
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


# largest_batch


@wrong("largest_batch", says=["784-128-64-10 in float32", "once as its gradient"])
def without_gradients(widths, itemsize, memory):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return max(0, (memory - parameters * itemsize) // (itemsize * sum(widths)))


@wrong("largest_batch", says=["784-128-64-10 in float32", "What else has to be there"])
def without_the_input(widths, itemsize, memory):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return max(0, (memory - 2 * parameters * itemsize) // (itemsize * sum(widths[1:])))


@wrong("largest_batch", says=["784-128-64-10 in float32", "biases"])
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


@wrong("scale_rows", says=["2 rows of 3", "ValueError", "that is s as a column"])
def columns_for_rows(a, s):
    return Tensor(
        a.data * s.data, (a, s), lambda grad: (grad * s.data, (grad * a.data).sum(axis=0))
    )


@wrong("scale_rows", says=["TypeError", "should return a Tensor"])
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


@wrong("checkpoint", says=["where does `grad` come in"])
def from_ones(f, a):
    def rule(grad):
        leaf = Tensor(a.data)
        backward(f(leaf))
        return (leaf.grad,)

    return Tensor(f(Tensor(a.data)).data, (a,), rule)


@wrong("checkpoint", says=["TypeError", "on a fresh leaf"])
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
