"""Wrong answers to the exercise on clipping: the solution, with one mistake each."""

import torch
import torch.distributed as dist
from torch import nn

from wrong_answers import wrong


def _grads(parameters):
    return [p.grad for p in parameters if p.grad is not None]


def _squares(grads):
    return sum((g.double().square().sum() for g in grads), torch.zeros((), dtype=torch.float64))


def _norm(split, shared):
    squares = _squares(_grads(split))
    dist.all_reduce(squares)
    return (squares + _squares(_grads(shared))).sqrt().item()


def _scale(split, shared, factor):
    for grad in _grads([*split, *shared]):
        grad *= factor


def _clip(norm_of=_norm, scale=_scale, grow=False, after=lambda norm, max_norm: norm):
    def clip_together(split, shared, max_norm):
        norm = norm_of(split, shared)
        if max_norm < norm < float("inf") or (grow and norm):
            scale(split, shared, max_norm / norm)
        return after(norm, max_norm)

    return (clip_together,)


def _wrong(*says):
    return wrong("clip_together", says=says, several=True)


@_wrong("The norm is too large", "Which part of the sum")
def replicas_on_every_rank():
    def norm(split, shared):
        squares = _squares(_grads([*split, *shared]))
        dist.all_reduce(squares)
        return squares.sqrt().item()

    return _clip(norm)


@_wrong("The other ranks' pieces are missing")
def pytorchs_own():
    def clip_together(split, shared, max_norm):
        return nn.utils.clip_grad_norm_([*split, *shared], max_norm).item()

    return (clip_together,)


@_wrong("The replicas belong to the gradient, too")
def pieces_alone():
    return _clip(lambda split, shared: _norm(split, []))


@_wrong("Norms do not add up")
def adds_norms():
    def norm(split, shared):
        of_pieces = _squares(_grads(split)).sqrt()
        dist.all_reduce(of_pieces)
        return (of_pieces + _squares(_grads(shared)).sqrt()).item()

    return _clip(norm)


@_wrong("the square of the norm")
def no_root():
    return _clip(lambda split, shared: _norm(split, shared) ** 2)


@_wrong("the norm after clipping")
def returns_the_norm_after():
    return _clip(after=min)


@_wrong("the norm is small already", "has been made larger")
def scales_always():
    return _clip(grow=True)


@_wrong("the norm is small already", "has been made larger")
def scales_always_even_zeros():
    def clip_together(split, shared, max_norm):
        norm = _norm(split, shared)
        _scale(split, shared, max_norm / (norm + 1e-30))
        return norm

    return (clip_together,)


@_wrong("infinite", "The norm is not finite")
def scales_what_is_infinite():
    def clip_together(split, shared, max_norm):
        norm = _norm(split, shared)
        if norm > max_norm:
            _scale(split, shared, max_norm / norm)
        return norm

    return (clip_together,)


@_wrong("nan", "The norm is not finite")
def scales_what_is_nan():
    def clip_together(split, shared, max_norm):
        norm = _norm(split, shared)
        if not norm <= max_norm and norm != float("inf"):
            _scale(split, shared, max_norm / norm)
        return norm

    return (clip_together,)


@_wrong("all are zero", "what is divided by it?")
def divides_by_zero():
    def clip_together(split, shared, max_norm):
        norm = torch.tensor(_norm(split, shared))
        _scale(split, shared, (max_norm / norm).nan_to_num(torch.nan).clamp(max=1) * (norm / norm))
        return norm.item()

    return (clip_together,)


@_wrong("The replicas are to be scaled, too")
def scales_the_pieces_alone():
    return _clip(scale=lambda split, shared, factor: _scale(split, [], factor))


@_wrong("The gradients of the pieces are not scaled")
def scales_the_replicas_alone():
    return _clip(scale=lambda split, shared, factor: _scale([], shared, factor))


@_wrong("they stand in new tensors")
def new_gradients():
    def scale(split, shared, factor):
        for p in [*split, *shared]:
            if p.grad is not None:
                p.grad = p.grad * factor

    return _clip(scale=scale)


@_wrong("or a copy of them is")
def scales_copies():
    def scale(split, shared, factor):
        for grad in _grads([*split, *shared]):
            grad = grad * factor

    return _clip(scale=scale)


@_wrong("The norm is right", "one factor for all")
def clips_each_by_itself():
    def scale(split, shared, factor):
        for grad in _grads([*split, *shared]):
            grad *= min(1.0, factor * len(_grads([*split, *shared])) / (1 + grad.norm()))

    return _clip(scale=scale)


@_wrong("The factor is max_norm / norm")
def the_root_of_the_factor():
    return _clip(scale=lambda split, shared, factor: _scale(split, shared, factor**0.5))


@_wrong("no pieces", "with what number?")
def nothing_to_add_up():
    def norm(split, shared):
        squares = _squares(_grads(split))
        if split or not dist.get_rank():
            dist.all_reduce(squares)
        return (squares + _squares(_grads(shared))).sqrt().item()

    return _clip(norm)


@_wrong("some have no gradient", "its `.grad` is None")
def all_have_gradients():
    def norm(split, shared):
        squares = _squares([p.grad for p in split])
        dist.all_reduce(squares)
        return (squares + _squares([p.grad for p in shared])).sqrt().item()

    return _clip(norm)


@_wrong("make one sum over all ranks")
def a_sum_for_each_piece():
    """The ranks with fewer pieces have gone on to something else."""

    def norm(split, shared):
        squares = [_squares([grad]) for grad in _grads(split)]
        for one in squares:
            dist.all_reduce(one)
        dist.barrier()
        return (sum(squares) + _squares(_grads(shared))).sqrt().item()

    return _clip(norm)
