"""Data of one's own in the forms in which people have them: folders, tables, and Hugging Face's formats."""

import contextlib
import hashlib
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from PIL import Image
from pyarrow import parquet

from flray.cli import display
from flray.cli.main import invoke
from flray.data import DataSet, load_dataset
from flray.runs import runner
from flray.runs.export import export
from tests.helpers import cases, small
from tests.messages import refused

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


def write(file: Path, frame: pd.DataFrame) -> pd.DataFrame:
    frame.to_csv(file, index=False) if file.suffix == ".csv" else frame.to_parquet(file)
    return frame


def places(rows: int) -> dict[str, Any]:
    """Return two columns of words: each row's hospital, and whether its patient is ill."""
    ill = ["yes" if i % 4 == 0 else "no" for i in range(rows)]
    return {"hospital": [f"H{i % 3}" for i in range(rows)], "ill": ill}


def hospitals(file: Path, **changes: Any) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    columns = {"age": generator.integers(20, 90, 90), "pressure": generator.normal(120, 15, 90)}
    return write(file, pd.DataFrame({**columns, **places(90), **changes}))


def ward(file: Path, **changes: Any) -> pd.DataFrame:
    """Patients as hospitals have them: numbers of theirs, words, dates, gaps."""
    rows = range(120)
    columns = {
        "patient": [1000 + i for i in rows],
        "remark": [f"remark {i}" for i in rows],
        "sex": [("f", "m", None)[i % 5 % 3] for i in rows],
        "seen": pd.to_datetime("2024-02-28") + pd.to_timedelta([i % 7 for i in rows], "D"),
        "weight": [np.nan if i % 4 == 1 else 60.0 + i % 13 for i in rows],
        "never": np.nan,
        "large": [1e39 if i == 3 else i % 11 for i in rows],
    }
    return write(file, pd.DataFrame({**columns, **places(120), **changes}))


def load(name: str, **options: Any) -> DataSet:
    return load_dataset(name, options, Path("cache"))


def sizes(found: DataSet) -> dict[str, tuple[int, int]]:
    return {one.name: (len(one.train_y), len(one.test_y)) for one in found.domains}


def trained(found: DataSet) -> Any:
    return np.concatenate([domain.train_x for domain in found.domains])


def test_a_folder_of_classes(tmp_cwd: Path) -> None:
    photographs(Path("photos"))
    found = load("folder", path="photos", size=16)
    assert found.classes == ("birds", "cats", "dogs") and sizes(found) == {"photos": (15, 3)}
    (domain,) = found.domains
    assert domain.train_x.shape[1:] == (3, 16, 16)
    for label, shade in enumerate(SHADES.values()):
        assert abs(int(np.median(domain.train_x[domain.train_y == label])) - shade) <= 1
    Path("photos").rename("whole")
    photographs(Path("photos/train"), 5)
    photographs(Path("photos/test"), 2, first=9)
    assert sizes(load("folder", path="photos")) == {"photos": (15, 6)}, "its test part is kept"


def test_a_folder_of_domains_makes_a_client_of_each(tmp_cwd: Path) -> None:
    for writer, count in (("anna", 4), ("ben", 6)):
        photographs(Path("photos") / writer, count, first=10 - 10 * (writer == "anna"))
    found = load("folder", path="photos")
    assert sizes(found) == {"anna": (9, 3), "ben": (15, 3)}
    assert sizes(load("folder", path="photos", domains=["ben"])) == {"ben": (15, 3)}
    result = runner.run({"experiment": small(data={"name": "folder", "path": "photos"})})
    assert "global/local/accuracy/client/anna" in result.history
    photographs(Path("photos/carl"), 4, first=16)
    assert "carl" in sizes(load("folder", path="photos")), "the set before was kept"


def test_a_table_with_a_column_of_hospitals(tmp_cwd: Path) -> None:
    frame = hospitals(Path("patients.csv"))
    found = load("table", path="patients.csv", label="ill", by="hospital")
    assert found.classes == ("no", "yes")
    assert all(train + test == 30 for train, test in sizes(found).values())
    assert trained(found).mean(0) == pytest.approx([0, 0], abs=1e-6)
    assert trained(found).std(0) == pytest.approx([1, 1], abs=1e-6)
    options = {"path": "patients.csv", "label": "ill", "by": "hospital", "columns": ["age"]}
    raw = load("table", **options, scale="none")
    both = np.concatenate([a for d in raw.domains for a in (d.train_x, d.test_x)])[:, 0]
    assert sorted(both.tolist()) == sorted(float(age) for age in frame["age"])
    hospitals(Path("patients.parquet"), use=["test" if i % 9 == 0 else "train" for i in range(90)])
    options = {"path": "patients.parquet", "label": "ill", "columns": ["age", "pressure"]}
    assert sizes(load("table", **options, part="use")) == {"table": (80, 10)}


