"""CIFAR-10 stored as JPEG in one .npz file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from flray.data.arrays import Arrays
from flray.data.datasets.cifar import CIFAR10, one_domain
from flray.data.datasets.embedded import SampleCap, Seed
from flray.data.sources.archives import Files, check_labels, expect, whole_numbers
from flray.data.types import DataSet
from flray.errors import DataError
from flray.files.border import read_npz
from flray.registry import register_dataset


@register_dataset("cifar10-jpeg")
def cifar10_jpeg(
    root: Path,
    *,
    seed: Seed = 0,
    samples: SampleCap = None,
    path: Annotated[
        str, Field(description="the .npz file with jpeg, offset, label, is_test and classes")
    ],
) -> DataSet:
    """Return all of CIFAR-10 after lossy compression, 3x32x32: results on it are not results on CIFAR-10."""
    file = Path(path).expanduser()
    arrays = Files("cifar10-jpeg", [[file.name]], _decode_jpeg, "who made the file").load(
        root, str(file.parent)
    )
    return one_domain("cifar10-jpeg", arrays, CIFAR10, seed, samples)


def _decode_jpeg(folder: Path, names: Sequence[str]) -> Arrays:
    from PIL import Image

    path = folder / names[0]
    wanted = ("jpeg", "offset", "label", "is_test", "classes")
    stored = {name: array for name, array in read_npz(path).items() if name in wanted}
    missing = [name for name in wanted if name not in stored]
    expect(path, not missing, f"no {', '.join(missing)}", ", ".join(wanted))
    jpeg, offset, labels = (
        stored["jpeg"].tobytes(),
        stored["offset"],
        whole_numbers(path, stored["label"]),
    )
    test, names_ = stored["is_test"].astype(bool), [str(name) for name in stored["classes"]]
    expect(path, labels.ndim == 1, f"labels of shape {list(labels.shape)}", "[n]")
    expect(
        path,
        sorted(names_) == sorted(CIFAR10),
        f"the classes {', '.join(names_)}",
        ", ".join(CIFAR10),
    )
    check_labels(path, labels, 10)
    expect(
        path,
        len(offset) == len(labels) + 1
        and len(test) == len(labels)
        and (np.diff(offset) > 0).all()
        and offset[0] >= 0
        and offset[-1] <= len(jpeg),
        f"{len(offset)} offsets and {len(test)} entries of is_test for {len(labels)} labels and "
        f"{len(jpeg)} bytes",
        "one rising offset more than labels, within the bytes, and as many entries of is_test",
    )
    labels = np.array([CIFAR10.index(name) for name in names_])[labels]
    x = np.empty((len(labels), 3, 32, 32), dtype=np.uint8)
    for row, (start, end) in enumerate(pairwise(offset.tolist())):
        try:
            with Image.open(io.BytesIO(jpeg[start:end]), formats=("JPEG", "PNG", "WEBP")) as image:
                expect(
                    path,
                    image.size == (32, 32),
                    f"image {row} of {list(image.size)}",
                    "32 by 32 pixels",
                )
                pixels = np.asarray(image.convert("RGB"))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(
                f"{path}: image {row} cannot be decoded ({error}); fetch the file again"
            ) from None
        x[row] = pixels.transpose(2, 0, 1)
    return {
        "train_x": x[~test],
        "train_y": labels[~test],
        "test_x": x[test],
        "test_y": labels[test],
    }
