"""Chapter 3: the script's options and lines, and what later chapters take from it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ranklab.taught.training import MLP, evaluate, rate_at, samples_of_step, split, train

SCRIPT = Path(__file__).parents[2] / "scripts" / "03_training.py"
LINE = re.compile(
    r"step (\d+) \| train_loss (\d+\.\d{4}) \| test_loss (\d+\.\d{4}) \| step time \d+\.\d\dms"
)
SMALL = ["--train-size", "700", "--dim_in", "32", "--n-classes", "4", "--dim_hidden", "16"]
PUBLISHED = {
    "n_layers": 4,
    "dim_in": 1024,
    "n_classes": 32,
    "dim_hidden": 256,
    "train_size": 10000,
    "batch_size": 64,
    "learning_rate": 0.1,
    "niters": 1000,
    "port": 29000,
}


def command(folder, *options):
    """What runs a copy of the script, so that its figures do not land in the repository."""
    copy = folder / SCRIPT.name
    copy.write_text(SCRIPT.read_text())
    return [sys.executable, "-u", str(copy), *options]


def printed_until(number, command):
    """Return the lines that are printed until so many steps were reported; end it there."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            lines.append(line.rstrip("\n"))
            if sum(bool(LINE.fullmatch(line)) for line in lines) == number:
                break
        running.kill()
    return lines


def test_the_script_takes_the_published_options_and_prints_the_published_lines(tmp_path):
    lines = printed_until(4, command(tmp_path, *SMALL, "--niters", "101"))
    changed = {"train_size": 700, "dim_in": 32, "n_classes": 4, "dim_hidden": 16, "niters": 101}
    said = re.search(r"\{.*?\}", " ".join(lines))[0]  # wrapped
    assert said == str(PUBLISHED | changed)
    steps = [int(found[1]) for found in map(LINE.fullmatch, lines) if found]
    assert steps == [0, 100, 0, 100]  # as published, then repaired


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--niter", "10"], "unrecognized arguments: --niter 10"),
        (["--batch-size", "6.5"], "invalid int value: '6.5'"),
        (["--niters", "0"], "every option must be greater than 0"),
        (["--train-size", "600"], "a tenth of train-size must be enough for one batch"),
    ],
)
@pytest.mark.everything
def test_a_mistyped_option_is_an_error(tmp_path, wrong, said):
    done = subprocess.run(command(tmp_path, *wrong), capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert said in done.stderr


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own():
    epochs = [[samples_of_step(step, 20, 5) for step in range(4 * e, 4 * e + 4)] for e in range(2)]
    orders = [torch.cat(epoch).tolist() for epoch in epochs]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert orders[0] != orders[1]
    assert torch.cat([samples_of_step(s, 20, 5, seed=1) for s in range(4)]).tolist() != orders[0]


def test_what_fills_no_batch_is_another_part_of_the_data_in_each_epoch():
    left_out = [
        frozenset(range(7)) - {*torch.cat([samples_of_step(s, 7, 3) for s in steps]).tolist()}
        for steps in ([0, 1], [2, 3], [4, 5], [6, 7])
    ]
    assert all(len(samples) == 1 for samples in left_out)
    assert len(set(left_out)) > 1


def test_a_layers_first_weights_do_not_depend_on_the_layers_before():
    one, other = MLP([6, 5, 4, 3]), MLP([60, 5, 4, 30])
    torch.randn(3)
    assert torch.equal(one.layers[1].weight, other.layers[1].weight)
    assert not torch.equal(one.layers[1].weight, MLP([6, 5, 4, 3], seed=1).layers[1].weight)


def test_a_training_repeats_bit_for_bit():
    X, y = torch.randn(60, 6), torch.arange(60) % 3
    train_set, test_set = split(X, y)
    assert [len(train_set[0]), len(test_set[0])] == [54, 6]
    assert len({*map(tuple, torch.cat([train_set[0], test_set[0]]).tolist())}) == 60

    def trained():
        model = MLP([6, 5, 3])
        how = {"niters": 9, "batch_size": 8, "learning_rate": 0.1, "report": lambda text: None}
        return train(model, train_set, test_set, **how), list(model.parameters())

    (history, weights), (again, weights_again) = trained(), trained()
    assert history == again and [step for step, *_ in history] == [0, 9]
    assert all(map(torch.equal, weights, weights_again))
    before = [weight.clone() for weight in weights]
    model = MLP([6, 5, 3])
    loss, share = evaluate(model, X, y)
    assert loss == torch.nn.functional.cross_entropy(model(X), y).item() and 0 <= share <= 1
    assert all(map(torch.equal, weights, before))


def test_the_rate_falls_from_the_first_to_three_tenths():
    assert [rate_at(step, 1000) for step in (0, 500, 1000)] == pytest.approx([0.1, 0.065, 0.03])
