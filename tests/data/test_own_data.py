"""Data of one's own in the forms in which people have them: folders, tables, and Hugging Face's formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from flray.data import DataSet, load_dataset
from flray.errors import DataError, FlrayError
from flray.runs import runner

SHADES = {"birds": 30, "cats": 120, "dogs": 220}


def photograph(path: Path, shade: int, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((20, 24, 3), shade, dtype=np.uint8)
    pixels[number % 20, :, 0] = 255
    Image.fromarray(pixels).save(path)


def photographs(where: Path, count: int = 6, first: int = 0) -> None:
    """No two alike: files of the same bytes stay on one side of a split."""
    for name, shade in SHADES.items():
        for number in range(first, first + count):
            photograph(where / name / f"{number}.png", shade, number)


def hospitals(file: Path, **changes: Any) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": generator.integers(20, 90, 90),
            "pressure": generator.normal(120, 15, 90),
            "hospital": [f"H{i % 3}" for i in range(90)],
            "ill": ["yes" if i % 4 == 0 else "no" for i in range(90)],
            **changes,
        }
    )
    frame.to_csv(file, index=False) if file.suffix == ".csv" else frame.to_parquet(file)
    return frame


def federation(**data: Any) -> dict[str, Any]:
    return {
        "experiment": {
            "rounds": 2,
            "data": data,
            "model": "linear",
            "algorithm": "fedavg",
            "local": {"lr": 0.05},
            "resources": {"executor": "inline"},
            "tracking": {"uri": None},
        }
    }


def load(name: str, **options: Any) -> DataSet:
    return load_dataset(name, options, Path("cache"))


def sizes(found: DataSet) -> dict[str, tuple[int, int]]:
    return {one.name: (len(one.train_y), len(one.test_y)) for one in found.domains}


def test_a_folder_of_classes(tmp_cwd: Path) -> None:
    photographs(Path("photos"))
    found = load("folder", path="photos", size=16)
    assert found.classes == ("birds", "cats", "dogs") and sizes(found) == {"photos": (15, 3)}
    (domain,) = found.domains
    assert domain.train_x.shape[1:] == (3, 16, 16)
    for label, shade in enumerate(SHADES.values()):
        assert abs(int(np.median(domain.train_x[domain.train_y == label])) - shade) <= 1
    partition = {"partition": {"name": "iid", "clients": 3}}
    content = federation(name="folder", path="photos")
    content["experiment"] |= partition
    assert runner.run(content).history["train/loss"].notna().all()


def test_a_folder_of_domains_makes_a_client_of_each(tmp_cwd: Path) -> None:
    for writer, count in (("anna", 4), ("ben", 6)):
        photographs(Path("photos") / writer, count, first=10 - 10 * (writer == "anna"))
    found = load("folder", path="photos")
    assert sizes(found) == {"anna": (9, 3), "ben": (15, 3)}
    assert sizes(load("folder", path="photos", domains=["ben"])) == {"ben": (15, 3)}
    result = runner.run(federation(name="folder", path="photos"))
    assert "global/local/accuracy/client/anna" in result.history
    photographs(Path("photos/carl"), 4, first=16)
    again = runner.run(federation(name="folder", path="photos"))
    assert "global/local/accuracy/client/carl" in again.history, "the set before was kept"


def test_a_folder_with_a_test_part_keeps_it(tmp_cwd: Path) -> None:
    photographs(Path("photos/train"), 5)
    photographs(Path("photos/test"), 2, first=9)
    assert sizes(load("folder", path="photos")) == {"photos": (15, 6)}


def test_a_table_with_a_column_of_hospitals(tmp_cwd: Path) -> None:
    frame = hospitals(Path("patients.csv"))
    found = load("table", path="patients.csv", label="ill", by="hospital")
    assert found.classes == ("no", "yes")
    assert all(train + test == 30 for train, test in sizes(found).values())
    training = np.concatenate([domain.train_x for domain in found.domains])
    assert training.mean(0) == pytest.approx([0, 0], abs=1e-6)
    assert training.std(0) == pytest.approx([1, 1], abs=1e-6)
    raw = load(
        "table", path="patients.csv", label="ill", by="hospital", scale="none", columns=["age"]
    )
    both = np.concatenate([a for d in raw.domains for a in (d.train_x, d.test_x)])[:, 0]
    assert sorted(both.tolist()) == sorted(float(age) for age in frame["age"])
    result = runner.run(
        federation(name="table", path="patients.csv", label="ill", by="hospital", task="binary")
    )
    assert "global/local/auc/client/H2" in result.history


def test_a_table_with_a_column_of_parts(tmp_cwd: Path) -> None:
    hospitals(Path("patients.parquet"), use=["test" if i % 9 == 0 else "train" for i in range(90)])
    found = load(
        "table", path="patients.parquet", label="ill", columns=["age", "pressure"], part="use"
    )
    assert sizes(found) == {"table": (80, 10)}


def test_hugging_faces_parquet_with_a_column_of_writers(tmp_cwd: Path) -> None:
    datasets = pytest.importorskip("datasets")
    generator = np.random.default_rng(0)
    rows = [
        {
            "glyph": Image.fromarray(generator.integers(0, 255, (12, 12), dtype=np.uint8)),
            "digit": number % 2,
            "writer": f"w{number % 3}",
        }
        for number in range(36)
    ]
    features = datasets.Features(
        glyph=datasets.Image(),
        digit=datasets.ClassLabel(names=["zero", "one"]),
        writer=datasets.Value("string"),
    )
    datasets.Dataset.from_list(rows, features=features).to_parquet("set/train.parquet")
    options = {"path": "set", "image": "glyph", "label": "digit", "by": "writer", "size": 16}
    found = load("huggingface", **options)
    assert found.classes == ("one", "zero")
    assert sizes(found) == dict.fromkeys(("w0", "w1", "w2"), (10, 2))
    assert found.domains[0].train_x.shape[1:] == (3, 16, 16)
    assert runner.run(federation(name="huggingface", **options)).history["train/loss"].notna().all()
    with pytest.raises(DataError, match="no column 'image'"):
        load("huggingface", path="set")
    with pytest.raises(DataError, match="holds str in row 0, not images"):
        load("huggingface", path="set", image="writer", label="digit")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no file": ({"path": "none.csv", "label": "ill"}, "none.csv cannot be read"),
    "another form": ({"path": "patients.txt", "label": "ill"}, "neither a .csv nor a .parquet"),
    "no label": ({"label": "il"}, "no column 'il'; did you mean 'ill'"),
    "no domain": ({"by": "ward"}, "no column 'ward'"),
    "text": ({}, "'hospital' of patients.csv is no column of numbers"),
    "empty": (
        {"path": "holes.csv", "by": "hospital"},
        "'pressure' of holes.csv is empty or infinite in 1",
    ),
    "parts": ({"columns": ["age"], "part": "hospital"}, "has the part 'h0'; only train and test"),
    "no table": ({"path": "zip.parquet"}, "zip.parquet is no table"),
    "one class": (
        {"label": "same", "path": "one.csv", "by": "hospital"},
        "has 1 class; two at least",
    ),
    "lone": ({"columns": ["pressure"], "by": "age"}, "has no test samples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_table_is_said_in_one_line(tmp_cwd: Path, case: str) -> None:
    options, said = WRONG[case]
    hospitals(Path("patients.csv"))
    hospitals(Path("holes.csv"), pressure=[np.nan, *[1.0] * 89])
    hospitals(Path("one.csv"), ill=1.0, same=1)
    Path("zip.parquet").write_bytes(b"PK\x03\x04")
    Path("patients.txt").write_text("a")
    with pytest.raises(FlrayError, match=said) as caught:
        load("table", **{"path": "patients.csv", "label": "ill", **options})
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_wrong_with_a_folder_is_said_in_one_line(tmp_cwd: Path) -> None:
    with pytest.raises(DataError, match="is missing"):
        load("folder", path="none")
    photographs(Path("photos"))
    photograph(Path("photos/anna/cats/1.png"), 3, 0)
    with pytest.raises(DataError, match=r"several depths, such as anna/cats/1.png; lay them out"):
        load("folder", path="photos")
    photograph(Path("single/cats/1.png"), 3, 0)
    with pytest.raises(DataError, match="one class, cats"):
        load("folder", path="single")