WARD: dict[str, Any] = {"path": "ward.csv", "label": "ill", "by": "hospital", "dates": ["seen"]}
WARD |= {"leave_out": ["patient", "remark", "never", "large"], "words": "one-hot", "gaps": "median"}


def test_words_dates_and_gaps_of_a_table(tmp_cwd: Path) -> None:
    ward(Path("ward.csv"))
    found = load("table", **WARD, scale="none")
    assert found.encoding == (
        "columns of words: 1 (as 2 of 0 and 1); columns of dates: 1 (in days); empty cells: 30 "
        "(filled with the median of all training rows)"
    )
    x, empty = trained(found), trained(load("table", **{**WARD, "gaps": "zero"}, scale="none"))
    assert x.shape[1] == 4 and set(np.unique(x[:, :2])) == {0, 1}  # f, m, seen, weight
    assert (x[:, :2].sum(1) == 0).any(), "an empty word is none of the words"
    first = (pd.Timestamp("2024-02-28") - pd.Timestamp(0)).days
    assert set(np.unique(x[:, 2])) == {first + day for day in range(7)}
    none = empty[:, 3] == 0
    assert none.any() and (x[~none] == empty[~none]).all()
    assert x[none, 3] == pytest.approx(np.median(x[~none, 3]))
    scaled = load("table", **WARD)
    x = trained(scaled)
    assert set(np.unique(x[:, :2])) == {0, 1}, "words are not scaled"
    assert x[:, 2:].mean(0) == pytest.approx([0, 0], abs=1e-5)
    ward(Path("ward.parquet"))
    again = load("table", **{**WARD, "path": "ward.parquet"})
    assert again.fingerprint == scaled.fingerprint


def test_numbers_far_from_0_keep_digits_and_dates_may_be_unique_and_old(tmp_cwd: Path) -> None:
    """In float32, seconds since 1970 are multiples of 128."""
    first = 1500 if int(pd.__version__.split(".")[0]) > 2 else 1700  # nanoseconds begin in 1677
    days = pd.to_datetime([f"{first + i}-03-01" for i in range(90)]).as_unit("s")
    numbers = np.stack([1_700_000_000 + 7 * np.arange(90), days.astype(np.int64) / 86400], axis=1)
    part = ["test" if i % 5 == 0 else "train" for i in range(90)]
    columns = {"asked": numbers[:, 0], "born": days.astype(str), "part": part, "fix": 0.1}
    hospitals(Path("asked.csv"), **columns)
    load_asked = partial(load, "table", path="asked.csv", dates=["born"], part="part")
    learnt = {"columns": ["born"], "label": "asked", "task": "regression"}
    (domain,) = load_asked(**learnt).domains
    (other,) = load_asked(label="ill", leave_out=["age", "pressure", "hospital"]).domains
    rows = numbers[[one == "train" for one in part]]
    expected = (numbers[::5] - rows.mean(0)) / rows.std(0)
    assert domain.test_y[:, 0] == pytest.approx(expected[:, 0], abs=1e-6)
    assert other.test_x == pytest.approx(np.pad(expected, ((0, 0), (0, 1))), abs=1e-6)
    assert other.test_x.dtype == domain.test_y.dtype == np.float32


def test_a_table_s_first_error_names_all_settings_that_it_needs(tmp_cwd: Path) -> None:
    remark = "a, 'remark': [it]"
    frame = ward(Path("ward.csv")).drop(columns=["large"]).rename(columns={"remark": remark})
    for file in (Path("named.csv"), Path("named.parquet")):
        write(file, frame)
        options = {"path": str(file), "label": "ill", "by": "hospital"}
        error = refused(load, "table", **options)
        needed = yaml.safe_load(str(error).split("; this table needs data: ")[1])
        assert needed["leave_out"] == ["patient", remark, "never"]
        assert load("table", **options, **needed).encoding.startswith("columns of words: 1 ")


