# Generated from book/18_tensor.md by `make forms`: edit the manuscript, not this file.

"""Tensor parallelism: one layer, several owners: what chapter 18_tensor teaches."""

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn

from ranklab.taught.collectives import all_gather, reduce_scatter
from ranklab.taught.layers import Block, attend, drawn, head_size


class Copied(torch.autograd.Function):
    """f: x goes into the parts. Backward: the sum of what comes out of them."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return Summed.apply(gradient, ctx.group), None


class Summed(torch.autograd.Function):
    """g: the parts are added up. Backward: the gradient, to every part."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return Copied.apply(gradient, ctx.group), None


def copied(x, group=None):
    """f: x itself; in backward, the sum over the ranks of its gradients."""
    return Copied.apply(x, group)


def summed(x, group=None):
    """g: the sum of all ranks' x; in backward, the gradient as it is."""
    return Summed.apply(x, group)


class Piece(nn.Parameter):
    """A parameter that is slice `part` along `dim` of one of shape `whole`."""

    def __deepcopy__(self, memo):  # or a copy of a model would forget it
        copy = super().__deepcopy__(memo)
        copy.whole, copy.dim, copy.part = self.whole, self.dim, self.part
        return copy


def piece(whole, dim, part):
    """A piece, not yet filled."""
    shape = list(whole)
    shape[dim] = part.stop - part.start
    p = Piece(torch.empty(shape))
    p.whole, p.dim, p.part = tuple(whole), dim, part
    return p


def is_split(p):
    """Is p a piece, and not a replica that every rank has?"""
    return hasattr(p, "part")  # torch.load gives it back, but no Piece


