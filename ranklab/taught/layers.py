# Generated from book/16_layers.md by `make forms`: edit the manuscript, not this file.

"""Model parallelism by layers: one model, several owners: what chapter 16_layers teaches."""

import time
import zlib
from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn


class Send(torch.autograd.Function):
    """Send.apply(x, dst, group): send x; in backward, receive its gradient.

    It returns a stand-in, the number 0, for all that comes after:
    stand_in.backward() waits for the gradient. A factor on it has no effect.
    """

    @staticmethod
    def forward(ctx, x, dst, group=None):
        ctx.dst, ctx.group, ctx.shape = dst, group, x.shape
        dist.send(x.contiguous(), group=group, group_dst=dst)
        return x.new_zeros(())

    @staticmethod
    def backward(ctx, unused):
        gradient = unused.new_empty(ctx.shape)
        dist.recv(gradient, group=ctx.group, group_src=ctx.dst)
        return gradient, None, None  # nothing for dst and group


class Receive(torch.autograd.Function):
    """Receive.apply(like, src, group): receive; in backward, send the gradient.

    like: of the shape and type of what comes. It must require a gradient.
    """

    @staticmethod
    def forward(ctx, like, src, group=None):
        ctx.src, ctx.group = src, group
        x = torch.empty_like(like)
        dist.recv(x, group=group, group_src=src)
        return x

    @staticmethod
    def backward(ctx, gradient):
        dist.send(gradient.contiguous(), group=ctx.group, group_dst=ctx.src)
        return None, None, None


def through(layers, inputs, received, group=None):
    """One stage's forward: from the rank before, through `layers`, to the next.

    Stage k is rank k of the group. inputs: what the first stage computes on.
    received: the shape of what each other one receives; its type is that of the
    weights. The last stage returns its outputs, the others a stand-in (`Send`).
    """
    k, n = dist.get_rank(group), dist.get_world_size(group)
    if k > 0:
        weight = next(layers.parameters())  # of its type, on its device
        like = weight.new_empty(received)
        inputs = Receive.apply(like.requires_grad_(), k - 1, group)
    outputs = layers(inputs)
    return outputs if k == n - 1 else Send.apply(outputs, k + 1, group)


def prose():
    """The text of Python's own documentation: a str of plain ASCII."""
    from pydoc_data.topics import topics  # a large module

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return "".join(c for c in text if c == "\n" or " " <= c <= "~")


def encode(text):
    """Characters as int64 tokens: 0 ends a line, 1 is a space, 95 a tilde."""
    return torch.tensor([0 if c == "\n" else ord(c) - 31 for c in text])


def decode(tokens):
    """The text of a list of tokens."""
    return "".join("\n" if t == 0 else chr(t + 31) for t in tokens)


def windows(tokens, batch, context, seed):
    """Inputs and targets, (batch, context): windows of text, and one later."""
    g = torch.Generator().manual_seed(seed)
    with torch.device("cpu"):  # where the generator is
        starts = torch.randint(len(tokens) - context, (batch, 1), generator=g)
        rows = tokens[starts + torch.arange(context + 1)]
    return rows[:, :-1], rows[:, 1:]


@dataclass(frozen=True)
class Shape:
    """The numbers that make a GPT: `width` features a token, `heads` heads."""

    vocabulary: int = 96
    context: int = 64
    width: int = 64
    heads: int = 4
    blocks: int = 4


class Embed(nn.Module):
    """Tokens (batch, time) -> (batch, time, width), token plus place."""

    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)

    def forward(self, tokens):
        return self.tokens(tokens) + self.places.weight[: tokens.shape[1]]


def attend(q, k, v):
    """Causal attention; all (batch, heads, time, size)."""
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """(batch, time, width) -> the same; `heads` heads of `size` features."""

    def __init__(self, width, heads, size):
        super().__init__()
        self.size = size
        self.query = nn.Linear(width, heads * size, bias=False)
        self.key = nn.Linear(width, heads * size, bias=False)
        self.value = nn.Linear(width, heads * size, bias=False)
        self.out = nn.Linear(heads * size, width)

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


