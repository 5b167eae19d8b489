"""Memory for a part of a Hugging Face set: the same few samples of a folder and of one that is larger.

A folder has parquet files of one row group each. Loading takes place in a process of its own, whose largest
resident memory is compared. Exits with 1 if the larger folder takes more.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image
from runner import MIB, begin, option, returned, show

from flray.data import load_dataset
from flray.devices import peak_bytes

LIMIT = 1.15


@dataclass
class Options:
    rows: int = option(2000, "images of a file")
    kilobytes: int = option(40, "of an image")
    files: int = option(2, "of the smaller folder; the larger one has eight times as many")
    samples: int = 200


def write(folder: Path, options: Options, files: int) -> int:
    """Images of a few pixels whose files are as large as asked for: what is held counts, not what is decoded."""
    import datasets

    generator = np.random.default_rng(0)
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    for number in range(files + 1):
        images = []
        for _ in range(options.rows if number else 20):
            file = BytesIO()
            Image.fromarray(generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(file, "PNG")
            filler = os.urandom(max(0, 1000 * options.kilobytes - file.tell()))
            images.append({"bytes": file.getvalue() + filler, "path": None})
        held = datasets.Dataset.from_dict(
            {"image": images, "label": [row % 2 for row in range(len(images))]}, features
        )
        name = f"train-{number:05d}" if number else "test"
        held.to_parquet(folder / f"{name}.parquet", batch_size=len(images))
    return sum(file.stat().st_size for file in folder.iterdir())


def load(folder: str, samples: int, cache: str) -> tuple[int, float]:
    """Load a part of the set; return the largest resident memory of this process, and the seconds."""
    import datasets
    import pyarrow.dataset
    import pyarrow.parquet

    assert datasets and pyarrow
    started = time.perf_counter()
    given = {"path": folder, "samples": samples, "splits": ["train", "test"]}
    load_dataset("huggingface", given, Path(cache))
    return peak_bytes(), time.perf_counter() - started


def main(options: Options) -> bool:
    rows: list[tuple[object, ...]] = []
    peaks: list[float] = []
    for files in (options.files, 8 * options.files):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place, "set")
            folder.mkdir()
            size = write(folder, options, files)
            cache = Path(place, "cache")
            given = (str(folder), options.samples, str(cache))
            peak, seconds = returned(begin("streams", "load", *given))
            peaks.append(peak)
            cached = sum(one.stat().st_size for one in cache.rglob("*") if one.is_file())
        rows.append((files * options.rows, size / MIB, peak / MIB, cached / MIB, seconds))
    ratio = peaks[1] / peaks[0]
    show(
        f"{options.samples} training samples of a folder of parquet files; ratio of memory {ratio:.2f}",
        "images | files, MiB :.0f | largest memory, MiB :.0f | data cache, MiB :.1f | seconds :.1f",
        rows,
    )
    if ratio > LIMIT:
        print(f"the ratio is above {LIMIT}")
    return ratio <= LIMIT
