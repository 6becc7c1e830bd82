"""Modules: parameters by name, states saved and restored; the layers that have no parameters."""

import numpy as np

from ranklab.framework.operators import Operators


class Module:
    """What has parameters (tensors that require gradients), buffers (arrays) and modules.

    All three are found among its attributes, in the order in which they were set.
    """

    training = True

    def __call__(self, *inputs):
        return self.forward(*inputs)

    def named_modules(self, prefix=""):
        """Pairs of name and module: itself, and all below it."""
        yield prefix, self
        for name, part in self.named_children():
            yield from part.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_children(self):
        """Pairs of name and module, one level down."""
        return [(name, part) for name, part in vars(self).items() if isinstance(part, Module)]

    def _named(self, is_wanted):
        seen = set()
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                if is_wanted(value) and id(value) not in seen:  # shared ones count once
                    seen.add(id(value))
                    yield f"{prefix}.{name}" if prefix else name, value

    def named_parameters(self):
        """Pairs of name and parameter, always in the same order."""
        return list(self._named(_is_parameter))

    def named_buffers(self):
        """Pairs of name and array, of what is kept and not trained."""
        return list(self._named(lambda v: isinstance(v, np.ndarray)))

    def parameters(self):
        return [parameter for _, parameter in self.named_parameters()]

    def buffers(self):
        return [buffer for _, buffer in self.named_buffers()]

    def state_dict(self):
        """Name -> array, of parameters and buffers; the arrays themselves, not copies."""
        kept = self._named(lambda v: _is_parameter(v) or isinstance(v, np.ndarray))
        return {name: value.array if _is_parameter(value) else value for name, value in kept}

    def load_state_dict(self, state):
        """Copy the arrays of a state dict into this module's."""
        own = self.state_dict()
        wrong = [f"Missing key: {name}" for name in own if name not in state]
        wrong += [f"Unexpected key: {name}" for name in state if name not in own]
        wrong += [
            f"Size mismatch for {name}: the state has {np.shape(state[name])}, "
            f"the module {array.shape}"
            for name, array in own.items()
            if name in state and np.shape(state[name]) != array.shape
        ]
        if wrong:
            lines = "\n    ".join(wrong)
            raise RuntimeError(f"Cannot load this state into {type(self).__name__}:\n    {lines}")
        for name, array in own.items():
            array[...] = state[name]

    def train(self, mode=True):
        """From now on statistics are those of the batch; with mode=False the running ones."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self):
        return self.train(False)


def _is_parameter(value):
    return isinstance(value, Operators) and value.requires_grad


class Sequential(Module):
    """Modules one after the other."""

    def __init__(self, *modules):
        self.modules = modules

    def named_children(self):
        return [(str(i), module) for i, module in enumerate(self.modules)]

    def forward(self, x):
        for module in self.modules:
            x = module(x)
        return x


class Residual(Module):
    """fn(x) + x."""

    def __init__(self, fn):
        self.fn = fn

    def forward(self, x):
        return self.fn(x) + x


class ReLU(Module):
    """x where it is positive, else 0."""

    def forward(self, x):
        return x.relu()


class Tanh(Module):
    """The hyperbolic tangent, entry by entry."""

    def forward(self, x):
        return x.tanh()


class Flatten(Module):
    """All axes but the first in one."""

    def forward(self, x):
        return x.flatten(1)


class SoftmaxLoss(Module):
    """The mean over the rows of logits (n, classes) of -log softmax at the class in y (n,)."""

    def forward(self, logits, y):
        rows = np.arange(len(logits))
        classes = np.asarray(getattr(y, "array", y)).astype(int)
        return (logits.logsumexp(axis=1) - logits[rows, classes]).mean()
