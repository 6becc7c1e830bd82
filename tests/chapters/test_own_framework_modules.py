"""Chapter 13's modules and first weights beside torch's: names, states, a step of ResNet-9."""

import ast
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ranklab import framework
from ranklab.framework import initial
from ranklab.framework.grad_mode import no_grad
from ranklab.framework.torch_twin import torch_kit
from ranklab.taught import own_framework as own

IMPORTS = (ast.Import, ast.ImportFrom)


def arrays_of(module):
    """A torch module's state, without its counts of batches."""
    state = module.state_dict()
    return {name: v.numpy() for name, v in state.items() if "num_batches" not in name}


def equal(ours, torchs, tolerance=1e-12):
    assert list(ours) == list(torchs)
    for name, array in ours.items():
        np.testing.assert_allclose(array, torchs[name], rtol=tolerance, atol=tolerance)


@pytest.fixture
def batch():
    draw = np.random.default_rng(0)
    return draw.normal(size=(12, 3, 32, 32)), draw.integers(10, size=12)


def test_resnet9_is_torchs_in_a_training_step(batch):
    np.random.seed(3)  # it decides on both models
    twin, model = torch_kit().ResNet9(dtype="float64"), own.ResNet9(dtype="float64")
    model.load_state_dict(arrays_of(twin))
    assert sum(p.size for p in model.parameters()) == 431_946
    assert len(model.parameters()) == 36
    options = {"lr": 0.001, "weight_decay": 0.001}
    optimizer = own.Adam(model.parameters(), **options)
    twins = torch.optim.Adam(twin.parameters(), **options)
    loss = own.nn.SoftmaxLoss()(model(own.Tensor(batch[0])), own.Tensor(batch[1]))
    expected = nn.functional.cross_entropy(twin(torch.tensor(batch[0])), torch.tensor(batch[1]))
    assert loss.data.numpy() == pytest.approx(expected.item(), rel=1e-13)
    loss.backward()
    expected.backward()
    equal(
        {name: p.grad for name, p in model.named_parameters()},
        {name: p.grad.numpy() for name, p in twin.named_parameters()},
    )
    optimizer.step()
    twins.step()
    equal(model.state_dict(), arrays_of(twin))


def test_resnet9_is_torchs_in_evaluation(batch):
    np.random.seed(1)  # it decides on both models
    twin, model = torch_kit().ResNet9(dtype="float64"), own.ResNet9(dtype="float64")
    model.load_state_dict(arrays_of(twin))
    for _ in range(2):
        twin(torch.tensor(batch[0]))
        model(own.Tensor(batch[0]))
    equal(dict(model.named_buffers()), {n: arrays_of(twin)[n] for n, _ in model.named_buffers()})
    expected = twin.eval()(torch.tensor(batch[0][:1])).detach()
    with no_grad():
        logits = model.eval()(own.Tensor(batch[0][:1]))
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-12, atol=1e-12)
    assert model.training is False
    assert model.train().modules[0].modules[1].training is True


@pytest.mark.parametrize("shares", [(5, 3), (8, 0), (1, 7)])
def test_batch_norm_over_several_is_that_of_all(shares):
    """Ranks as threads: each has a share of the batch, and sums are added up over all."""
    draw = np.random.default_rng(2)
    x, weights = draw.normal(size=(2, 8, 3, 2, 2)) * 2 + 1
    cuts = slice(0, shares[0]), slice(shares[0], 8)

    def run(layer, part, grads):
        layer.weight.array[...] = [1, 2, 3]
        tensor = own.Tensor(x[part], requires_grad=True)
        (layer(tensor) * own.Tensor(weights[part])).sum().backward()
        grads.append((tensor.grad, layer.weight.grad, layer.running_var))

    alone, together = [], {0: [], 1: []}
    run(own.BatchNorm2d(3, dtype="float64"), slice(None), alone)
    barrier, sums = threading.Barrier(2), {}

    def rank(r):
        def synchronize(array, gradients=False):
            sums[r] = array
            barrier.wait(20)
            added = sums[0] + sums[1]
            barrier.wait(20)
            return added

        layer = own.BatchNorm2d(3, dtype="float64")
        layer.synchronize = synchronize
        run(layer, cuts[r], together[r])

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ((grad, by_weight, running),) = alone
    (first,), (second,) = together.values()
    same = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(np.concatenate([first[0], second[0]]), grad, **same)
    np.testing.assert_allclose(first[1] + second[1], by_weight, **same)
    np.testing.assert_allclose(first[2], running, **same)
    np.testing.assert_allclose(second[2], running, **same)


# Names and states


class Twice(own.Module):
    """The same layer used twice, and one more."""

    def __init__(self):
        self.first = own.Linear(3, 3)
        self.again = self.first
        self.norm = own.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.again(self.first(x)))


