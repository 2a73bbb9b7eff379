"""Pictures with labels: scikit-learn's handwritten digits, or a folder with one sub-folder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.nn import functional

from memfit.core.errors import UsageError
from memfit.recipes.sampling import Batch, Examples

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def pictures(data: str | None, image: int, classes: int) -> Examples:
    """The digits, or the folder `data`. Raises UsageError if its classes are more than `classes`."""
    found = Digits(image) if data is None else ImageFolder(Path(str(data)), image)
    if found.classes > classes:
        raise UsageError(f"the data has {found.classes} classes and the model {classes}",
                         f"--set classes={found.classes}")
    return found


class Digits:
    """1,797 handwritten digits of 8 x 8 pixels, resized when asked for; labels 0 to 9."""

    classes = 10

    def __init__(self, image: int) -> None:
        pixels, labels = load_digits(return_X_y=True)
        self._image = image
        self._pixels = torch.from_numpy(pixels.astype(np.uint8).reshape(-1, 1, 8, 8))  # values 0 to 16
        self._labels = torch.from_numpy(labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: np.ndarray, draws: np.random.Generator) -> Batch:
        """pixel_values float32 [n, 3, image, image] from -1 to 1, labels int64 [n]."""
        chosen = torch.from_numpy(indices)
        grey = self._pixels[chosen].float().div_(8).sub_(1)
        sized = functional.interpolate(grey, size=(self._image, self._image), mode="bilinear", align_corners=False)
        return {"pixel_values": sized.expand(-1, 3, -1, -1).contiguous(), "labels": self._labels[chosen]}


class ImageFolder:
    """`folder/class/picture.png`, read and resized when asked for; classes in the order of their names."""

    def __init__(self, folder: Path, image: int) -> None:
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}", "give data=FOLDER with one sub-folder for each class")
        names = sorted(inner.name for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))
        self._image = image
        self._files = [(path, label) for label, name in enumerate(names)
                       for path in sorted((folder / name).rglob("*")) if path.suffix.lower() in SUFFIXES]
        self.classes = len(names)
        if not self._files:
            raise UsageError(f"{folder} has no pictures in sub-folders",
                             "give data=FOLDER with one sub-folder for each class")

    def __len__(self) -> int:
        return len(self._files)

    def batch(self, indices: np.ndarray, draws: np.random.Generator) -> Batch:
        """pixel_values float32 [n, 3, image, image] from -1 to 1, labels int64 [n]. UsageError: a bad file."""
        pixels = torch.empty(len(indices), 3, self._image, self._image)
        for place, index in enumerate(indices):
            pixels[place] = self._picture(self._files[index][0])
        return {"pixel_values": pixels, "labels": torch.tensor([self._files[index][1] for index in indices])}

    def _picture(self, path: Path) -> torch.Tensor:
        try:
            with Image.open(path) as opened:
                sized = opened.convert("RGB").resize((self._image, self._image), Image.Resampling.BILINEAR)
        except OSError as error:
            raise UsageError(f"{path} cannot be read as a picture: {error}", "remove it or replace it") from error
        return torch.from_numpy(np.array(sized)).permute(2, 0, 1).float().div_(127.5).sub_(1)
