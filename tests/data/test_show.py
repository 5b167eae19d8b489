from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flray.data import federate, load_dataset
from flray.data.show import bubble_chart, partition_table


def test_the_table_counts_what_clients_hold() -> None:
    dataset = load_dataset("digits-sklearn")
    data = federate(dataset, "domains", {}, 0, 0.1)
    table = partition_table(data)
    assert table.columns.tolist() == ["client", "domain", "origin", "train", "val", "test", *"0123456789"]
    assert table["train"].tolist() == [324, 323, 323, 323]
    assert table["val"].tolist() == [36] * 4
    assert table["test"].tolist() == [90] * 4
    assert table["origin"].tolist() == ["real", "composed", "composed", "composed"]
    assert np.array_equal(table[list("0123456789")].to_numpy(), data.class_counts())
    assert table[list("0123456789")].sum(axis=1).tolist() == table["train"].tolist()


def test_a_pooled_client_lists_all_origins() -> None:
    data = federate(load_dataset("digits-sklearn"), "iid", {"clients": 3}, 0)
    assert partition_table(data)["origin"].tolist() == ["composed+real"] * 3


@pytest.mark.parametrize("clients", [5, 100])
def test_bubbles_have_the_area_of_the_counts(tmp_path: Path, clients: int) -> None:
    data = federate(load_dataset("random", {"samples": 2000, "shape": [1]}), "dirichlet-equal",
                    {"clients": clients, "alpha": 0.5}, 0)
    bubble_chart(data, tmp_path / "new" / "chart.png")
    with Image.open(tmp_path / "new" / "chart.png") as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    assert pixels.shape[1] < 4000
    blue = np.abs(pixels - [0x00, 0x72, 0xB2]).max(axis=2) < 60
    # Sum of areas over the area of the largest, times the largest count: all samples are drawn, at the right scale.
    cell = np.clip(12 / max(clients, 10), 0.2, 0.45) * 150
    largest = np.pi / 4 * (0.95 * cell) ** 2
    drawn = blue.sum() / largest * data.class_counts().max()
    assert drawn == pytest.approx(2000, rel=0.15)
