"""Chapter 13's autograd: its graph, how it is gone through and freed, and what leaves hold."""

import gc
import sys
import tracemalloc

import numpy as np
import pytest

from ranklab.framework.grad_mode import no_grad
from ranklab.taught.own_framework import Tensor, topological

# The graph


def test_10_000_nodes_in_a_chain():
    x = leaf = Tensor(np.ones(2), requires_grad=True)
    for _ in range(10_000):
        x = x + 1.0
    assert sys.getrecursionlimit() < 10_000
    x.sum().backward()
    assert leaf.grad.tolist() == [1.0, 1.0]


def test_a_node_is_visited_once_however_many_ways_lead_to_it():
    calls = []

    def counted(x):
        return x.copy(), (lambda grad: calls.append(1) or grad,)

    x = leaf = Tensor(np.ones(()), requires_grad=True)
    for _ in range(60):  # 2 ** 60 ways from the output to the leaf
        x = x.apply(counted)
        x = x * 0.5 + x * 0.5
    x.backward()
    assert (len(calls), leaf.grad.item()) == (60, 1.0)


def test_an_order_has_sources_first_and_nothing_that_wants_no_gradient():
    a, b = Tensor(np.ones(3), requires_grad=True), Tensor(np.ones(3))
    product = a * b
    output = product + a
    assert [id(node) for node in topological(output)] == [id(a), id(product), id(output)]


def test_the_rules_of_inputs_that_want_no_gradient_are_not_called():
    def picky(a, b):
        return a + b, (lambda grad: grad, lambda grad: 1 / 0)

    a = Tensor(np.ones(()), requires_grad=True)
    a.apply(picky, Tensor(np.ones(()))).backward()
    assert a.grad.item() == 1


def test_a_graph_is_freed_by_backward_and_used_once():
    a = Tensor(np.ones(1000), requires_grad=True)
    middle = a * a
    output = (middle * a).sum()
    output.backward()
    assert not middle.sources and not output.sources
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        output.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        (middle * 2).sum().backward()


def test_the_memory_of_steps_does_not_grow():
    """Without Python's search for circles: nothing in a graph points back at its results."""
    a = Tensor(np.ones(100_000), requires_grad=True)

    def step():
        x = a
        for _ in range(5):
            x = x * a
        x.sum().backward()
        a.grad = None

    gc.disable()
    tracemalloc.start()
    step()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(5):
        step()
    (a * a).sum()  # a forward that nobody follows back
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    gc.enable()
    assert grown < a.array.nbytes / 10


# Leaves


def test_gradients_add_up_in_memory_of_their_own():
    a, b = (Tensor(np.ones(3), requires_grad=True) for _ in range(2))
    for _ in range(2):
        (a + b).sum().backward()
    assert a.grad.tolist() == b.grad.tolist() == [2.0, 2.0, 2.0]
    a.grad *= 0
    assert b.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_gradient_is_written_where_the_leaf_says():
    flat = np.full(6, np.nan)
    a = Tensor(np.ones((2, 2)), requires_grad=True)
    a.into = flat[1:5].reshape(2, 2)
    for expected in (3, 6):
        (a * 3).sum().backward()
        assert a.grad is a.into
        assert flat[1:5].tolist() == 4 * [expected]
    assert np.isnan(flat[[0, 5]]).all()


def test_hooks_are_called_once_a_gradient_is_complete_the_last_layer_first():
    seen = []
    weights = [Tensor(np.full(3, float(i)), requires_grad=True) for i in range(1, 5)]
    for weight in weights:
        weight.hooks.append(lambda leaf: seen.append((leaf.array[0], leaf.grad[0])))
    x = Tensor(np.ones(3))
    for weight in weights:
        x = x * weight + weight
    x.sum().backward()
    # With w = 1, 2, 3, 4: x grows as 2, 6, 21, 88; a gradient is (x before + 1) * the rest.
    assert seen == [(4.0, 22.0), (3.0, 28.0), (2.0, 36.0), (1.0, 48.0)]


def test_no_graph_is_kept_where_nobody_wants_one():
    a = Tensor(np.ones(3), requires_grad=True)
    with no_grad():
        inside = a * 2
    detached = a.data * 2
    assert not inside.requires_grad and not detached.requires_grad
    assert (a * 2).requires_grad
    a.data.array[0] = 5
    assert a.array[0] == 5


@pytest.mark.parametrize(
    ("do", "words"),
    [
        (lambda a: (a * 2).backward(), "only for scalar outputs"),
        (lambda a: a.data.sum().backward(), "does not require grad"),
        (lambda a: Tensor(np.arange(3), requires_grad=True), "floating point"),
    ],
)
def test_what_torch_refuses_is_refused(do, words):
    with pytest.raises(RuntimeError, match=words):
        do(Tensor(np.ones(3), requires_grad=True))


def test_numbers_and_arrays_do_not_change_the_type():
    a = Tensor(np.ones(3, np.float32), requires_grad=True)
    assert (a * 0.1 + 1).dtype == np.float32
    assert (np.ones(3, np.float32) * a).dtype == np.float32
    assert isinstance(np.ones(3) + a, Tensor)
