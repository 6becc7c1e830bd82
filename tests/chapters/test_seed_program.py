"""The program of the document that chapter 13 grew out of: it never ran there, and runs here.

seed/train_script.txt has it as it was written. Changed are its imports and its data's path alone.
"""

import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from launch import BLOCK
from tiers import few
from under_mpi import mpiexec, needs_mpi

from bookmaker.folders import HERE

SEED = Path(__file__).with_name("seed") / "train_script.txt"
IMPORTS = """\
import time
import numpy as np
from ranklab.taught import mpi_ddp as ddp
from ranklab.taught import own_framework as ndl
from ranklab.taught.own_framework import ResNet9
"""
IMAGES = 5 * 60


def program(path):
    """The text of the seed's program, which reads its images there."""
    text = SEED.read_text()
    imports = text.partition("\nif __name__")[0]
    assert imports.count("import ") == 9 and text.count('"data/cifar-10-batches-py"') == 1
    return text.replace(imports, IMPORTS).replace('"data/cifar-10-batches-py"', repr(path))


@pytest.fixture
def few_images(tmp_path):
    """A folder like CIFAR-10's, of noise: small, and of no size that ranks could share evenly."""
    draw, folder = np.random.default_rng(0), tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        data = draw.integers(0, 256, (IMAGES // 5, 3072), dtype=np.uint8)
        batch = {b"data": data, b"labels": draw.integers(0, 10, IMAGES // 5).tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=3))
    return str(folder)


@needs_mpi
@pytest.mark.parametrize(
    "framework", few(["numpy", "torch"], lambda framework: framework == "numpy")
)
def test_what_became_of_it_stands_alone(framework, few_images, tmp_path):
    """The book's program has its lines, of all ranks' images, and runs where ranklab is not."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    script = shutil.copy(HERE.root / "scripts" / "13_train_resnet.py", tmp_path)
    options = ["--epochs", "1", "--data", few_images, "--framework", framework]
    done = mpiexec(2, script, *options, PYTHONPATH=str(tmp_path), PYTHONUNBUFFERED="")
    assert done.returncode == 0, done.stdout
    parts = [int(n) for n in re.findall(r"^partitioned dataset length: (\d+)$", done.stdout, re.M)]
    assert len(parts) == 2 and sum(parts) == IMAGES
    (said,) = re.findall(r"^acc: (.*); avg_loss: (.*)$", done.stdout, re.M)
    assert (128 * float(said[0])).is_integer() and 2 < float(said[1]) < 4
    for line, times in (
        (f"original dataset length: {IMAGES}", 2),
        ("epoch: 1/1", 1),
        (r"Training Time: \d+\.\d+", 1),
        (r"test accuracy: 0\.\d+ .*\(Krizhevsky, 2009\).*", 1),
        ("none stated; its author asks to be cited", 1),
    ):
        assert len(re.findall(f"^{line}$", done.stdout, re.M)) == times, line


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "of"), few([(3, "noise"), (2, "photographs")], lambda ranks, of: of == "noise")
)
def test_it_runs_and_prints_its_lines(ranks, of, few_images, tmp_path):
    """On 3 ranks no image is lost, and rank 0 alone says how it goes."""
    script = tmp_path / "train_script.py"
    script.write_text(program(few_images if of == "noise" else None))
    # Unbuffered, Python would write a line and its end apart, and lines of several ranks would mix.
    done = mpiexec(ranks, script, PYTHONPATH=str(HERE.root), PYTHONUNBUFFERED="")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    whole = [int(n) for n in re.findall(r"^orignal dataset length: (\d+)$", done.stdout, re.M)]
    parts = [int(n) for n in re.findall(r"^partitioned dataset length: (\d+)$", done.stdout, re.M)]
    assert len(whole) == len(parts) == ranks
    assert len(set(whole)) == 1 and sum(parts) == whole[0] >= IMAGES
    assert lines.count("epoch: 1/1") == 1
    (said,) = re.findall(r"^acc: (.*); avg_loss: (.*)$", done.stdout, re.M)
    assert 0 <= float(said[0]) <= 1 and 2 < float(said[1]) < 4  # before anything is learnt: ln 10
    (seconds,) = re.findall(r"^Training Time: (.*)$", done.stdout, re.M)
    assert 0 < float(seconds) < 100 and len(lines) == 2 * ranks + 3
