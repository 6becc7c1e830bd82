"""Chapter 13's optimizers and loader beside torch's: steps, states, the order of examples."""

import copy
import tracemalloc

import numpy as np
import pytest
import torch

from ranklab.framework.loading import RandomSampler
from ranklab.framework.torch_twin import torch_adam
from ranklab.framework.world import Wrapped
from ranklab.taught.own_framework import SGD, Adam, DataLoader, Linear, SoftmaxLoss, Tensor

OPTIMIZERS = {
    "sgd": (SGD, torch.optim.SGD, {"lr": 0.1}),
    "momentum": (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "momentum, decay": (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "adam": (Adam, torch.optim.Adam, {"lr": 0.01}),
    "adam, decay": (Adam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adam, betas": (Adam, torch.optim.Adam, {"lr": 0.01, "betas": (0.5, 0.7), "eps": 0.1}),
}
each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def gradients(steps, seed=0):
    """For each step a gradient for two parameters, of which the second has none at times."""
    draw = np.random.default_rng(seed)
    both = [(draw.normal(size=(3, 2)), draw.normal(size=4)) for _ in range(steps)]
    return [(a, b if i % 3 else None) for i, (a, b) in enumerate(both)]


def parameters():
    return [Tensor(np.full(shape, 0.5), requires_grad=True) for shape in ((3, 2), 4)]


def arrays_of(optimizer):
    states = optimizer.state_dict().values()
    entries = [entry for state in states if isinstance(state, list) for entry in state]
    return [entry for entry in entries if isinstance(entry, np.ndarray)]


def follow(optimizer, steps):
    for grads in steps:
        for p, grad in zip(optimizer.params, grads):
            p.grad = grad
        optimizer.step()
    return [p.array.copy() for p in optimizer.params]


@each_optimizer
def test_20_steps_are_torchs(name):
    ours, torchs, options = OPTIMIZERS[name]
    optimizer = ours(parameters(), **options)
    twins = [torch.tensor(p.array.copy(), requires_grad=True) for p in optimizer.params]
    twin = torchs(twins, **options)
    arrays = [p.array for p in optimizer.params]
    for step, grads in enumerate(gradients(20)):
        optimizer.lr = twin.param_groups[0]["lr"] = options["lr"] / (1 + step)
        for p, grad in zip(twins, grads):
            p.grad = None if grad is None else torch.tensor(grad)
        before = [None if grad is None else grad.copy() for grad in grads]
        follow(optimizer, [grads])
        twin.step()
        assert all(a is None or (a == b).all() for a, b in zip(before, grads))
    for p, q, array in zip(optimizer.params, twins, arrays):
        assert p.array is array  # in place
        np.testing.assert_allclose(p.array, q.detach(), rtol=1e-12, atol=1e-12)


def test_the_twins_adam_is_torchs():
    """Chapter 13 compares itself with torch's function, not with torch's class."""
    one, other = ([torch.full((3, 2), 0.5, requires_grad=True)] for _ in range(2))
    twin = torch_adam(one, weight_decay=0.1)
    theirs = torch.optim.Adam(other, weight_decay=0.1)
    for step in range(5):
        for (p,), optimizer in ((one, twin), (other, theirs)):
            optimizer.zero_grad()
            ((p - step) ** 3).sum().backward()
            optimizer.step()
    assert torch.equal(one[0], other[0])


@each_optimizer
def test_resumed_is_uninterrupted_to_the_bit(name):
    kind, _, options = OPTIMIZERS[name]
    whole = follow(kind(parameters(), **options), gradients(7))
    first = kind(parameters(), **options)
    follow(first, gradients(7)[:4])
    saved = copy.deepcopy(first.state_dict())
    second = kind([Tensor(p.array.copy(), requires_grad=True) for p in first.params], lr=5)
    kept = [id(array) for array in arrays_of(second)]
    second.load_state_dict(saved)
    assert [id(array) for array in arrays_of(second)] == kept  # in place: others may hold them
    follow(first, gradients(3, seed=1))  # goes on with arrays of its own
    assert all((a == b).all() for a, b in zip(whole, follow(second, gradients(7)[4:])))
    assert second.state_dict()["lr"] == options["lr"]


def test_the_type_of_a_parameter_is_kept_and_memory_does_not_grow():
    p = Tensor(np.ones(300_000, np.float32), requires_grad=True)
    for optimizer in (Adam([p], weight_decay=0.1), SGD([p], lr=0.1, momentum=0.9)):
        p.grad = np.ones(300_000, np.float32)
        optimizer.step()
        tracemalloc.start()
        for _ in range(5):
            optimizer.step()
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert grown < 10_000
        assert {array.dtype for array in [p.array, *arrays_of(optimizer)]} == {np.dtype(np.float32)}
        optimizer.reset_grad()
        assert p.grad is None


ADAM = Adam(parameters())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SGD([], lr=0.1), "empty parameter list"),
        (lambda: Adam(parameters(), lr=-1), "Invalid lr value: -1"),
        (lambda: Adam(parameters(), betas=(0.9, -0.1)), "Invalid betas value"),
        (
            lambda: SGD(parameters()).load_state_dict(Adam(parameters()).state_dict()),
            "another kind",
        ),
        (
            lambda: Adam(parameters()).load_state_dict(Adam(parameters()[:1]).state_dict()),
            "or model",
        ),
    ],
)
def test_what_cannot_be_optimized_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# Data