def head_size(shape):
    """The features of a head. ValueError if the heads cannot share evenly."""
    if shape.width % shape.heads:
        what = f"{shape.width} features evenly."
        raise ValueError(f"{shape.heads} heads cannot share {what}")
    return shape.width // shape.heads


class MLP(nn.Module):
    """(..., width) -> the same: up to `hidden` features, GELU, and down."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class Block(nn.Module):
    """(batch, time, width) -> the same: attention and MLP, each added to x."""

    def __init__(self, shape):
        super().__init__()
        self.norm_1 = nn.LayerNorm(shape.width)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape.width, shape.heads, head_size(shape))
        self.mlp = MLP(shape.width, 4 * shape.width)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Head(nn.Module):
    """(batch, time, width) -> logits (batch, time, vocabulary)."""

    def __init__(self, shape):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, x):
        return self.logits(self.norm(x))


def drawn(name, sizes, seed=0):
    """A parameter's first value, float64; name, sizes and seed alone decide."""
    if name.endswith("bias"):
        return torch.zeros(sizes, dtype=torch.float64)
    if "norm" in name:
        return torch.ones(sizes, dtype=torch.float64)
    number = zlib.crc32(f"{seed} {name}".encode())  # hash() differs by process
    g = torch.Generator().manual_seed(number)
    value = torch.randn(sizes, dtype=torch.float64, generator=g, device="cpu")
    return value * sizes[-1] ** -0.5  # outputs about as large as inputs


def gpt(shape, first=0, last=None, seed=0, dtype=torch.float32):
    """Layers `first` to `last` (excluded) of a GPT, an nn.Sequential.

    Layer 0 embeds, the last one is the head. The names and initial weights of a
    layer are the same in whatever slice it stands.
    """
    blocks = [(f"block{i}", Block) for i in range(shape.blocks)]
    makers = [("embed", Embed), *blocks, ("head", Head)]
    layers = OrderedDict((name, make(shape)) for name, make in makers[first:last])
    model = nn.Sequential(layers).to(dtype)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(drawn(name, p.shape, seed))
    return model


def language_loss(logits, targets):
    """Mean cross-entropy of logits (batch, time, vocabulary)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt_stage(shape, bounds, k, seed=0, dtype=torch.float32):
    """Stage k of a GPT cut at `bounds`: layers bounds[k] up to bounds[k + 1].

    Raises ValueError for bounds that leave a stage without layers, or a layer
    without an owner.
    """
    whole, rising = [0, shape.blocks + 2], sorted(set(bounds))
    ends = [*bounds[:1], *bounds[-1:]]
    if list(bounds) != rising or ends != whole or not 0 <= k < len(bounds) - 1:
        raise ValueError(
            f"Stage {k} of {list(bounds)}: the bounds of {whole[1]} layers "
            f"begin with 0, rise, and end with {whole[1]}; the stages of n + 1 "
            f"bounds are 0 to n - 1."
        )
    return gpt(shape, bounds[k], bounds[k + 1], seed, dtype)


def forward_backward(layers, tokens, targets, width, group=None):
    """Add the gradients of one stage of a GPT to its parameters.

    Stage k is rank k of the group. tokens, targets: (batch, time). Returns the
    loss on the last stage, None on the others.
    """
    out = through(layers, tokens, (*tokens.shape, width), group)
    is_last = dist.get_rank(group) == dist.get_world_size(group) - 1
    loss = language_loss(out, targets) if is_last else out
    loss.backward()
    return loss.item() if is_last else None


def train_step(layers, optimizer, tokens, targets, width, group=None):
    """One step of one stage of a GPT; the rest is as for `forward_backward`."""
    optimizer.zero_grad()
    loss = forward_backward(layers, tokens, targets, width, group)
    optimizer.step()
    return loss


def saved_bytes(layers, forward):
    """Bytes that forward() saves for backward, the layers' weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in layers.parameters()}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = forward()
    del outputs  # not before: it holds all that is saved
    return sum(found.values())


