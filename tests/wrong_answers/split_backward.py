"""Wrong answers to the exercise on a backward in two parts."""

import torch

from wrong_answers import wrong


@wrong("split_backward", says=["the weights' .grad on return", "Too early"])
def all_at_once(y, x, weights, gradient):
    grads = torch.autograd.grad(y, [x, *weights], gradient, allow_unused=True)
    for p, grad in zip(weights, grads[1:]):
        p.grad = grad
    return grads[0], lambda: None


@wrong("split_backward", says=["x.grad on return", "touches no `.grad`"])
def an_ordinary_backward(y, x, weights, gradient):
    y.backward(gradient)
    return x.grad, lambda: None


@wrong("split_backward", says=["floating-point operations", "All gradients are computed in the"])
def computed_early_written_late(y, x, weights, gradient):
    grads = torch.autograd.grad(y, [x, *weights], gradient, allow_unused=True)

    def later():
        for p, grad in zip(weights, grads[1:]):
            if grad is not None:
                p.grad = grad if p.grad is None else p.grad + grad

    return grads[0], later


@wrong("split_backward", says=["a second time", "retain_graph=True"])
def throws_the_graph_away(y, x, weights, gradient):
    (of_x,) = torch.autograd.grad(y, x, gradient)
    return of_x, lambda: torch.autograd.backward(y, gradient, inputs=weights)


@wrong("split_backward", says=["gradients are there already", "later() *adds*"])
def overwrites(y, x, weights, gradient):
    (of_x,) = torch.autograd.grad(y, x, gradient, retain_graph=True)

    def later():
        for p, grad in zip(weights, torch.autograd.grad(y, weights, gradient, allow_unused=True)):
            p.grad = grad

    return of_x, later


@wrong("split_backward", says=["a weight that is not used", "has an option for it"])
def wants_all_used(y, x, weights, gradient):
    (of_x,) = torch.autograd.grad(y, x, gradient, retain_graph=True)

    def later():
        for p, grad in zip(weights, torch.autograd.grad(y, weights, gradient)):
            p.grad = grad if p.grad is None else p.grad + grad

    return of_x, later


@wrong("split_backward", says=["a weight that is not used", "NoneType", "Two things can be None"])
def adds_none(y, x, weights, gradient):
    (of_x,) = torch.autograd.grad(y, x, gradient, retain_graph=True)

    def later():
        for p, grad in zip(weights, torch.autograd.grad(y, weights, gradient, allow_unused=True)):
            p.grad = grad.clone() if p.grad is None else p.grad + grad

    return of_x, later


@wrong("split_backward", says=["x.grad in the end", "x is one"])
def a_whole_backward_later(y, x, weights, gradient):
    (of_x,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
    return of_x, lambda: y.backward(gradient)


@wrong("split_backward", says=["later() made", "the gradient of x once more"])
def computes_that_of_x_again(y, x, weights, gradient):
    (of_x,) = torch.autograd.grad(y, x, gradient, retain_graph=True)

    def later():
        y.backward(gradient)
        x.grad = None

    return of_x, later


@wrong("split_backward", says=["The gradient of x is what `gradient`"])
def of_the_sum(y, x, weights, gradient):
    (of_x,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    return of_x, lambda: torch.autograd.backward(y.sum(), inputs=weights)


@wrong("split_backward", says=["scalar outputs", "that of y"])
def without_the_gradient(y, x, weights, gradient):
    (of_x,) = torch.autograd.grad(y, x, retain_graph=True)
    return of_x, lambda: torch.autograd.backward(y, inputs=weights)


@wrong("split_backward", says=["(Tensor, NoneType)", "do not call it"])
def calls_it(y, x, weights, gradient):
    (of_x,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
    return of_x, torch.autograd.backward(y, gradient, inputs=weights)


@wrong("split_backward", says=["returns a tuple"])
def a_tuple(y, x, weights, gradient):
    of_x = torch.autograd.grad(y, x, gradient, retain_graph=True)
    return of_x, lambda: torch.autograd.backward(y, gradient, inputs=weights)


@wrong(
    "split_backward",
    says=["two micro-batches under way", "Each later() needs its own"],
    several=True,
)
def one_for_all():
    waiting = {}

    def split_backward(y, x, weights, gradient):
        (of_x,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
        waiting["y"], waiting["gradient"] = y, gradient

        def later():
            torch.autograd.backward(waiting["y"], waiting["gradient"], True, inputs=weights)

        return of_x, later

    return (split_backward,)


@wrong(
    "split_backward",
    says=["three of them, the last one first", "Each later() needs its own"],
    several=True,
)
def first_come_first_served():
    waiting = []

    def split_backward(y, x, weights, gradient):
        (of_x,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
        waiting.append((y, gradient))
        return of_x, lambda: torch.autograd.backward(*waiting.pop(0), inputs=weights)

    return (split_backward,)
