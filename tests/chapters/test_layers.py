"""Chapter 16's model in several parts, on 1 to 4 real ranks, beside the same model in one."""

import itertools
import random

import pytest
import torch
import torch.distributed as dist
from on_ranks import group_of
from tiers import few

from ranklab.taught import layers as own

CLOSE = 1e-9  # what is promised is 1e-6
STEPS = 50
TINY = own.Shape(context=6, width=8, heads=2, blocks=3)
LAYERS = TINY.blocks + 2


def cuts(n_layers, n):
    """All bounds of n stages."""
    between = itertools.combinations(range(1, n_layers), n - 1)
    return [[0, *middle, n_layers] for middle in between]


CUTS = [bounds for n in range(1, 5) for bounds in cuts(LAYERS, n)]
BY_DAY = [cuts(LAYERS, 2)[0], cuts(LAYERS, 3)[-1], *cuts(LAYERS, 4)[1:3]]


def text():
    return own.encode(own.prose()[:5000])


def optimizer_of(parameters):
    return torch.optim.AdamW(parameters, 3e-3, weight_decay=0.1)


def of_the_first(n):
    """The group of the first n ranks; every rank calls it."""
    return group_of(*range(n))


def train_whole(shape, tie=False):
    """Losses and weights of the model in one process; nothing of stages is used."""
    model, tokens, losses = own.gpt(shape, dtype=torch.float64), text(), []
    if tie:
        model.head.logits.weight = model.embed.tokens.weight
    optimizer = optimizer_of(model.parameters())
    for step in range(STEPS):
        inputs, targets = own.windows(tokens, 3, shape.context, step)
        optimizer.zero_grad()
        loss = own.language_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def train_stage(shape, bounds):
    """Losses and weights of this rank's stage of a cut; nothing on ranks beyond it."""
    rank, n, tokens = dist.get_rank(), len(bounds) - 1, text()
    group = of_the_first(n)
    if rank >= n:
        return [], {}
    layers = own.gpt_stage(shape, bounds, rank, dtype=torch.float64)
    optimizer, losses = optimizer_of(layers.parameters()), []
    for step in range(STEPS):
        batch = own.windows(tokens, 3, shape.context, step)
        losses.append(own.train_step(layers, optimizer, *batch, shape.width, group))
    return losses, layers.state_dict()


@pytest.fixture(scope="module")
def whole():
    return train_whole(TINY)


# The same training


@pytest.mark.parametrize("bounds", few(zip(CUTS), lambda bounds: bounds in BY_DAY), ids=str)
def test_every_cut_trains_as_the_whole(bounds, whole, four):
    losses, weights = whole
    n, of_ranks = len(bounds) - 1, four.run(train_stage, TINY, bounds)
    assert of_ranks[n - 1][0] == pytest.approx(losses, abs=CLOSE, rel=0)
    found = {name: w for _, part in of_ranks for name, w in part.items()}
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert (found[name] - weight).abs().max() < CLOSE, name


def test_only_the_last_stage_has_a_loss_and_ranks_beyond_have_nothing(four):
    of_ranks = four.run(train_stage, TINY, [0, 2, LAYERS])
    assert of_ranks[0][0] == [None] * STEPS
    assert of_ranks[2] == of_ranks[3] == ([], {})


def test_the_training_learns(whole):
    losses, _ = whole
    assert losses[-1] < losses[0] - 0.5


def tied_stage(shape, bounds):
    """The shared weight of this rank, trained with the sum of both gradients."""
    rank, n, tokens = dist.get_rank(), len(bounds) - 1, text()
    ends = dist.new_group([0, n - 1])
    layers = own.gpt_stage(shape, bounds, rank, dtype=torch.float64)
    optimizer, shared = optimizer_of(layers.parameters()), None
    if rank in (0, n - 1):
        shared = layers.embed.tokens.weight if rank == 0 else layers.head.logits.weight
        with torch.no_grad():
            shared.copy_(own.drawn("embed.tokens.weight", shared.shape))
        optimizer.register_step_pre_hook(lambda *_: dist.all_reduce(shared.grad, group=ends))
    for step in range(STEPS):
        batch = own.windows(tokens, 3, shape.context, step)
        own.train_step(layers, optimizer, *batch, shape.width)
    return shared


