# Generated from book/18_tensor.md by `make forms`: edit the manuscript, not this file.

"""One layer, several owners: what chapter 18_tensor teaches."""

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn

from ranklab.taught.collectives import all_gather, reduce_scatter
from ranklab.taught.layers import Block, attend, drawn, head_size


class Copied(torch.autograd.Function):
    """f: x, the same on every rank, goes into the parts. Backward adds up what comes out."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return Summed.apply(gradient, ctx.group), None


class Summed(torch.autograd.Function):
    """g: the parts' outputs are added up. Backward hands every part the same gradient."""

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


def share(n, group=None, what="features"):
    """The slice of n that this rank owns. Raises ValueError where a rank would get nothing."""
    r, size = dist.get_rank(group), dist.get_world_size(group)
    if n < size:
        raise ValueError(f"{n} {what} cannot be dealt to {size} ranks: each must get one at least.")
    return slice(n * r // size, n * (r + 1) // size)


class Piece(nn.Parameter):
    """A parameter that is `part` (a slice) along `dim` of one of shape `whole`."""

    def __deepcopy__(self, memo):  # or a copy of a model, for an average say, would forget it
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
    return hasattr(p, "part")  # what torch.load gives has it, but is no Piece any more


def own_part(p, whole):
    """What a rank's parameter p is, of a tensor that belongs to the whole parameter."""
    return whole.narrow(p.dim, p.part.start, p.shape[p.dim]) if is_split(p) else whole


def fill(model, seed=0):
    """Give every parameter its part of what the whole model begins with. Returns the model."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(own_part(p, drawn(name, p.whole if is_split(p) else p.shape, seed)))
    return model


class ColumnLinear(nn.Module):
    """A linear layer whose outputs are dealt out: of (..., n_in) this rank's part of (..., n_out).

    Not filled when it is made: see `fill`.
    enter: what is done to x before, f unless told otherwise; None: nothing, x has been through it.
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
    """A linear layer whose inputs are dealt out: this rank's part of (..., n_in) -> (..., n_out).

    Not filled when it is made: see `fill`.
    leave: how the ranks' outputs are added up, g unless told otherwise.
    """

    def __init__(self, n_in, n_out, group=None, bias=True, part=None, leave=summed):
        super().__init__()
        self.group, self.leave = group, leave
        self.weight = piece((n_out, n_in), 1, part or share(n_in, group))
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None

    def forward(self, x):
        y = self.leave(nn.functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias  # once, and not once on every rank


class SplitMLP(nn.Module):
    """The MLP of a block, its hidden features dealt out: (..., width) -> the same.

    enter, leave: what x goes through before, and the ranks' outputs after; f and g.
    """

    def __init__(self, width, hidden, group=None, enter=copied, leave=summed):
        super().__init__()
        self.up = ColumnLinear(width, hidden, group, enter=enter)
        self.down = RowLinear(hidden, width, group, leave=leave)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class SplitAttention(nn.Module):
    """Attention whose heads are dealt out, whole ones: (batch, time, width) -> the same.

    enter, leave: what x goes through before, and the ranks' outputs after; f and g.
    Raises ValueError for fewer heads than ranks.
    """

    def __init__(self, width, heads, size, group=None, enter=copied, leave=summed):
        super().__init__()
        mine = share(heads, group, "heads")
        part = slice(mine.start * size, mine.stop * size)
        self.size, self.group, self.enter = size, group, enter
        self.query, self.key, self.value = (
            ColumnLinear(width, heads * size, group, bias=False, part=part, enter=None)
            for _ in range(3)
        )
        self.out = RowLinear(heads * size, width, group, part=part, leave=leave)

    def forward(self, x):
        x = self.enter(x, self.group)  # once for all three
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
        self.group, self.leave, self.part = group, leave, share(vocabulary, group, "tokens")
        self.weight = piece((vocabulary, width), 0, self.part)

    def forward(self, tokens):
        mine = (self.part.start <= tokens) & (tokens < self.part.stop)
        rows = nn.functional.embedding((tokens - self.part.start).where(mine, 0), self.weight)
        return self.leave(rows.where(mine[..., None], 0), self.group)  # 0 for what others have


def split_cross_entropy(logits, targets, vocabulary, group=None):
    """Mean cross-entropy of logits whose last dimension, the vocabulary, is dealt out.

    logits (batch, time, this rank's part), targets (batch, time), all within the
    vocabulary (that is not checked). Every rank gets the same number.
    """
    part = share(vocabulary, group, "tokens")
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    mine = (part.start <= targets) & (targets < part.stop)
    column = (targets - part.start).where(mine, 0)[..., None]
    shifted = logits - largest[..., None]
    at_target = shifted.gather(-1, column)[..., 0].where(mine, 0)
    two = torch.stack([shifted.exp().sum(-1), at_target])  # numbers for each place, and no logits
    total, of_target = summed(two, group)
    return (total.log() - of_target).mean()


class SplitBlock(Block):
    """A block as chapter 16's, its attention and its MLP split; the norms are on every rank.

    Raises ValueError where the heads cannot share the features, or the ranks the heads.
    """

    def __init__(self, shape, group=None, enter=copied, leave=summed):
        nn.Module.__init__(self)  # not Block's, which would make the whole layers
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        heads = shape.heads, head_size(shape)
        self.attention = SplitAttention(shape.width, *heads, group, enter, leave)
        self.mlp = SplitMLP(shape.width, 4 * shape.width, group, enter, leave)


class SplitEmbed(nn.Module):
    """Tokens (batch, time) -> vectors, for this rank's part of the time if `sequence`."""

    def __init__(self, shape, group=None, sequence=False):
        super().__init__()
        self.group, self.sequence = group, sequence
        leave = scattered if sequence else summed
        self.tokens = VocabularyEmbedding(shape.vocabulary, shape.width, group, leave)
        self.places = nn.Embedding(shape.context, shape.width)

    def forward(self, tokens):
        time = tokens.shape[1]
        part = share(time, self.group, "places in time") if self.sequence else slice(time)
        return self.tokens(tokens) + self.places.weight[part]


class SplitHead(nn.Module):
    """Vectors -> this rank's part of the logits, (batch, time, part of the vocabulary)."""

    def __init__(self, shape, group=None, enter=copied):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.logits = ColumnLinear(shape.width, shape.vocabulary, group, bias=False, enter=enter)

    def forward(self, x):
        return self.logits(self.norm(x))


def tensor_gpt(shape, group=None, seed=0, dtype=torch.float32, sequence=False):
    """Chapter 16's GPT, each of its layers split over the group; names and weights are the same.

    It returns this rank's part of the logits. sequence: between the split layers every rank
    has a part of the time only (call `sum_replicas` once, after the last backward of a step).
    Raises ValueError where something cannot be dealt out.
    """
    if sequence and shape.context % dist.get_world_size(group):
        n = dist.get_world_size(group)
        raise ValueError(f"A context of {shape.context} cannot be dealt to {n} ranks equally.")
    enter, leave = (gathered, scattered) if sequence else (copied, summed)
    layers = [("embed", SplitEmbed(shape, group, sequence))]
    layers += [(f"block{i}", SplitBlock(shape, group, enter, leave)) for i in range(shape.blocks)]
    layers += [("head", SplitHead(shape, group, enter))]
    return fill(nn.Sequential(OrderedDict(layers)).to(dtype), seed)


def tensor_numbers(shape, places):
    """How many numbers a rank of a split GPT hands over to all-reduces in a step.

    places: batch x time. Without sequence parallelism; however many ranks there are.
    """
    activations = places * shape.width
    return (4 * shape.blocks + 2) * activations + 3 * places


class Gathered(torch.autograd.Function):
    """All ranks' parts of dimension 1, one after the other. Backward: reduce-scatter."""

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
    """The sum of all ranks' x, of which each gets its part of dimension 1. Backward: all-gather."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, parts = group, x.chunk(dist.get_world_size(group), 1)
        box = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
        reduce_scatter(box, list(parts), group)
        return box

    @staticmethod
    def backward(ctx, gradient):
        return Gathered.apply(gradient, ctx.group), None


def gathered(x, group=None):
    """x (batch, part of the time, ...) of all ranks -> (batch, time, ...)."""
    return Gathered.apply(x, group)


def scattered(x, group=None):
    """The sum of all ranks' x (batch, time, ...), of it this rank's part of the time.

    Raises ValueError where the time cannot be dealt out in equal parts.
    """
    n = dist.get_world_size(group)
    if x.shape[1] % n:
        raise ValueError(f"{x.shape[1]} places in time cannot be dealt to {n} ranks equally.")
    return Scattered.apply(x, group)


def sum_replicas(model, group=None):
    """Add up the gradients of what every rank has a replica of, in one message.

    Only where each rank saw a part of the time: otherwise every rank has the whole sum already.
    Once in a step, after its last backward: what has been added up would be added up again.
    """
    grads = [p.grad for p in model.parameters() if not is_split(p) and p.grad is not None]
    if not grads:
        return  # on all ranks, for they train the same replicas
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat, group=group)
    for grad, total in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(total.view_as(grad))


def split_dropout(x, p, generator, whole=None, group=None):
    """Dropout of features that are dealt out: x is this rank's share of `whole` features.

    All ranks must have drawn alike from the generator so far: then the mask is that of the whole.
    Without `whole`, x has all features. For training: it always drops. Raises ValueError unless
    0 <= p < 1.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p is {p}. It is a probability, 0 or more and less than 1.")
    part = share(whole, group) if whole else slice(None)
    size = (*x.shape[:-1], whole or x.shape[-1])
    kept = torch.empty(size, dtype=x.dtype, device=x.device).bernoulli_(1 - p, generator=generator)
    return x * kept[..., part] / (1 - p)


def split_norm(parameters, group=None, device=None):
    """The norm of the whole model's gradient: every piece once, and every replica once.

    With sequence parallelism call it after `sum_replicas`: before, replicas' gradients differ.
    A rank without parameters calls it, too. device: where it is on a GPU.
    """
    parameters = list(parameters)
    device = device or (parameters[0].device if parameters else "cpu")
    squares = torch.zeros(2, dtype=torch.float64, device=device)  # of the pieces, of the replicas
    for p in parameters:
        if p.grad is not None:
            squares[0 if is_split(p) else 1] += p.grad.double().square().sum()
    dist.all_reduce(squares[:1], group=group)  # a view: the replicas' sum stays as it is
    return squares.sum().sqrt()


def all_logits(logits, vocabulary, group=None):
    """The whole vocabulary's logits from every rank's part of them, on every rank."""
    whole = logits.new_zeros(*logits.shape[:-1], vocabulary)
    whole[..., share(vocabulary, group, "tokens")] = logits
    dist.all_reduce(whole, group=group)  # a number and zeros: nothing is rounded
    return whole


def next_logits_of(model, shape, group=None, sequence=False):
    """What chapter 16's `generate` asks for: a function from tokens (1, time) to (vocabulary,)."""
    n = dist.get_world_size(group)

    def next_logits(tokens):
        with torch.no_grad():
            tokens = tokens[:, -shape.context :]
            last = tokens.shape[1] - 1
            if sequence:  # tokens behind the last one change nothing before them
                tokens = nn.functional.pad(tokens, (0, -tokens.shape[1] % n))
            return all_logits(model(tokens)[0, last], shape.vocabulary, group)

    return next_logits