def test_each_domain_by_its_own_training_rows(tmp_cwd: Path) -> None:
    """One of which never weighs: it takes the others' weight."""
    weight = [np.nan if i % 3 == 0 else 10.0 * (i % 3) + i % 2 for i in range(120)]
    ward(Path("ward.csv"), weight=weight)
    options = {"path": "ward.csv", "label": "ill", "by": "hospital", "columns": ["weight"]}
    options |= {"gaps": "mean", "fit": "domain"}
    raw = load("table", **options, scale="none")
    assert raw.encoding == "empty cells: 40 (filled with the mean of their domain's training rows)"
    never, *others = raw.domains
    of_all = np.concatenate([domain.train_x for domain in others]).mean()
    for values in (never.train_x, never.test_x):
        assert values == pytest.approx(of_all)
    for domain in load("table", **options).domains[1:]:
        assert domain.train_x.mean() == pytest.approx(0, abs=1e-6)
        assert domain.train_x.std() == pytest.approx(1, abs=1e-6)


def test_hugging_faces_parquet_with_a_column_of_writers(tmp_cwd: Path) -> None:
    generator = np.random.default_rng(0)
    drawn = [Image.fromarray(x) for x in generator.integers(0, 255, (36, 12, 12), dtype=np.uint8)]
    rows = [{"glyph": x, "digit": n % 2, "writer": f"w{n % 3}"} for n, x in enumerate(drawn)]
    names, writer = datasets.ClassLabel(names=["zero", "one"]), datasets.Value("string")
    features = datasets.Features(glyph=datasets.Image(), digit=names, writer=writer)
    datasets.Dataset.from_list(rows, features=features).to_parquet("set/train.parquet")
    options = {"path": "set", "image": "glyph", "label": "digit", "by": "writer", "size": 16}
    found = load("huggingface", **options)
    assert found.classes == ("one", "zero")
    assert sizes(found) == dict.fromkeys(("w0", "w1", "w2"), (10, 2))
    assert found.domains[0].train_x.shape[1:] == (3, 16, 16)
    refused(load, "huggingface", path="set")
    for splits in (["train", "tset"], ["train", "train"], ["test"]):
        refused(load, "huggingface", **{**options, "splits": splits})
    refused(load, "huggingface", path="set", image="writer", label="digit")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    changes: dict[str, dict[str, Any]] = {"patients": {}, "one": {"ill": 1.0, "same": 1}}
    changes |= {"holes": {"pressure": [np.nan, *[1.0] * 89]}}
    changes |= {"large": {"pressure": [1.0] * 7 + [1e39] + [2.0] * 82}}
    changes |= {"unique": {"weight": np.linspace(40, 90, 90)}}
    changes |= {"again": {"copy": [7 if i % 4 == 0 else 3 for i in range(90)]}}
    with contextlib.chdir(folder):
        for name, columns in changes.items():
            hospitals(Path(f"{name}.csv"), **columns)
        Path("twice.csv").write_text("a,b,a\n" + "1,2,1\n0,3,0\n0,2,0\n" * 5)
        Path("ends.csv").write_text("ill,a,b\n" + "1,2,1,\n0,3,0,\n0,2,0,\n" * 5)
        parquet.write_table(pa.table({"y": pa.nulls(2**29 + 1)}), "endless.parquet")
        parquet.write_table(pa.table({"y": [0, 1], "a": [[1], [2, 3]]}), "lists.parquet")
        Path("zip.parquet").write_bytes(b"PK\x03\x04")
        Path("patients.txt").write_text("a")
        ward(Path("ward.csv"))
        ward(Path("ward.parquet"))
    return folder


