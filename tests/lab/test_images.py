"""Real images without a download: CIFAR-10's files, and patches of photographs."""

import io
import os
import pickle
import re
import struct
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ranklab import images
from ranklab.images import CIFAR10Dataset

SHIPPED = Path(find_spec("foolbox").origin).parent / "data"  # the test set's first 20 images


class OfPython2(pickle._Pickler):
    """Writes as Python 2 did, and so as CIFAR-10's files are: text is bytes."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_bytes(self, value):
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    def save_str(self, value):
        self.save_bytes(value.encode())

    dispatch[bytes], dispatch[str] = save_bytes, save_str


def shipped():
    """Name -> (32 x 32 x 3, label) of the images that foolbox has, as PNG files."""
    found = sorted(SHIPPED.glob("cifar10_*.png"))
    return [(np.asarray(Image.open(path)), int(path.stem.rpartition("_")[2])) for path in found]


def published(pairs, **more):
    """A batch as its authors describe it: of an image 1024 red values, by rows; then green, blue.

    As bytes: those of Python 2, and of the NumPy of that time.
    """
    data = np.empty((len(pairs), 3072), dtype=np.uint8)
    for n, (image, _) in enumerate(pairs):
        for row, column, color in np.ndindex(32, 32, 3):
            data[n, 1024 * color + 32 * row + column] = image[row, column, color]
    batch = {"batch_label": "one", "data": data, "labels": [label for _, label in pairs]}
    with io.BytesIO() as file:
        OfPython2(file, protocol=2).dump(batch | more)
        return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.fixture
def folder(tmp_path):
    """A folder like the published one: four real images a file, for the test set as well."""
    pairs = shipped()
    for n in range(5):
        (tmp_path / f"data_batch_{n + 1}").write_bytes(published(pairs[4 * n : 4 * n + 4]))
    (tmp_path / "test_batch").write_bytes(published(pairs[:4]))
    return tmp_path


def test_cifar10_is_read_as_it_is_published(folder, monkeypatch):
    pairs = shipped()
    labels = [label for _, label in pairs]
    assert len(pairs) == 20 and b"numpy.core.multiarray" in (folder / "test_batch").read_bytes()
    dataset = CIFAR10Dataset(folder)
    assert len(dataset) == 20 and [label for _, label in dataset] == labels
    for (image, _), (png, _) in zip(dataset, pairs, strict=True):
        assert image.dtype == np.float32 and image.shape == (3, 32, 32)
        np.testing.assert_allclose(image.transpose(1, 2, 0), png / 127.5 - 1, atol=1e-6)
    assert dataset.classes[labels[0]] == "cat" and "CIFAR-10" in dataset.source
    monkeypatch.setenv("RANKLAB_CIFAR10", str(folder))
    assert [label for _, label in CIFAR10Dataset(train=False)] == labels[:4]


class Bad:
    def __reduce__(self):
        return os.mkdir, ("made",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"data": Bad()}, 2), "it asks for posix.mkdir"),
        (b"no pickle", "is no file of CIFAR-10"),
        (pickle.dumps({b"labels": [1]}), "is no file of CIFAR-10: b'data'"),
    ],
    ids=["a command", "no pickle", "no images"],
)
def test_files_of_another_kind_are_refused(folder, monkeypatch, content, words):
    """And what they ask for is not done."""
    monkeypatch.chdir(folder)
    (folder / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(words)):
        CIFAR10Dataset(folder, train=False)
    assert not Path("made").exists()


@pytest.mark.parametrize("change", [{"labels": [1, 2]}, {"labels": [10] * 4}])
def test_other_numbers_are_refused(folder, change):
    (folder / "test_batch").write_bytes(published(shipped()[:4], **change))
    with pytest.raises(ValueError, match="other numbers"):
        CIFAR10Dataset(folder, train=False)


def test_a_folder_without_files_is_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data_batch_1 is not there\. .*RANKLAB_CIFAR10"):
        CIFAR10Dataset(tmp_path)


@pytest.mark.parametrize(("train", "step"), [(True, 8), (False, 32)])
def test_patches_are_of_one_half_of_each_photograph(train, step):
    """Each patch is found in its half of its photograph, and all classes are as many."""
    dataset, photos = CIFAR10Dataset(train=train), images.photographs()
    assert len(photos) == len(dataset.classes) == 10 and list(photos) == dataset.classes
    counts = np.bincount(dataset.labels)
    assert counts.min() == counts.max() == len(dataset) // 10 == {8: 850, 32: 63}[step]
    assert list(dataset.labels[:10]) == list(range(10))  # any part of the set has all classes
    for index in (3, len(dataset) - 7):  # of the smallest photograph, whose patches are all there
        patch, label = dataset.images[index], dataset.labels[index]
        photo = photos[dataset.classes[label]][0]
        middle = photo.shape[1] // 2
        half = photo[:, :middle] if train else photo[:, middle:]
        rows, columns = (range(0, size - 31, step) for size in half.shape[:2])
        found = [half[r : r + 32, c : c + 32].transpose(2, 0, 1) for r in rows for c in columns]
        assert (patch == found[index // 10]).all()
    assert len({image.tobytes() for image in dataset.images}) > 0.9 * len(dataset)


def test_without_scikit_image_there_are_two_photographs(monkeypatch):
    monkeypatch.setattr(
        images, "find_spec", lambda name: find_spec(name) if name != "skimage" else None
    )
    dataset = CIFAR10Dataset(train=False)
    assert dataset.classes == ["china", "flower"] and list(np.bincount(dataset.labels)) == [
        130,
        130,
    ]
    assert dataset.source == "patches of 2 photographs: china, flower"
    assert dataset.license.startswith("china: CC BY 2.0, ")
    monkeypatch.setattr(images, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn scikit-image"):
        CIFAR10Dataset()
