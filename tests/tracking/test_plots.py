"""Pictures show the numbers they were given."""

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from flray.tracking.plots import client_bars, learning_curves, method_curves, sweep_overview

BLUE, ORANGE, GREEN = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73)


def pixels(path: Path, colour: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the pixels of exactly this colour."""
    return np.nonzero((np.asarray(Image.open(path).convert("RGB")) == colour).all(axis=2))


def history(scale: float, rounds: int = 40) -> pd.DataFrame:
    values = [scale * (1 - math.exp(-round_ / 10)) for round_ in range(rounds)]
    every_fifth = [
        value / 2 if round_ % 5 == 0 else math.nan for round_, value in enumerate(values)
    ]
    return pd.DataFrame({"round": range(rounds), "a/accuracy": values, "b/accuracy": every_fifth})


def test_learning_curves_draw_each_metric_also_over_gaps(tmp_path: Path) -> None:
    path = tmp_path / "new" / "curves.png"
    learning_curves(history(0.9), ["a/accuracy", "b/accuracy"], path, title="fedskc")
    width = Image.open(path).size[0]
    for colour in (BLUE, ORANGE):
        columns = np.unique(pixels(path, colour)[1])
        drawn = columns[columns < 0.7 * width]  # to the right of it is the legend
        assert drawn.max() - drawn.min() > 0.5 * width
    with pytest.raises(KeyError):
        learning_curves(history(0.9), ["c"], path)


def test_the_better_method_is_drawn_higher(tmp_path: Path) -> None:
    path = tmp_path / "methods.png"
    method_curves(
        {"fedavg": [history(0.5), history(0.6)], "fedskc": [history(0.9)]}, "a/accuracy", path
    )
    assert pixels(path, BLUE)[0].mean() > pixels(path, ORANGE)[0].mean()  # rows count from the top


@pytest.mark.parametrize(
    ("clients", "worst", "expected"), [(20, 0.1, 2), (10, 0.1, 1), (4, 0.1, 1), (12, 0.5, 6)]
)
def test_the_worst_clients_have_the_share_of_the_area_that_they_should(
    tmp_path: Path, clients: int, worst: float, expected: int
) -> None:
    path = tmp_path / "bars.png"
    client_bars({f"c{i}": 0.5 + i * 1e-6 for i in range(clients)}, "accuracy", path, worst=worst)
    columns = np.bincount(pixels(path, ORANGE)[1])
    bars = np.count_nonzero(
        np.diff((columns > 100).astype(int)) == 1
    )  # a bar is tall, the legend's patch is not
    assert bars == expected
    height = columns.max()
    assert np.count_nonzero(np.bincount(pixels(path, BLUE)[1]) > 0.9 * height) > 0


def test_clients_without_a_value_are_left_out_and_none_at_all_is_refused(tmp_path: Path) -> None:
    client_bars({"a": 0.5, "b": math.nan}, "accuracy", tmp_path / "one.png")
    assert len(pixels(tmp_path / "one.png", BLUE)[0]) == 0
    with pytest.raises(ValueError, match="no client"):
        client_bars({"b": math.nan}, "accuracy", tmp_path / "none.png")


def test_many_clients_stay_one_page(tmp_path: Path) -> None:
    client_bars({str(i): i / 1000 for i in range(1000)}, "accuracy", tmp_path / "many.png")
    assert Image.open(tmp_path / "many.png").size == (1800, 630)


def test_a_sweep_has_one_row_per_method_with_a_score(tmp_path: Path) -> None:
    scores = {"fedavg": [0.5, 0.6], "fedskc": [0.7, math.nan], "moon": [0.65], "broken": [math.nan]}
    sweep_overview(scores, "accuracy", tmp_path / "sweep.png")
    sweep_overview(scores | {"broken": [0.1]}, "accuracy", tmp_path / "four.png")
    three, four = (Image.open(tmp_path / f"{name}.png").size[1] for name in ("sweep", "four"))
    assert four - three == pytest.approx(0.34 * 150, abs=1)
    with pytest.raises(ValueError, match="no method"):
        sweep_overview({"broken": [math.nan]}, "accuracy", tmp_path / "none.png")


def test_pictures_drawn_by_threads_at_once_are_the_same(tmp_path: Path) -> None:
    def draw(name: str) -> bytes:
        learning_curves(history(0.9), ["a/accuracy"], tmp_path / name)
        return (tmp_path / name).read_bytes()

    alone = draw("alone.png")
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(draw, [f"{i}.png" for i in range(6)])) == {alone}


def test_drawing_opens_no_pyplot_figure_and_changes_no_setting(tmp_path: Path) -> None:
    import matplotlib
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams), pyplot.get_fignums()
    learning_curves(history(0.9), ["a/accuracy"], tmp_path / "x.png")
    assert (dict(matplotlib.rcParams), pyplot.get_fignums()) == before
