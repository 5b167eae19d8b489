"""Data on the command line and in the cache: listed, shown, drawn, kept once, and read anew if they change."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from PIL import Image

import flray
from flray import registry
from flray.data import federate, load_dataset
from flray.data.datasets.eeg import SOURCES
from flray.data.federated import partition_table
from flray.data.inventory import Entry, list_datasets
from flray.data.sources.archives import FILES
from flray.data.sources.cache import MANIFEST, data_root, decoded, read_arrays
from flray.drawing.canvas import LIGHT, save_figure
from flray.drawing.grids import draw_partition
from flray.federation import partition_summary
from flray.federation.building import build_spec
from flray.registry import datasets
from tests.data.layouts import LAYOUTS
from tests.data.test_splits import numbered
from tests.helpers import cases, printed, small, written
from tests.messages import mistyped, refused


def built_in(root: Path) -> dict[str, Entry]:
    """Return the entries of flray's own sets; other tests of this process may have registered some more."""
    return {one.name: one for one in list_datasets(root) if one.name not in datasets.added()}


def test_every_set_has_a_source_and_a_way_to_it(tmp_path: Path) -> None:
    entries = built_in(tmp_path)
    assert {entry.name for entry in list_datasets(tmp_path)} == set(datasets.names())
    for entry in entries.values():
        assert entry.what and entry.source
        assert entry.present is (entry.source == "comes with flray")
        assert bool(entry.todo) is not entry.present
    for name, files in FILES.items():
        assert entries[name].source == files.where
    for name in ("svhn", "fc100", "digits5-local"):
        assert entries[name].todo == f"flray data get {name}"
    assert entries["vlcs"].todo == "put it into DATA/archives/vlcs (or data.path)"
    assert "flray[eeg]" in entries["eeg"].todo
    assert entries["cifar10-jpeg"].todo == "give data.path"


@cases(
    "name, files",
    """[office-home, [Art/Bed/1.jpg]], [tiny-imagenet, [train/n1/images/1.JPEG]],
    [camelyon17, [metadata.csv]], [svhn, [train_32x32.mat, test_32x32.mat]]""",
)
def test_what_is_there_is_said_to_be_there(name: str, files: list[str], tmp_path: Path) -> None:
    for file in files:
        path = tmp_path / "archives" / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    entries = built_in(tmp_path).values()
    present = [entry for entry in entries if entry.present and entry.source != "comes with flray"]
    assert [entry.name for entry in present] == [name]


def test_eeg_is_there_with_all_its_sources(tmp_path: Path) -> None:
    for number, source in enumerate([*SOURCES[:2], *SOURCES]):
        decoded(tmp_path / "eeg" / f"{source}-{number}", lambda _: {})
        assert built_in(tmp_path)["eeg"].present is (number == 5)


def test_both_commands_list_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    shown = printed("data", "list")
    assert shown == printed("list", "datasets")
    assert all(re.search(rf"\b{name}\b", shown) for name in datasets.names())
    assert "pip install 'flray[eeg]'" in shown
    alone = " ".join(printed("list", "datasets", "vlcs").split())
    assert "put it into DATA/archives/vlcs" in alone and "mapped" in alone


def test_get_decodes_what_was_put_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    mistyped("data", "show", "vlcs")
    mistyped("data", "get", "vlcs")
    LAYOUTS["vlcs"](tmp_path)
    assert "vlcs: decoding 40 images" in printed("data", "get", "vlcs")
    assert len(list((tmp_path / "vlcs").rglob("x.npy"))) == 1


def test_the_table_counts_what_clients_hold() -> None:
    dataset = load_dataset("digits-sklearn")
    data = federate(dataset, "domains", {}, 0, 0.1)
    table, digits = partition_table(data), list("0123456789")
    columns = {"train": [324, 323, 323, 323], "val": [36] * 4, "test": [90] * 4}
    assert table.columns.tolist() == ["client", "domain", "origin", *columns, *digits]
    assert table[[*columns]].to_dict("list") == columns
    assert table["origin"].tolist() == ["real", "composed", "composed", "composed"]
    assert np.array_equal(table[digits].to_numpy(), data.class_counts())
    assert table[digits].sum(axis=1).tolist() == table["train"].tolist()
    pooled = partition_table(federate(dataset, "iid", {"clients": 3}, 0))
    assert pooled["origin"].tolist() == ["composed+real"] * 3


