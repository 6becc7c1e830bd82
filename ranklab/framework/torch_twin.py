"""The twin of chapter 13's framework: its names, made of torch.

Nothing here imports torch before it is asked for: who trains with NumPy need not have it.
"""

from types import SimpleNamespace

import numpy as np


def torch_kit():
    """What a program asks the framework for, made of torch: ResNet9, nn and optim."""
    import torch
    from torch import nn, optim

    class Residual(nn.Module):
        def __init__(self, fn):
            super().__init__()
            self.fn = fn

        def forward(self, x):
            return self.fn(x) + x

    def block(n_in, n_out, k, stride):
        layer = nn.Conv2d(n_in, n_out, k, stride, k // 2)
        return nn.Sequential(layer, nn.BatchNorm2d(n_out), nn.ReLU())

    def residual(n):
        return Residual(nn.Sequential(block(n, n, 3, 1), block(n, n, 3, 1)))

    def ResNet9(device=None, dtype="float32"):
        torch.manual_seed(np.random.randint(1 << 31))  # NumPy's generator decides here, too
        parts = [block(3, 16, 7, 4), block(16, 32, 3, 2), residual(32)]
        parts += [block(32, 64, 3, 2), block(64, 128, 3, 2), residual(128)]
        parts += [nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
        return nn.Sequential(*parts).to(device, getattr(torch, dtype))

    names = SimpleNamespace(SoftmaxLoss=nn.CrossEntropyLoss)
    return SimpleNamespace(ResNet9=ResNet9, nn=names, optim=optim)


def twin_of(model, dtype):
    """torch's ResNet9 with the weights of ours."""
    import torch

    twin = torch_kit().ResNet9(dtype=dtype)
    start = {name: torch.tensor(array) for name, array in model.state_dict().items()}
    twin.load_state_dict(start, strict=False)  # it counts batches, too
    return twin


class torch_adam:
    """torch.optim.Adam's computation, by torch's own function.

    The class would load torch's compiler first, which takes more than all that is compared.
    """

    def __init__(self, params, lr=0.001, weight_decay=0.0):
        import torch

        self.params = list(params)
        self.state = [[torch.zeros_like(p) for p in self.params] for _ in range(2)]
        self.steps = [torch.tensor(0.0) for _ in self.params]
        self.numbers = {"lr": lr, "weight_decay": weight_decay, "beta1": 0.9, "beta2": 0.999}

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        import torch
        from torch.optim.adam import adam

        grads = [p.grad for p in self.params]
        options = {"eps": 1e-8, "amsgrad": False, "maximize": False, "foreach": False}
        with torch.no_grad():
            adam(self.params, grads, *self.state, [], self.steps, **self.numbers, **options)