@cases(
    "options",
    """{path: none.csv}, {path: patients.txt}, {label: il}, {by: ward}, {},
    {path: holes.csv, by: hospital}, {columns: [age], part: hospital}, {path: zip.parquet},
    {label: same, path: one.csv, by: hospital}, {label: pressure, by: hospital, columns: [age]},
    {columns: [age, ill]}, {columns: [hospital], by: hospital}, {path: twice.csv, label: b},
    {path: ends.csv, gaps: zero}, {path: endless.parquet, label: y}, {path: lists.parquet, label: y},
    {path: again.csv, by: hospital}, {path: large.csv, by: hospital},
    {label: age, columns: [pressure], task: binary}, {columns: [pressure], by: age},
    {path: unique.csv, label: pressure, columns: [weight]}, {path: ward.csv, by: hospital},
    {path: ward.csv, by: hospital, leave_out: [patient]},
    {path: ward.csv, by: hospital, leave_out: [patient], columns: [patient]},
    {path: ward.csv, by: hospital, leave_out: [patients]},
    {path: ward.csv, columns: [remark], words: one-hot},
    {path: ward.csv, columns: [sex], words: one-hot},
    {path: ward.csv, columns: [seen, weight], dates: [seen]},
    {path: ward.csv, columns: [weight], dates: [weight]},
    {path: ward.csv, columns: [sex], dates: [sex]},
    {path: ward.csv, columns: [never], gaps: median},
    {path: ward.csv, columns: [large], gaps: mean}, {path: ward.parquet, columns: [seen]},
    {path: lists.parquet, label: y, words: one-hot, gaps: zero}""",
)
def test_what_is_wrong_with_a_table_is_one_line(
    tables: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(tables)
    refused(load, "table", **{"path": "patients.csv", "label": "ill", **options})


def test_a_long_text_that_many_rows_share_is_in_memory_once(tmp_cwd: Path) -> None:
    """As many copies of it are 200 GB."""
    rows = np.arange(20_000)
    hospital = pa.DictionaryArray.from_arrays(np.zeros_like(rows), ["h" * 10**7])
    parquet.write_table(pa.table({"a": rows, "y": rows % 2, "h": hospital}), "long.parquet")
    (domain,) = load("table", path="long.parquet", label="y", by="h", columns=["a"]).domains
    assert domain.name == "h" * 10**7 and len(domain.train_x) == 16_000


def test_what_is_wrong_with_a_folder_is_said_in_one_line(tmp_cwd: Path) -> None:
    for place in ("photos", "parts/train", "parts/val", "parts/test", "scans"):
        photographs(Path(place))
    for place in ("photos/anna", "single"):
        photograph(Path(place, "cats/1.png"), 3, 0)
    Path("scans/slides/1.TIFF").parent.mkdir()
    Path("scans/slides/1.TIFF").touch()
    for path in ("none", "photos", "single", "parts", "scans"):
        refused(load, "folder", path=path)
    shutil.rmtree("parts/test")
    assert sizes(load("folder", path="parts")) == {"photos": (18, 18)}


CASES = ("case", "control"), ("0", "1"), ("YES", "no")


def saved_set(where: str, names: tuple[str, str], rows: int = 24) -> Any:
    shades = [Image.fromarray(np.full((9, 9), 7 * n, np.uint8)) for n in range(rows)]
    made = [{"image": image, "label": n % 2} for n, image in enumerate(shades)]
    label = datasets.ClassLabel(names=list(names))
    features = datasets.Features(image=datasets.Image(), label=label)
    found = datasets.Dataset.from_list(made, features=features)
    found.save_to_disk(where)
    return found


def three_of(names: tuple[str, str]) -> dict[str, dict[str, Any]]:
    """The same classes as a table, as folders and as a set of Hugging Face's."""
    hospitals(Path("patients.csv"), ill=[names[i % 2] for i in range(90)])
    for name, shade in zip(names, (30, 200), strict=True):
        for number in range(6):
            photograph(Path("photos") / name / f"{number}.png", shade, number)
    saved_set("set", names)
    return {
        "table": {"path": "patients.csv", "label": "ill", "by": "hospital"},
        "folder": {"path": "photos", "size": 8},
        "huggingface": {"path": "set", "size": 8},
    }


@pytest.mark.parametrize("names", CASES, ids=" ".join)
def test_the_positive_class_is_named_or_evident(tmp_cwd: Path, names: tuple[str, str]) -> None:
    for kind, options in three_of(names).items():
        plain = load(kind, **options)
        assert (plain.task, plain.classes) == ("classification", tuple(sorted(names)))
        for positive in names:
            found = load(kind, **options, task="binary", positive=positive)
            assert found.task == "binary" and found.classes[1] == positive
            ones = np.concatenate([one.train_y for one in found.domains])
            assert 0 < ones.sum() < len(ones)
        refused(load, kind, **options, positive=names[0])
        if names == CASES[0]:
            refused(load, kind, **options, task="binary")
            refused(load, kind, **options, task="binary", positive="ill")
        else:
            assert load(kind, **options, task="binary").classes[1].lower() in ("1", "yes")


def test_the_labels_follow_the_positive_class(tmp_cwd: Path) -> None:
    options = three_of(("case", "control"))
    frame = pd.read_csv("patients.csv")
    found = load("table", **options["table"], task="binary", positive="case")
    ones = sum(int(one.train_y.sum() + one.test_y.sum()) for one in found.domains)
    assert ones == (frame["ill"] == "case").sum()
    dark = load("folder", **options["folder"], task="binary", positive="case").domains[0]
    assert np.median(dark.train_x[dark.train_y == 1]) < 60
    truth = three_of(("maybe", "yes"))["table"]  # which YAML takes for True
    assert load("table", **truth, task="binary", positive=True).classes == ("maybe", "yes")
    hospitals(Path("patients.csv"), ill=[1.0 + i % 2 for i in range(90)])
    assert load("table", **truth, task="binary", positive=1).classes == ("2.0", "1.0")


def test_what_became_of_a_table_is_shown(tmp_cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AUC per client, the positive class, and the filled cells. On Ray: test_doors.py."""
    ward(Path("ward.csv"))
    data = {"name": "table", **WARD, "task": "binary", "positive": "yes"}
    result = runner.run({"experiment": small(data=data)})
    assert {f"global/local/auc/client/H{n}" for n in range(3)} <= set(result.history)
    display.show_result(result)
    assert "positive class: yes" in capsys.readouterr().out
    assert invoke(["report", str(result.folder), "--json"]) == 0
    shown = capsys.readouterr().out
    assert "positive class: yes" in shown
    assert "empty cells: 30 (filled with the median of all training rows)" in shown
    for name in ("data.json", "partition.json"):
        assert json.loads((result.folder / name).read_text())["positive"] == "yes"
    export(result.folder, Path("models"))
    assert json.loads(Path("models/model.json").read_text())["positive"] == "yes"
    events = [json.loads(line) for line in (result.folder / "journal.jsonl").open()]
    tags = {name: value for one in events for name, value in one.get("tags", {}).items()}
    assert tags["positive class"] == "yes"
    assert "positive class: yes" in tags["mlflow.note.content"]
    data = {"name": "table", **three_of(("case", "control"))["table"]}
    refused(runner.run, {"experiment": small(data=data, evaluation={"metrics": ["auc"]})})


def test_what_save_to_disk_wrote_is_read(tmp_cwd: Path) -> None:
    found = saved_set("one", ("cat", "dog"))
    datasets.DatasetDict(train=found, test=found.select(range(4))).save_to_disk("both")
    datasets.DatasetDict(learn=found, check=found.select(range(6))).save_to_disk("other")
    assert sizes(load("huggingface", path="one")) == {"all": (20, 4)}
    assert sizes(load("huggingface", path="both")) == {"all": (24, 4)}
    assert sizes(load("huggingface", path="other", splits=["learn", "check"])) == {"all": (24, 6)}
    refused(load, "huggingface", path="other")


def test_revisions_of_the_hub_stay_apart(tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two revisions in the package's cache, without a hub: it takes whichever is newer of one folder."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    shelf, found = Path("cache/huggingface"), saved_set("one", ("cat", "dog"))
    held = (24, None), (12, "v1.0"), (18, "../v1.0")
    for rows, revision in held:
        found.select(range(rows)).to_parquet(f"{rows}/train.parquet")
        datasets.load_dataset(f"{rows}", cache_dir=f"made{rows}")
        (info,) = Path(f"made{rows}").glob("*/*/*/*/dataset_info.json")
        (arrow,) = info.parent.glob("*-train.arrow")
        arrow.rename(info.parent / "set-train.arrow")
        digest = hashlib.sha256(str(revision).encode()).hexdigest()[:16]
        place = shelf / f"revisions/{digest}" if revision else shelf
        (place / "me___set/default/0.0.0").mkdir(parents=True)
        info.parent.rename(place / "me___set/default/0.0.0/0123")
    options = {"path": "me/set", "size": 8}
    loaded = [load("huggingface", **options, revision=one) for _, one in held]
    assert [sum(sizes(one)["all"]) for one in loaded] == [rows for rows, _ in held]
    assert len({one.fingerprint for one in loaded}) == 3
    refused(load, "huggingface", **options, revision="v2.0")
    refused(load, "huggingface", path="one", revision="v1.0", size=8)


def test_what_a_saved_set_names_is_not_followed(tmp_cwd: Path) -> None:
    """A file elsewhere, or an address in a row."""
    saved_set("one", ("cat", "dog"))
    state = json.loads(Path("one/state.json").read_text())
    Path("one").joinpath(state["_data_files"][0]["filename"]).rename("elsewhere.arrow")
    state["_data_files"][0]["filename"] = "../elsewhere.arrow"
    Path("one/state.json").write_text(json.dumps(state))
    refused(load, "huggingface", path="one")
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    image = {"path": "http://127.0.0.1:9/x.png", "bytes": None}
    rows = [{"image": image, "label": number % 2} for number in range(6)]
    Path("set").mkdir()
    table = datasets.Dataset.from_list(rows, features=features).data.table
    parquet.write_table(table, "set/train.parquet")
    refused(load, "huggingface", path="set")
