"""Right answers to the exercise on a backward in two parts."""

import torch

from right_answers import right


@right("split_backward")
def with_grad_twice(y, x, weights, gradient):
    [of_x] = torch.autograd.grad([y], [x], [gradient], retain_graph=True)
    kept = gradient.clone()

    def later():
        for p, grad in zip(weights, torch.autograd.grad(y, weights, kept, allow_unused=True)):
            if grad is None:
                continue
            if p.grad is None:
                p.grad = grad
            else:
                p.grad.add_(grad)

    return [of_x, later]


@right("split_backward")
def through_x_grad(y, x, weights, gradient):
    """Backward writes x.grad, which is taken out again."""
    y.backward(gradient, retain_graph=True, inputs=[x])
    of_x, x.grad = x.grad, None
    return of_x, lambda: y.backward(gradient, inputs=list(weights))


@right("split_backward", several=True)
def an_object():
    class Later:
        def __init__(self, *parts):
            self.parts = parts

        def __call__(self):
            y, weights, gradient = self.parts
            (y * gradient).sum().backward(inputs=weights)

    def split_backward(y, x, weights, gradient):
        of_x = torch.autograd.grad((y * gradient).sum(), x, retain_graph=True)[0]
        return of_x, Later(y, weights, gradient)

    return (split_backward,)
