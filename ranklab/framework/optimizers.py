"""What all optimizers share; and stochastic gradient descent with momentum."""

import numpy as np


class Optimizer:
    """Some parameters, and numbers and arrays, which are its state."""

    def __init__(self, params, **numbers):
        self.params = list(params)
        if not self.params:
            raise ValueError("optimizer got an empty parameter list")
        for name, number in numbers.items():
            if np.min(number) < 0:
                raise ValueError(f"Invalid {name} value: {number}")
        vars(self).update(numbers)

    def step(self):
        """Update every parameter that has a gradient: `update(i, p)` says how."""
        for i, p in enumerate(self.params):
            if p.grad is not None:
                self.update(i, p)

    def reset_grad(self):
        """Forget the gradients: the next backward starts from none."""
        for p in self.params:
            p.grad = None

    zero_grad = reset_grad

    def state_dict(self):
        """Name -> number, or list with an entry for each parameter; the arrays themselves."""
        return {name: value for name, value in vars(self).items() if name != "params"}

    def load_state_dict(self, state):
        """Copy the values of a state dict into this optimizer's."""
        own = self.state_dict()
        if _shapes(own) != _shapes(state):
            raise ValueError("The state was saved from another kind of optimizer, or model.")
        for name, value in state.items():
            if not isinstance(value, list):
                setattr(self, name, value)
                continue
            for i, entry in enumerate(value):
                if isinstance(own[name][i], np.ndarray):
                    own[name][i][...] = entry
                else:
                    own[name][i] = entry


def _shapes(state):
    return {
        name: [np.shape(entry) for entry in value] if isinstance(value, list) else ()
        for name, value in state.items()
    }


class SGD(Optimizer):
    """Gradient descent with momentum and weight decay, as torch.optim.SGD."""

    def __init__(self, params, lr=0.001, momentum=0.0, weight_decay=0.0):
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        self.u = [np.zeros_like(p.array) for p in self.params]

    def update(self, i, p):
        u = self.u[i]
        u *= self.momentum
        u += p.grad
        u += self.weight_decay * p.array
        p.array -= self.lr * u