def test_a_weight_with_two_owners_is_trained_as_one(four):
    _, weights = train_whole(TINY, tie=True)
    first, *_, last = four.run(tied_stage, TINY, [0, 1, 3, 4, LAYERS])
    assert (first - weights["embed.tokens.weight"]).abs().max() < CLOSE
    assert torch.equal(first, last)


# Send and Receive


def pass_a_tensor(dtype):
    """Rank 0 sends x to rank 1, whose loss is sum(w * x * x); x is a transposed matrix."""
    rank = dist.get_rank()
    weight = torch.arange(6, dtype=dtype).view(3, 2)
    if rank == 0:
        x = torch.ones(2, 3, dtype=dtype, requires_grad=True)
        stand_in = own.Send.apply(2 * x.t(), 1)
        stand_in.backward()
        return stand_in.detach(), x.grad
    if rank == 1:
        like = torch.empty(3, 2, dtype=dtype, requires_grad=True)
        x = own.Receive.apply(like, 0)
        (weight * x * x).sum().backward()
        return x.detach(), like.grad
    return None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_gradient_comes_back_to_where_the_activation_came_from(four, dtype):
    (stand_in, gradient), (x, of_like), *_ = four.run(pass_a_tensor, dtype)
    assert stand_in.shape == ()
    assert torch.equal(x, torch.full((3, 2), 2, dtype=dtype))
    assert of_like is None
    # d/dx sum(w (2x)^2) = 8 w x
    assert torch.equal(gradient, 8 * torch.arange(6, dtype=dtype).view(3, 2).t())


def through_without_gradients(bounds):
    """A forward under no_grad: nothing comes back, and the next one is not disturbed."""
    layers = own.gpt_stage(TINY, bounds, dist.get_rank())
    tokens = torch.arange(5)[None]
    with torch.no_grad():
        return [own.through(layers, tokens + i, (1, 5, TINY.width)) for i in range(2)]


def test_a_forward_without_gradients_sends_none_back(four):
    model = own.gpt(TINY)
    outs = four.run(through_without_gradients, [0, 1, 2, 3, LAYERS])[-1]
    for i, out in enumerate(outs):
        assert torch.allclose(out, model(torch.arange(5)[None] + i), atol=1e-5)


# The model


@pytest.mark.parametrize("first, last", list(itertools.combinations(range(LAYERS + 1), 2)))
def test_names_and_first_weights_do_not_depend_on_the_layout(first, last):
    torch.manual_seed(first + 10 * last)  # and not on torch's own generator
    whole = own.gpt(TINY, dtype=torch.float64).state_dict()
    torch.manual_seed(0)
    part = own.gpt(TINY, first, last, dtype=torch.float64).state_dict()
    assert part
    for name, weight in part.items():
        assert torch.equal(weight, whole[name]), name
    rounded = own.gpt(TINY, first, last).state_dict()
    assert all(torch.equal(rounded[name], weight.float()) for name, weight in part.items())


def test_first_weights_depend_on_name_and_seed():
    model, other = own.gpt(TINY), own.gpt(TINY, seed=1)
    blocks = [block.mlp.up.weight for block in (model.block0, model.block1)]
    assert not torch.equal(*blocks)
    assert not torch.equal(model.head.logits.weight, other.head.logits.weight)
    assert torch.equal(own.drawn("a.weight", (3, 4)), own.drawn("a.weight", (3, 4)))


def test_a_token_sees_only_those_before_it():
    model, tokens = own.gpt(TINY, dtype=torch.float64), torch.arange(6)[None]
    changed = tokens.clone()
    changed[0, 4] = 50
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_text_and_windows():
    some = own.prose()
    assert len(some) > 100_000
    tokens = own.encode(some[:3000])
    assert own.decode(tokens.tolist()) == some[:3000]
    assert tokens.min() >= 0 and tokens.max() < own.Shape().vocabulary
    inputs, targets = own.windows(tokens, 4, 10, seed=3)
    assert inputs.shape == targets.shape == (4, 10)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert all(own.decode(row.tolist()) in some for row in inputs)
    assert not torch.equal(inputs, own.windows(tokens, 4, 10, seed=4)[0])