class Squares:
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return np.full((2, 3), i), i * i


def test_batches_have_every_example_and_the_last_is_smaller():
    loader = DataLoader(Squares(), batch_size=4)
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    assert [X.shape for X, _ in batches] == [(4, 2, 3), (4, 2, 3), (2, 2, 3)]
    assert {X.dtype for X, _ in batches} == {np.dtype("float32")}
    assert np.concatenate([y.numpy() for _, y in batches]).tolist() == [i * i for i in range(10)]
    assert all((X.numpy()[:, 1, 2] ** 2 == y.numpy()).all() for X, y in batches)


def test_every_epoch_is_shuffled_anew_and_the_same_for_a_seed():
    def epochs(seed):
        loader = DataLoader(Squares(), batch_size=10, shuffle=True, seed=seed)
        return [next(iter(loader))[1].numpy().tolist() for _ in range(3)]

    first = epochs(0)
    assert epochs(0) == first != epochs(1)
    assert len({tuple(epoch) for epoch in first}) == 3
    assert all(sorted(epoch) == [i * i for i in range(10)] for epoch in first)
    resumed = RandomSampler(10, seed=0)
    resumed.epoch = 2
    assert [i * i for i in resumed] == first[2]


def test_a_sampler_says_which_examples_come():
    loader = DataLoader(Squares(), batch_size=2, sampler=[7, 3, 3], dtype="float64")
    assert [y.numpy().tolist() for _, y in loader] == [[49, 9], [9]]
    assert len(loader) == 2
    assert next(iter(loader))[0].dtype == np.float64


def test_what_torchs_loader_refuses_is_refused():
    for options in ({"batch_size": 0}, {"shuffle": True, "sampler": [1]}):
        with pytest.raises(ValueError):
            DataLoader(Squares(), **options)


def test_a_training_learns():
    np.random.seed(0)
    draw = np.random.default_rng(0)
    X = draw.normal(size=(64, 5)).astype("float32")
    y = (X[:, 0] > X[:, 1]).astype(int)
    model, losses = Linear(5, 2), []
    optimizer = SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(30):
        optimizer.reset_grad()
        loss = SoftmaxLoss()(model(Tensor(X)), Tensor(y))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < 0.5 < losses[0]


class Counting(Wrapped):
    """A wrapper that another one than the chapter might write."""

    def __init__(self, opt):
        self.opt, self.steps = opt, 0


@each_optimizer
def test_a_wrapper_keeps_what_is_its_own_and_hands_on_what_the_optimizer_has(name):
    kind, _, numbers = OPTIMIZERS[name]
    inner = kind([Tensor(np.ones(2), requires_grad=True)], **numbers)
    before = set(inner.state_dict())
    wrapper = Counting(inner)
    wrapper.steps += 3
    wrapper.lr = 0.5  # as a scheduler does
    assert inner.lr == wrapper.lr == 0.5 and wrapper.steps == 3
    assert set(wrapper.state_dict()) == set(inner.state_dict()) == before
    assert not hasattr(wrapper, "nobodys") and copy.copy(wrapper).steps == 3
