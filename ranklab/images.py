"""Real images without a download: CIFAR-10 where it is, else patches of ten photographs.

The photographs come with scikit-image (two of them with scikit-learn, which is there anyway). A
patch is of the size of an image of CIFAR-10, and its class is the photograph that it is from.
"""

import os
import pickle
from importlib.util import find_spec
from pathlib import Path

import numpy as np

SIDE = 32  # pixels
CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer"]
CIFAR10_CLASSES += ["dog", "frog", "horse", "ship", "truck"]
# Of the stereo pair, one. file -> whose it is, as the package says that brings it.
OF_SKLEARN = {
    "china.jpg": "CC BY 2.0, danielbuechele",
    "flower.jpg": "CC BY 2.0, vultilion",
}
OF_SKIMAGE = {
    "astronaut.png": "public domain, NASA",
    "chelsea.png": "CC0, Stefan van der Walt",
    "coffee.png": "CC0, Rachel Michetti",
    "hubble_deep_field.jpg": "public domain, NASA",
    "ihc.png": "no known restrictions, Center for Microscopy and Molecular Imaging",
    "motorcycle_left.png": "Middlebury 2014 stereo benchmark, Scharstein et al.",
    "retina.jpg": "CC0, Mikael Häggström",
    "rocket.jpg": "public domain, SpaceX",
}


class CIFAR10Dataset:
    """Color images of 32 x 32 pixels, and the class of each: pairs (3 x 32 x 32 float32, int).

    path: the folder of CIFAR-10's files for Python (`cifar-10-batches-py`); the one that
    RANKLAB_CIFAR10 names, if left out. Where there is neither, the images are patches of
    photographs: of their left halves to train with, of their right halves (train=False) to test.

    images, labels: all of them, as bytes. classes: their names. source, license: where the images
    are from, and whose they are.
    """

    def __init__(self, path=None, train=True):
        folder = path or os.environ.get("RANKLAB_CIFAR10")
        if folder:
            self.images, self.labels = read_cifar10(Path(folder), train)
            self.classes, self.source = CIFAR10_CLASSES, "CIFAR-10 (Krizhevsky, 2009)"
            self.license = "none stated; its author asks to be cited"
            return
        found = photographs()
        self.images, self.labels = patches([image for image, _ in found.values()], train)
        self.classes = list(found)
        self.source = f"patches of {len(found)} photographs: {', '.join(found)}"
        self.license = "; ".join(f"{name}: {whose}" for name, (_, whose) in found.items())

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        """An image, its pixels from -1 to 1, and its class."""
        return self.images[index].astype(np.float32) / 127.5 - 1, int(self.labels[index])


def read_cifar10(folder, train):
    """Images (n x 3 x 32 x 32) and labels, as bytes, of CIFAR-10's published files."""
    names = [f"data_batch_{n}" for n in range(1, 6)] if train else ["test_batch"]
    batches = [read_batch(folder / name) for name in names]
    data, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return data.reshape(-1, 3, SIDE, SIDE), labels  # red, green, blue; row by row


class NumbersOnly(pickle.Unpickler):
    """Reads arrays, numbers and text: whatever else a file may ask for is not looked up."""

    def find_class(self, module, name):
        known = {"ndarray": np.ndarray, "dtype": np.dtype}
        known["_reconstruct"] = np.empty(0).__reduce__()[0]
        if module.partition(".")[0] == "numpy" and name in known:
            return known[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_batch(path):
    """data (n x 3072) and labels (n) of one file."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is not there. CIFAR-10's folder, `cifar-10-batches-py` as it is published for "
            "Python, is named by `path` or RANKLAB_CIFAR10; without them there are photographs."
        )
    try:
        with path.open("rb") as file:
            batch = NumbersOnly(file, encoding="bytes").load()
        data, labels = np.asarray(batch[b"data"]), np.array(batch[b"labels"], dtype=np.uint8)
    except Exception as error:  # bytes that are no pickle raise errors of all kinds
        raise ValueError(f"{path} is no file of CIFAR-10: {error}") from None
    if data.dtype != np.uint8 or data.shape != (len(labels), 3 * SIDE**2) or labels.max() > 9:
        raise ValueError(f"{path} is no file of CIFAR-10: it has other numbers in it.")
    return data, labels


def photographs():
    """name -> (height x width x 3, whose it is) of the photographs that are installed here."""
    from PIL import Image

    found = {}
    packages = (
        (find_spec("sklearn"), "datasets/images", OF_SKLEARN),
        (find_spec("skimage"), "data", OF_SKIMAGE),
    )
    for package, folder, files in packages:
        for file, whose in files.items() if package else ():
            path = Path(package.origin).parent / folder / file
            found[path.stem] = np.asarray(Image.open(path)), whose
    if not found:
        raise ModuleNotFoundError("Photographs come with: pip install scikit-learn scikit-image")
    return found


def patches(photos, train):
    """As many patches of each photograph (bytes, n x 3 x 32 x 32), in turn, and their labels.

    Those of the left halves overlap, as they are to be many; those of the right halves do not.
    """
    step = 8 if train else SIDE
    grids = []  # rows x columns x 3 x 32 x 32
    for photo in photos:
        middle = photo.shape[1] // 2
        half = photo[:, :middle] if train else photo[:, middle:]
        windows = np.lib.stride_tricks.sliding_window_view(half, (SIDE, SIDE), axis=(0, 1))
        grids.append(windows[::step, ::step])
    count = min(grid.shape[0] * grid.shape[1] for grid in grids)
    images = np.empty((count, len(grids), 3, SIDE, SIDE), dtype=np.uint8)
    for label, grid in enumerate(grids):
        spread = np.linspace(0, grid.shape[0] * grid.shape[1] - 1, count).astype(int)
        images[:, label] = grid[np.divmod(spread, grid.shape[1])]
    labels = np.tile(np.arange(len(grids), dtype=np.uint8), count)
    return images.reshape(-1, 3, SIDE, SIDE), labels
