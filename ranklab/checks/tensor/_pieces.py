"""What checks of split layers share: numbers, leaves, and a way back."""

import torch

CLOSE = (1e-9, 1e-11)  # in float64: the order of additions is free


def drawn(seed, *shape):
    """The same numbers wherever they are asked for, float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def leaf(x, trained=True):
    """A copy of x that autograd watches."""
    return x.clone().requires_grad_(trained)


def run_back(out, weights):
    """Go backward from (out * weights).sum(), if there is a way back."""
    if torch.is_tensor(out) and out.requires_grad and out.shape == weights.shape:
        (out * weights).sum().backward()


def too_many(seen, enough):
    """Say so where a rank took part in more than `enough` collectives."""
    most = max(sum(calls.values()) for calls in seen.collectives)
    if most > enough:
        return (
            f"All numbers are right. But a rank took part in {most} collectives, and "
            f"{'two are' if enough == 2 else 'one is'} enough."
        )