@pytest.mark.parametrize(
    "bounds, k",
    [
        ([0, 3], 0),  # layers without an owner
        ([1, LAYERS], 0),
        ([0, 3, 3, LAYERS], 1),  # an owner without layers
        ([0, 4, 2, LAYERS], 1),
        ([0, 2, LAYERS + 1], 1),  # more layers than there are
        ([0, 2, LAYERS], 2),  # a stage that the cut does not have
        ([0, 2, LAYERS], -1),
        ([], 0),
    ],
)
def test_what_is_no_cut_is_refused(bounds, k):
    with pytest.raises(ValueError, match="begin with 0, rise"):
        own.gpt_stage(TINY, bounds, k)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="3 heads cannot share 10 features"):
        own.gpt(own.Shape(width=10, heads=3))


# Balance


def most(costs, bounds):
    return max(sum(costs[i:j]) for i, j in itertools.pairwise(bounds))


@pytest.mark.parametrize("seed", range(40))
def test_balance_is_the_best_of_all_cuts(seed):
    draw = random.Random(seed)
    n_layers = draw.randint(1, 8)
    costs = [draw.choice([0, 1, 2, 3, 7, 20]) for _ in range(n_layers)]
    for n in range(1, n_layers + 1):
        bounds = own.balance(costs, n)
        assert bounds in cuts(n_layers, n)
        assert most(costs, bounds) == min(most(costs, other) for other in cuts(n_layers, n))


@pytest.mark.parametrize("n", [0, 4])
def test_balance_refuses_owners_without_layers(n):
    with pytest.raises(ValueError, match="one each at least"):
        own.balance([1, 2, 3], n)


def test_layers_are_timed_one_by_one():
    seconds = own.layer_seconds(own.gpt(TINY), *own.windows(text(), 3, TINY.context, 0))
    assert len(seconds) == LAYERS and min(seconds) > 0


# Generation


def sentences(many):
    """What the model writes under each of the cuts."""
    rank, found = dist.get_rank(), []
    for bounds in many:
        n = len(bounds) - 1
        group = of_the_first(n)
        if rank < n:
            layers = own.gpt_stage(TINY, bounds, rank)
            next_logits = own.next_logits_of(layers, TINY, group)
            found.append(own.generate(next_logits, "def ", 40, seed=7))
    return found


def test_the_sentence_does_not_depend_on_the_layout(four):
    model = own.gpt(TINY)

    @torch.no_grad()
    def next_logits(tokens):
        return model(tokens[:, -TINY.context :])[0, -1]

    wanted = own.generate(next_logits, "def ", 40, seed=7)
    assert wanted.startswith("def ") and len(wanted) == 44
    assert wanted != own.generate(next_logits, "def ", 40, seed=8)
    many = [[0, LAYERS], [0, 2, LAYERS], [0, 4, LAYERS], [0, 1, 2, 4, LAYERS]]
    owned = [sum(rank < len(bounds) - 1 for bounds in many) for rank in range(4)]
    assert four.run(sentences, many) == [[wanted] * number for number in owned]


def train_two_pairs(shape, bounds, steps):
    """Ranks 0 and 1 train a model in two stages, and so do ranks 2 and 3, beside them."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine, tokens = dist.get_rank() // 2, text()
    layers = own.gpt_stage(shape, bounds, dist.get_rank(pairs[mine]), seed=mine)
    optimizer, losses = optimizer_of(layers.parameters()), []
    for step in range(steps):
        batch = own.windows(tokens, 3, shape.context, step)
        losses.append(own.train_step(layers, optimizer, *batch, shape.width, pairs[mine]))
    next_logits = own.next_logits_of(layers, shape, pairs[mine])
    return losses, own.generate(next_logits, "def ", 10)


def test_stages_are_ranks_of_their_group(four):
    by_rank = four.run(train_two_pairs, TINY, [0, 2, LAYERS], 3)
    losses, sentences = zip(*by_rank)
    assert losses[0] == losses[2] == [None] * 3
    assert losses[1] != losses[3]
    assert sentences[0] == sentences[1] and sentences[2] == sentences[3] != sentences[0]
