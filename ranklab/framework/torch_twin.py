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