def timed(passes, repeats):
    """Of each of `passes` and repeat: seconds (by the clock, of computing).

    All ranks call it together. The passes take turns; the first turn warms up.
    """
    took = [[] for _ in passes]
    for _ in range(repeats + 1):
        for run, seconds in zip(passes, took):
            dist.barrier()
            clock, computing = time.perf_counter(), time.process_time()
            run()
            torch.cuda.is_initialized() and torch.cuda.synchronize()
            computing = time.process_time() - computing
            dist.barrier()
            seconds.append((time.perf_counter() - clock, computing))
    return [seconds[1:] for seconds in took]


def layer_seconds(layers, tokens, targets, repeats=6):
    """The least processor seconds of each layer, on a CPU, both ways."""
    layers, targets = deepcopy(layers).cpu(), targets.cpu()
    times = [[] for _ in layers]
    with torch.device("cpu"):
        for _ in range(repeats + 1):
            x = tokens.cpu()
            for i, layer in enumerate(layers):
                start = time.process_time()  # whatever else the machine does
                y = layer(x)
                y = language_loss(y, targets) if i == len(layers) - 1 else y
                y.backward(torch.ones_like(y))  # any gradient takes as long
                times[i].append(time.process_time() - start)
                x = y.detach().requires_grad_()
    return [min(of_layer[1:]) for of_layer in times]  # the first one warms up


def balance(costs, n):
    """Bounds that cut a chain of layers for n owners: the largest sum is least.

    Raises ValueError where an owner would be left without a layer.
    """
    if not 1 <= n <= len(costs):
        raise ValueError(f"{n} owners for {len(costs)} layers: one each at least.")
    ends = range(1, len(costs) + 1)
    best = {j: (sum(costs[:j]), [0, j]) for j in ends}  # for one owner
    for k in range(2, n + 1):
        fewer, best = best, {}  # fewer: for k - 1 owners
        for j in range(k, len(costs) + 1):
            for i in range(k - 1, j):  # the last owner takes layers i to j
                largest, bounds = fewer[i]
                candidate = max(largest, sum(costs[i:j])), [*bounds, j]
                best[j] = min(best.get(j, candidate), candidate)
    return best[len(costs)][1]


def generate(next_logits, prompt, length, seed=0):
    """`prompt`, `length` more characters, by next_logits(tokens (1, time)).

    Of a split model, every rank calls it, and next_logits gives every rank the
    same numbers, one for each token of the vocabulary.
    """
    g, tokens = torch.Generator().manual_seed(seed), encode(prompt)[None]
    for _ in range(length):
        p = torch.softmax(next_logits(tokens).double().cpu(), -1)
        drawn = torch.multinomial(p, 1, generator=g)[None]
        tokens = torch.cat([tokens, drawn.to(tokens)], 1)
    return decode(tokens[0].tolist())


def next_logits_of(layers, shape, group=None):
    """The next_logits of a GPT in stages, for `generate`, called by all ranks.

    layers: this rank's stage. Stage k is rank k of the group.
    """
    last = dist.get_world_size(group) - 1
    device = next(layers.parameters()).device

    @torch.no_grad()
    def next_logits(tokens):
        seen = tokens[:, -shape.context :].to(device)
        out = through(layers, seen, (*seen.shape, shape.width), group)
        logits = out.new_empty(shape.vocabulary, dtype=torch.float32)
        if dist.get_rank(group) == last:
            logits.copy_(out[0, -1])
        dist.broadcast(logits, group=group, group_src=last)
        return logits.cpu()

    return next_logits


def training_bytes(parameters, activations, precision="mixed", owners=1):
    """{what: bytes} that each of `owners` holds; activations: how many numbers.

    mixed: bfloat16, but a copy of the weights and Adam's moments in float32."""
    each = 4 if precision == "float32" else 2
    state = {"float32": 8, "mixed": 12, "bfloat16": 4}[precision]
    of_each = {"weights": each, "gradients": each, "optimizer": state}
    held = {what: nbytes * parameters for what, nbytes in of_each.items()}
    held["activations"] = each * activations
    return {what: nbytes / owners for what, nbytes in held.items()}