def test_names_have_the_order_of_the_attributes_and_shared_parameters_count_once():
    model = Twice()
    names = [name for name, _ in model.named_parameters()]
    assert names == ["first.weight", "first.bias", "norm.weight", "norm.bias"]
    assert [name for name, _ in model.named_buffers()] == ["norm.running_mean", "norm.running_var"]
    model(own.Tensor(np.ones((4, 3), np.float32))).sum().backward()
    assert model.first.weight.grad.shape == (3, 3)


def test_a_state_is_copied_into_the_arrays_that_are_there():
    model, other = Twice(), Twice()
    array = model.first.weight.array
    model.load_state_dict(other.state_dict())
    assert model.first.weight.array is array
    equal(model.state_dict(), other.state_dict(), 0)
    other.first.weight.array += 1
    assert not (array == other.first.weight.array).any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("first.bias"), "Missing key: first.bias"),
        (lambda state: state.update(more=np.ones(1)), "Unexpected key: more"),
        (lambda state: state.update({"norm.bias": np.ones(2)}), r"norm.bias: the state has \(2,\)"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_whole(change, words):
    model = Twice()
    before = {name: array.copy() for name, array in model.state_dict().items()}
    state = {name: array + 1 for name, array in before.items()}
    change(state)
    with pytest.raises(RuntimeError, match=words):
        model.load_state_dict(state)
    equal(model.state_dict(), before, 0)


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (own.BatchNorm2d(3), (4, 3), r"expected 4D input \(got 2D input\)"),
        (own.BatchNorm1d(3), (4, 3, 2, 2), r"expected 2D or 3D input \(got 4D input\)"),
    ],
)
def test_batch_norm_refuses_what_torchs_does(layer, shape, words):
    with pytest.raises(ValueError, match=words):
        layer(own.Tensor(np.ones(shape, np.float32)))


def test_batch_norm_takes_one_example_which_torchs_refuses():
    """A rank's share of a batch may be that small."""
    layer, x = own.BatchNorm1d(3), own.Tensor(np.ones((1, 3), np.float32))
    assert (layer(x).array == 0).all() and np.isfinite(layer.running_var).all()


# First weights


FILLS = ["kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_"]


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("shape", [(60, 200), (40, 10, 5, 5)])
@pytest.mark.parametrize("options", [{}, {"nonlinearity": "relu", "mode": "fan_out"}])
def test_first_weights_are_spread_as_torchs_are(fill, shape, options):
    if fill.startswith("xavier"):
        options = {"gain": initial.calculate_gain("relu")} if options else {}
    np.random.seed(0)
    torch.manual_seed(0)
    tensor = own.Tensor(np.zeros(shape), requires_grad=True)
    array = getattr(initial, fill)(tensor, **options).array
    expected = getattr(nn.init, fill)(torch.empty(shape), **options).numpy()
    assert array.std() == pytest.approx(expected.std(), rel=0.03)
    assert abs(array.mean()) < 0.03 * array.std()
    if "uniform" in fill:
        assert abs(array).max() == pytest.approx(abs(expected).max(), rel=0.01)


def test_gains_are_torchs():
    for name in ("linear", "conv2d", "sigmoid", "tanh", "relu", "leaky_relu"):
        assert initial.calculate_gain(name) == pytest.approx(nn.init.calculate_gain(name))
    assert initial.calculate_gain("leaky_relu", 0.3) == nn.init.calculate_gain("leaky_relu", 0.3)
    for wrong in (
        lambda: initial.calculate_gain("step"),
        lambda: initial.fans((3,)),
        lambda: initial.kaiming_normal_(own.Tensor(np.ones((2, 2))), mode="fan"),
    ):
        with pytest.raises(ValueError):
            wrong()


def test_a_seed_gives_the_same_model():
    models = []
    for seed in (0, 0, 1):
        np.random.seed(seed)
        models.append(own.ResNet9().state_dict())
    equal(models[0], models[1], 0)
    assert (models[0]["0.0.weight"] != models[2]["0.0.weight"]).any()


FILES = sorted(Path(framework.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_lies_under_the_chapter_knows_nothing_of_what_is_taught(file):
    """The page's code is made of these files, and not the other way around."""
    imports = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, IMPORTS)]
    assert not [one for one in imports if "taught" in ast.unparse(one)]


def test_the_framework_has_as_many_lines_as_the_chapter_says():
    parts = ["batch_norm", "grad_mode", "initial", "loading"]
    parts += ["modules", "operations", "operators", "optimizers"]
    files = [own.__file__, *(Path(framework.__path__[0], f"{part}.py") for part in parts)]
    lines = [line for file in files for line in Path(file).read_text().splitlines()]
    assert 680 < sum(bool(line.strip()) for line in lines) < 750  # "about 700"