def drawn_in(path: Path | str) -> NDArray[np.int64]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(np.int64)


@pytest.mark.parametrize("clients", [5, 100])
def test_bubbles_have_the_area_of_the_counts(tmp_path: Path, clients: int) -> None:
    dataset = load_dataset("random", {"samples": 2000, "shape": [1]})
    data = federate(dataset, "dirichlet-equal", {"clients": clients, "alpha": 0.5}, 0)
    save_figure(draw_partition(partition_summary(data)), tmp_path / "new" / "chart.png")
    pixels = drawn_in(tmp_path / "new" / "chart.png")
    assert pixels.shape[1] < 4000
    blue = np.abs(pixels - [0x00, 0x72, 0xB2]).max(axis=2) < 60
    # Sum of areas over the area of the largest, times the largest count: all samples are drawn, at the right scale.
    cell = np.clip(12 / max(clients, 10), 0.2, 0.45) * 150
    largest = np.pi / 4 * (0.95 * cell) ** 2
    drawn = blue.sum() / largest * data.class_counts().max()
    assert drawn == pytest.approx(2000, rel=0.15)


def test_of_many_clients_the_first_are_drawn() -> None:
    dataset = load_dataset("digits-sklearn")
    data = federate(dataset, "domains", {"clients_per_domain": 60}, 0)
    (axes,) = draw_partition(partition_summary(data)).axes
    assert len(axes.get_xticks()) == 200 and "of the first 200 clients" in axes.get_title("left")


def test_a_picture_that_cannot_be_is_refused_before_anything_is_read(tmp_cwd: Path) -> None:
    Path("file").write_text("in the way")
    mistyped("data", "show", "nothing.yaml", "--plot", "chart.xyz")
    mistyped("data", "show", "nothing.yaml", "--plot", ".")
    mistyped("data", "show", "digits-sklearn", "--plot", "file/chart.png")


MORE = {"flower": {"partitioner": "LinearPartitioner"}, "pathological": {"classes_per_client": 4}}
SHIFT = "long_tail: 10, ratio: 0.5, sizes: {d1: 30}, noise: 0.1"


DRAWN = [(name, "") for name in registry.partitions.names() if name != "file"]


@pytest.mark.parametrize(("name", "shift"), [*DRAWN, ("domains", SHIFT)])
def test_the_command_draws_every_partition(
    tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch, name: str, shift: str
) -> None:
    by_domain = name.startswith("domain")
    clients = 3 if by_domain else 6  # the others have as many as is said
    partition = {"name": name, **({} if by_domain else {"clients": 6}), **MORE.get(name, {})}
    written(small(data="two-levels", partition=partition, shift=yaml.safe_load(f"{{{shift}}}")))
    monkeypatch.setattr(registry.datasets, "_entries", {**registry.datasets._entries})
    three = numbered([(400, 100), (120, 30), (250, 63)], classes=8)
    registry.datasets.register("two-levels")(lambda root: three)
    lines = printed("data", "show", "x.yaml", "--plot", "chart.png").splitlines()
    assert lines[0].split()[:4] == ["client", "domain", "origin", "train"]
    rows = [line.split() for line in lines[1 : 1 + clients]]
    assert [row[2] for row in rows] == ["random"] * clients
    assert ("noise" in lines[0].split()) == bool(shift)
    total, classes = (sum(int(row[i]) for row in rows) for i in (3, 6 + bool(shift)))
    whole = name != "domain-dirichlet" and not shift
    assert (total == 770) is whole and 0 < classes < total
    pixels = drawn_in("chart.png")
    shades = [list(bytes.fromhex(colour[1:])) for colour in LIGHT[:3]]
    drawn = [(np.abs(pixels - shade).max(axis=2) < 40).sum() for shade in shades]
    assert drawn[0] > 500 and (min(drawn[1:]) > 500) == by_domain


ARRAYS = {"x": np.arange(1000, dtype=np.uint8).reshape(10, 100), "y": np.arange(10)}