def share(n, group=None, what="features"):
    """This rank's slice of n. ValueError where a rank would get nothing."""
    r, size = dist.get_rank(group), dist.get_world_size(group)
    if n < size:
        raise ValueError(f"{n} {what} cannot be dealt to {size} ranks.")
    return slice(n * r // size, n * (r + 1) // size)


def own_part(p, whole):
    """What a rank's p is, of a tensor that belongs to the whole parameter."""
    size = p.shape[p.dim] if is_split(p) else None
    return whole.narrow(p.dim, p.part.start, size) if is_split(p) else whole


def fill(model, seed=0):
    """Give every parameter its part of what the whole model begins with."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            sizes = p.whole if is_split(p) else p.shape
            p.copy_(own_part(p, drawn(name, sizes, seed)))
    return model


def joined(p, part, group=None):
    """The whole, on every rank, of which `part` is own_part(p, whole)."""
    if not is_split(p):
        return part.detach().clone()
    whole = part.new_zeros(p.whole)
    own_part(p, whole).copy_(part.detach())
    dist.all_reduce(whole, group=group)  # a number and zeros: exact
    return whole


class ColumnLinear(nn.Module):
    """A linear layer of whose outputs this rank has a part; see `fill`.

    enter: what is done to x before; None: nothing, x has been through it.
    part: which outputs are this rank's, a slice.
    """

    def __init__(self, n_in, n_out, group=None, bias=True, part=None, enter=copied):
        super().__init__()
        self.group, self.enter = group, enter
        part = part or share(n_out, group)
        self.weight = piece((n_out, n_in), 0, part)
        self.bias = piece((n_out,), 0, part) if bias else None

    def forward(self, x):
        x = self.enter(x, self.group) if self.enter else x
        return nn.functional.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer of whose inputs this rank has a part; see `fill`.

    leave: how the ranks' outputs are added up.
    """

    def __init__(self, n_in, n_out, group=None, bias=True, part=None, leave=summed):
        super().__init__()
        self.group, self.leave = group, leave
        self.weight = piece((n_out, n_in), 1, part or share(n_in, group))
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None

    def forward(self, x):
        y = nn.functional.linear(x, self.weight)  # the bias comes later
        y = self.leave(y, self.group)
        return y if self.bias is None else y + self.bias


class SplitMLP(nn.Module):
    """A block's MLP, its hidden features dealt out; width in, width out."""

    def __init__(self, width, hidden, group=None, enter=copied, leave=summed):
        super().__init__()
        self.up = ColumnLinear(width, hidden, group, enter=enter)
        self.down = RowLinear(hidden, width, group, leave=leave)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class SplitAttention(nn.Module):
    """Attention whose heads are dealt out: (batch, time, width) -> the same."""

    def __init__(self, width, heads, size, group=None, enter=copied, leave=summed):
        super().__init__()
        mine = share(heads, group, "heads")
        part = slice(mine.start * size, mine.stop * size)
        self.size, self.group, self.enter = size, group, enter
        kinds = {"bias": False, "part": part, "enter": None}
        self.query, self.key, self.value = (
            ColumnLinear(width, heads * size, group, **kinds) for _ in range(3)
        )
        self.out = RowLinear(heads * size, width, group, part=part, leave=leave)

    def forward(self, x):
        x = self.enter(x, self.group)  # f once for all three
        q, k, v = (
            project(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


class VocabularyEmbedding(nn.Module):
    """An embedding whose rows, one for each token, are dealt out.

    A token outside of the vocabulary is nobody's: it gets zeros, and no error.
    """

    def __init__(self, vocabulary, width, group=None, leave=summed):
        super().__init__()
        self.part = share(vocabulary, group, "tokens")
        self.group, self.leave = group, leave
        self.weight = piece((vocabulary, width), 0, self.part)

    def forward(self, tokens):
        mine = (self.part.start <= tokens) & (tokens < self.part.stop)
        at = (tokens - self.part.start).where(mine, 0)
        rows = nn.functional.embedding(at, self.weight)
        return self.leave(rows.where(mine[..., None], 0), self.group)


def split_cross_entropy(logits, targets, vocabulary, group=None):
    """Mean cross-entropy, on all ranks, of logits with their tokens dealt out.

    logits (batch, time, this rank's part), targets (batch, time), not checked.
    """
    part = share(vocabulary, group, "tokens")
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    shifted = logits - largest[..., None]
    mine = (part.start <= targets) & (targets < part.stop)
    column = (targets - part.start).where(mine, 0)[..., None]
    at_target = shifted.gather(-1, column)[..., 0].where(mine, 0)
    two = torch.stack([shifted.exp().sum(-1), at_target])
    total, of_target = summed(two, group)  # two numbers for each place
    return (total.log() - of_target).mean()


class SplitBlock(Block):
    """Chapter 16's block, attention and MLP split; norms are on every rank."""

    def __init__(self, shape, group=None, enter=copied, leave=summed):
        nn.Module.__init__(self)  # not Block's, which makes the whole layers
        width, heads = shape.width, shape.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        how = group, enter, leave
        self.attention = SplitAttention(width, heads, head_size(shape), *how)
        self.mlp = SplitMLP(width, 4 * width, *how)


class SplitEmbed(nn.Module):
    """Tokens (batch, time) -> vectors; of a part of the time if `sequence`."""

    def __init__(self, shape, group=None, sequence=False):
        super().__init__()
        self.group, self.sequence = group, sequence
        leave = scattered if sequence else summed
        sizes = shape.vocabulary, shape.width
        self.tokens = VocabularyEmbedding(*sizes, group, leave)
        self.places = nn.Embedding(shape.context, shape.width)

    def forward(self, tokens):
        part = slice(tokens.shape[1])
        if self.sequence:
            part = share(part.stop, self.group, "places in time")
        return self.tokens(tokens) + self.places.weight[part]


class SplitHead(nn.Module):
    """Vectors -> this rank's logits, (batch, time, part of the vocabulary)."""

    def __init__(self, shape, group=None, enter=copied):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        sizes = shape.width, shape.vocabulary
        self.logits = ColumnLinear(*sizes, group, bias=False, enter=enter)

    def forward(self, x):
        return self.logits(self.norm(x))


def tensor_gpt(shape, group=None, seed=0, dtype=torch.float32, sequence=False):
    """Chapter 16's GPT, its layers split over the group: same names, weights.

    It gives this rank's part of the logits. sequence: between split layers a
    rank has a part of the time. ValueError where something cannot be dealt out.
    """
    n = dist.get_world_size(group)
    if sequence and shape.context % n:
        what = f"A context of {shape.context}"
        raise ValueError(f"{what} cannot be dealt to {n} ranks equally.")
    enter, leave = (gathered, scattered) if sequence else (copied, summed)
    layers = {"embed": SplitEmbed(shape, group, sequence)}
    for i in range(shape.blocks):
        layers[f"block{i}"] = SplitBlock(shape, group, enter, leave)
    layers |= {"head": SplitHead(shape, group, enter)}
    model = nn.Sequential(OrderedDict(layers)).to(dtype)
    return fill(model, seed)


def tensor_numbers(shape, tokens):
    """Numbers that a rank of a split GPT hands to all-reduces in a step."""
    return (4 * shape.blocks + 2) * tokens * shape.width + 3 * tokens


class Gathered(torch.autograd.Function):
    """All ranks' parts of dimension 1, joined. Backward: reduce-scatter."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, x = group, x.contiguous()
        boxes = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        all_gather(boxes, x, group)
        return torch.cat(boxes, 1)

    @staticmethod
    def backward(ctx, gradient):
        return Scattered.apply(gradient, ctx.group), None


class Scattered(torch.autograd.Function):
    """Each rank's part of dimension 1 of the sum. Backward: all-gather."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, parts = group, x.chunk(dist.get_world_size(group), 1)
        layout = torch.contiguous_format
        box = torch.empty_like(parts[0], memory_format=layout)
        reduce_scatter(box, list(parts), group)
        return box

    @staticmethod
    def backward(ctx, gradient):
        return Gathered.apply(gradient, ctx.group), None


def gathered(x, group=None):
    """x (batch, part of the time, ...) of all ranks -> (batch, time, ...)."""
    return Gathered.apply(x, group)


def scattered(x, group=None):
    """Of the sum of all ranks' x (batch, time, ...), this rank's part of time.

    Raises ValueError where the time cannot be dealt out in equal parts.
    """
    n = dist.get_world_size(group)
    if x.shape[1] % n:
        what = f"{x.shape[1]} places in time"
        raise ValueError(f"{what} cannot be dealt to {n} ranks equally.")
    return Scattered.apply(x, group)


def sum_replicas(model, group=None):
    """Add up the gradients of replicas: each rank's is of its part of the time.

    Once in a step, after its last backward: a second call would add up again.
    """
    replicas = (p for p in model.parameters() if not is_split(p))
    grads = [p.grad for p in replicas if p.grad is not None]
    if not grads:
        return  # on all ranks, for they train the same replicas
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat, group=group)
    for grad, total in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(total.view_as(grad))


def split_norm(parameters, group=None, device=None):
    """The norm of the whole gradient: every piece once, and every replica once.

    With sequence parallelism: after `sum_replicas`. A rank without parameters
    calls it, too; device: where it is on a GPU.
    """
    parameters = list(parameters)
    device = device or (parameters[0].device if parameters else None)
    squares = torch.zeros(2, dtype=torch.float64, device=device)
    for p in parameters:
        if p.grad is not None:
            kind = 0 if is_split(p) else 1
            squares[kind] += p.grad.double().square().sum()
    dist.all_reduce(squares[:1], group=group)  # a view: of the pieces only
    return squares.sum().sqrt()


def split_dropout(x, p, generator, whole=None, group=None):
    """Dropout of features that are dealt out: x is a rank's share of `whole`.

    All ranks must have drawn alike from the generator: then the mask is that of
    the whole. Without `whole`, x has all features. It drops in any mode.
    Raises ValueError unless 0 <= p < 1.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p is {p}. It is a probability, from 0 to below 1.")
    part = share(whole, group) if whole else slice(None)
    size = (*x.shape[:-1], whole or x.shape[-1])
    kept = torch.empty(size, dtype=x.dtype, device=x.device)
    kept.bernoulli_(1 - p, generator=generator)
    return x * kept[..., part] / (1 - p)
