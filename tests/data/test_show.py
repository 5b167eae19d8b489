from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from flray import registry
from flray.data import DataSet, Domain, federate, load_dataset
from flray.data.federated import partition_table
from flray.drawing.canvas import LIGHT, save_figure
from flray.drawing.grids import draw_partition, partition_record
from tests.helpers import printed
from tests.messages import mistyped


def test_the_table_counts_what_clients_hold() -> None:
    dataset = load_dataset("digits-sklearn")
    data = federate(dataset, "domains", {}, 0, 0.1)
    table = partition_table(data)
    sizes = ("train", "val", "test")
    assert table.columns.tolist() == ["client", "domain", "origin", *sizes, *"0123456789"]
    assert table["train"].tolist() == [324, 323, 323, 323]
    assert table["val"].tolist() == [36] * 4
    assert table["test"].tolist() == [90] * 4
    assert table["origin"].tolist() == ["real", "composed", "composed", "composed"]
    assert np.array_equal(table[list("0123456789")].to_numpy(), data.class_counts())
    assert table[list("0123456789")].sum(axis=1).tolist() == table["train"].tolist()
    pooled = partition_table(federate(dataset, "iid", {"clients": 3}, 0))
    assert pooled["origin"].tolist() == ["composed+real"] * 3


def drawn_in(path: Path | str) -> NDArray[np.int64]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(np.int64)


@pytest.mark.parametrize("clients", [5, 100])
def test_bubbles_have_the_area_of_the_counts(tmp_path: Path, clients: int) -> None:
    dataset = load_dataset("random", {"samples": 2000, "shape": [1]})
    data = federate(dataset, "dirichlet-equal", {"clients": clients, "alpha": 0.5}, 0)
    save_figure(draw_partition(partition_record(data)), tmp_path / "new" / "chart.png")
    pixels = drawn_in(tmp_path / "new" / "chart.png")
    assert pixels.shape[1] < 4000
    blue = np.abs(pixels - [0x00, 0x72, 0xB2]).max(axis=2) < 60
    # Sum of areas over the area of the largest, times the largest count: all samples are drawn, at
    # the right scale.
    cell = np.clip(12 / max(clients, 10), 0.2, 0.45) * 150
    largest = np.pi / 4 * (0.95 * cell) ** 2
    drawn = blue.sum() / largest * data.class_counts().max()
    assert drawn == pytest.approx(2000, rel=0.15)


def test_of_many_clients_the_first_are_drawn() -> None:
    dataset = load_dataset("digits-sklearn")
    data = federate(dataset, "domains", {"clients_per_domain": 60}, 0)
    (axes,) = draw_partition(partition_record(data)).axes
    assert len(axes.get_xticks()) == 200 and "of the first 200 clients" in axes.get_title("left")


def test_a_picture_that_cannot_be_is_refused_before_anything_is_read(tmp_cwd: Path) -> None:
    Path("file").write_text("in the way")
    mistyped("data", "show", "nothing.yaml", "--plot", "chart.xyz")
    mistyped("data", "show", "nothing.yaml", "--plot", ".")
    mistyped("data", "show", "digits-sklearn", "--plot", "file/chart.png")


SITES = ("amazon", "dslr", "webcam")


def two_levels(root: Path) -> DataSet:
    """Three domains over twenty classes of five superclasses."""
    generator = np.random.default_rng(0)
    domains = []
    for size, name in zip((400, 120, 250), SITES, strict=True):
        y = generator.permutation(np.arange(size) % 20)
        x = generator.integers(0, 256, (size, 3, 4, 4), dtype=np.uint8)
        domains.append(Domain(name, "random", x, y, x[::4], y[::4]))
    names, coarse = tuple(f"class {c}" for c in range(20)), tuple(c // 4 for c in range(20))
    return DataSet("two-levels", tuple(domains), names, (0.5,) * 3, (0.5,) * 3, coarse=coarse)


CLIENTS = {"domains": 3, "domain-dirichlet": 3}  # the others have as many as is said
OPTIONS = {
    "domains": "",
    "domain-dirichlet": "",
    "flower": ", clients: 6, partitioner: LinearPartitioner",
    "pathological": ", clients: 6, classes_per_client: 4",
}
SHIFT = "long_tail: 10, ratio: 0.5, sizes: {dslr: 30}, noise: 0.1"


@pytest.mark.parametrize(
    ("name", "shift"),
    [*((name, "") for name in registry.partitions.names() if name != "file"), ("domains", SHIFT)],
)
def test_the_command_draws_every_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, shift: str
) -> None:
    monkeypatch.chdir(tmp_path)
    clients = CLIENTS.get(name, 6)
    Path("x.yaml").write_text(
        f"{{data: two-levels, partition: {{name: {name}{OPTIONS.get(name, ', clients: 6')}}}, "
        f"shift: {{{shift}}}, model: linear, algorithm: fedavg}}"
    )
    monkeypatch.setattr(registry.datasets, "_entries", {**registry.datasets._entries})
    registry.datasets.register("two-levels")(two_levels)
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
    by_domain = name.startswith("domain")
    assert drawn[0] > 500 and (min(drawn[1:]) > 500) == by_domain