def test_what_was_decoded_is_read_by_others_too(tmp_path: Path) -> None:
    folder = tmp_path / "sets" / "set"
    refused(read_arrays, folder, "set")
    decoded(folder, lambda _: ARRAYS)
    for back in (read_arrays(folder, "set"), decoded(folder, lambda _: {})):
        assert list(back) == ["x", "y"]
        for name, array in ARRAYS.items():
            assert np.array_equal(back[name], array) and back[name].dtype == array.dtype
    refused(decoded, tmp_path / "sets" / "odd", lambda _: {"x": np.array([{}], dtype=object)})
    assert [one.name for one in folder.parent.iterdir() if one.suffix != ".lock"] == ["set"]
    refused(decoded, folder / "x.npy" / "set", lambda _: ARRAYS)  # below a file
    (tmp_path / "plain").mkdir()
    assert folder.stat().st_mode == (tmp_path / "plain").stat().st_mode


DECODE_OFTEN = """
import sys
from pathlib import Path
import numpy as np
from flray.data.sources.cache import decoded
for number in range(40):
    folder = Path(sys.argv[1], str(number))
    x = decoded(folder, lambda _: {"x": np.full(1000, int(sys.argv[2]))})["x"]
    assert np.array_equal(x, np.load(folder / "x.npy")) and len(np.unique(x)) == 1
"""


def test_two_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / MANIFEST).write_text("damaged")
    command = [sys.executable, "-c", DECODE_OFTEN, str(tmp_path)]
    writers = [subprocess.Popen([*command, value]) for value in "12"]
    assert [writer.wait(500) for writer in writers] == [0, 0]
    assert len([one for one in tmp_path.iterdir() if one.suffix != ".lock"]) == 40


MANIFESTS = ("", "[]", '{"files": 3}', '{"files": {"x.npy": {"bytes": "many", "sha256": ""}}}')
DAMAGES = [
    ("y.npy", lambda _: None),
    ("x.npy", lambda raw: raw[:-7]),
    ("x.npy", lambda raw: raw[:-1] + b"\0"),
    *((MANIFEST, lambda _, t=t: t.encode()) for t in MANIFESTS),
]


@pytest.mark.parametrize(("file", "damage"), DAMAGES)
def test_damage_is_told_and_mended(
    tmp_path: Path, file: str, damage: Callable[[bytes], bytes | None]
) -> None:
    decoded(tmp_path / "set", lambda _: ARRAYS)
    path = tmp_path / "set" / file
    if (content := damage(path.read_bytes())) is None:
        path.unlink()
    else:
        path.write_bytes(content)
    refused(read_arrays, tmp_path / "set", "set")
    assert list(decoded(tmp_path / "set", lambda _: ARRAYS)) == ["x", "y"]
    read_arrays(tmp_path / "set", "set")


def test_the_environment_sets_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("FLRAY_DATA")
    assert data_root() == Path.home() / ".cache" / "flray"


READER = """
from pathlib import Path
import numpy as np
from flray import register_dataset
from flray.data import DataSet, Domain

@register_dataset("kept-array")
def kept_array(root: Path, *, file: str = "x.npy") -> DataSet:
    x, y = np.load(file), np.arange(20) % 2
    return DataSet("kept-array", (Domain("all", "real", x, y, x, y),), ("a", "b"), (0.0,), (1.0,))
"""


def pictures(shade: int) -> None:
    """One differs, of the same size and time, in a folder whose time is as before."""
    for number in range(12):
        picture = Path("photos", ("cats", "dogs")[number % 2], f"{number}.bmp")
        picture.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((12, 12, 3), 20 * number, dtype=np.uint8)
        pixels[0] = shade if number == 1 else 0
        Image.fromarray(pixels).save(picture)
        os.utime(picture, (0, 0))


def arrays(shade: int) -> None:
    np.save("x.npy", np.full((20, 4), shade, dtype=np.float32))
    Path("own.py").write_text(READER)


@cases("settings", "{data: {name: folder, path: photos}}, {data: kept-array, plugins: [own.py]}")
def test_a_later_run_reads_them_anew(tmp_cwd: Path, settings: dict[str, Any]) -> None:

    learnt = set()
    for shade in (10, 90):
        (arrays if "plugins" in settings else pictures)(shade)
        result = flray.run({"experiment": small(**settings)})
        learnt.add((result.sha256, build_spec(result.experiment).data.fingerprint))
    assert len({model for model, _ in learnt}) == len({data for _, data in learnt}) == 2
