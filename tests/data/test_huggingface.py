"""Sets in Hugging Face's formats are read row by row: a part is the same samples, and the rest is never held."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from flray.data import DataSet, load_dataset
from flray.data.datasets import embedded
from flray.data.datasets.own import Labelling
from flray.data.sources.images import decode as of_one
from flray.data.types import backing_file
from tests.messages import refused

datasets = pytest.importorskip("datasets")
OPTIONS: dict[str, Any] = {"by": "writer", "size": 8, "seed": 3}


def load(path: str = "set", **options: Any) -> DataSet:
    return load_dataset("huggingface", {"path": path, **OPTIONS, **options}, Path("cache"))


def png(number: int, filler: int = 0) -> bytes:
    file, pixels = io.BytesIO(), np.random.default_rng(number).integers(0, 255, (8, 8, 3))
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue() + np.random.default_rng(number).bytes(filler)


def rows(first: int, last: int, filler: int = 0) -> Any:
    names, writer = datasets.ClassLabel(names=["cat", "dog", "eel"]), datasets.Value("string")
    features = datasets.Features(image=datasets.Image(), label=names, writer=writer)
    columns = {
        "image": [{"bytes": png(n, filler), "path": None} for n in range(first, last)],
        "label": [n % 3 for n in range(first, last)],
        "writer": [f"w{n % 2}" for n in range(first, last)],
    }
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.fixture
def shards(tmp_cwd: Path) -> list[str]:
    """Three files of several groups of rows, and one of another split."""
    files = [f"set/train-0000{number}-of-00003.parquet" for number in range(3)]
    for number, file in enumerate(files):
        rows(20 * number, 20 * number + 20).to_parquet(file, batch_size=7)
    rows(60, 72).to_parquet("set/test-00000-of-00001.parquet")
    return files


def test_a_part_is_the_samples_of_the_whole_in_each_format(shards: list[str]) -> None:
    whole, train = load(), rows(0, 60)
    datasets.DatasetDict(train=train, test=rows(60, 72)).save_to_disk("saved")
    train.to_parquet("single/train.parquet")
    rows(60, 72).to_parquet("single/test.parquet")
    for path in ("set", "saved", "single"):
        part = load(path, samples=4)
        assert load(path).fingerprint == whole.fingerprint
        for found, domain in zip(part.domains, whole.domains, strict=True):
            wanted = embedded.cap_samples(domain, 4, OPTIONS["seed"])
            for name in ("train_x", "train_y", "test_x", "test_y"):
                assert np.array_equal(getattr(found, name), getattr(wanted, name))
    (domain, _) = whole.domains
    drawn = np.asarray(Image.open(io.BytesIO(png(0)))).transpose(2, 0, 1)
    assert np.array_equal(domain.train_x[0], drawn)


def test_only_chosen_images_are_decoded(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []

    def decode(content: bytes, where: str, size: int) -> Any:
        decoded.append(where)
        return of_one(content, where, size)

    monkeypatch.setattr("flray.data.sources.images.decode", decode)
    first = load(samples=4, mapped=True)
    assert len(decoded) == 2 * 4 + 12
    lying = np.moveaxis(first.domains[0].train_x, 1, -1).base
    assert "cache/huggingface/images" in str(backing_file(lying))
    assert load(samples=4, mapped=False).fingerprint == first.fingerprint
    assert len(decoded) == 20
    rows(100, 120).to_parquet(shards[1], batch_size=7)
    assert load(samples=4).fingerprint != first.fingerprint
    assert len(decoded) == 40


def test_a_group_of_rows_that_is_all_of_a_file_is_not_held(tmp_cwd: Path) -> None:
    """48 MB of images, of which a few rows at a time are in Arrow's memory."""
    held = rows(0, 400, filler=120_000)
    held.to_parquet("set/train.parquet", batch_size=400)
    rows(60, 72).to_parquet("set/test.parquet")
    assert parquet.ParquetFile("set/train.parquet").num_row_groups == 1
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        load(samples=4)
    finally:
        pa.set_memory_pool(before)
    most = pool.max_memory()
    assert most is not None and most < 12e6


def column(file: str, name: str, values: Any) -> None:
    """Write a file of the set anew with other values in a column."""
    table = parquet.read_table(file)
    place = table.column_names.index(name)
    parquet.write_table(table.set_column(place, name, pa.array(values)), file)


def cut(file: str, share: float = 0.5) -> None:
    content = Path(file).read_bytes()
    Path(file).write_bytes(content[: int(share * len(content))])


def saved(split: Any) -> None:
    shutil.rmtree("set")
    split.save_to_disk("set")
    (arrow,) = json.loads(Path("set/state.json").read_text())["_data_files"]
    cut(f"set/{arrow['filename']}")


def without(file: str, name: str) -> None:
    parquet.write_table(parquet.read_table(file).drop_columns([name]), file)


IMAGES = [{"bytes": png(n), "path": None} for n in range(19)]
COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "texts in one shard": ("label", ["a text"] * 20),
    "lists in one shard": ("label", [[0, 1]] * 20),
    "no class": ("label", [0] * 11 + [-1] + [0] * 8),
    "a class too many": ("label", [3] * 20),
    "no image": ("image", [*IMAGES, None]),
    "bytes that are no image": ("image", [*IMAGES, {"bytes": b"GIF8", "path": None}]),
    "a file elsewhere": ("image", [*IMAGES, {"bytes": None, "path": "secret.png"}]),
}
FILES: dict[str, Callable[[list[str]], None]] = {
    "a shard ends early": lambda shards: cut(shards[1]),
    "a shard is no parquet": lambda shards: cut(shards[2], 0),
    "nothing": lambda shards: column(shards[2], "writer", [None, *["w0"] * 19]),
    "no column": lambda shards: without(shards[1], "writer"),
    "a saved set ends early": lambda shards: saved(rows(0, 60)),
}


@pytest.mark.parametrize("how", [*COLUMNS, *FILES])
def test_what_is_wrong_with_a_set_is_said_in_one_line(
    shards: list[str], how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("secret.png").write_bytes(png(0))
    if how in COLUMNS:
        column(shards[1], *COLUMNS[how])
    else:
        FILES[how](shards)
    capfd.readouterr()
    refused(load, "set")
    assert "Traceback" not in (said := capfd.readouterr().err) and "Error" not in said


def test_a_set_that_changes_is_refused(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Labelling.cut

    def after_labels(*arguments: Any) -> Any:
        rows(40, 45).to_parquet(shards[2])
        return whole(*arguments)

    monkeypatch.setattr(Labelling, "cut", after_labels)
    refused(load, "set")
