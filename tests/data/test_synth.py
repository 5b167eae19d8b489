import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from flray.data.datasets.glyphs import FONTS, _atlas, _ink, _paint, render_digits


def test_rendering_follows_the_generator() -> None:
    labels = np.arange(60) % 10
    first, again, other = (render_digits(labels, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first.shape == (60, 3, 32, 32)
    assert first.dtype == np.uint8
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_every_font_has_ten_different_digits_of_one_height() -> None:
    tiles, widths = _atlas()
    assert tiles.shape[:2] == (len(FONTS), 10)
    for font in tiles:
        assert len({tile.tobytes() for tile in font}) == 10
        rows = (font > 0.5).any(axis=2).sum(axis=1)
        assert rows.min() >= 28
        assert rows.max() <= 38
    assert widths.min() >= 8
    assert widths.max() <= 40


def test_the_labelled_digit_is_the_one_in_the_middle() -> None:
    # Nearest neighbour on the middle columns tells it; neighbouring digits would not.
    labels = np.arange(3500) % 10
    ink = _ink(labels, np.random.default_rng(0))[:, 4:28, 8:24].reshape(len(labels), -1)
    found = KNeighborsClassifier(1).fit(ink[:3000], labels[:3000]).predict(ink[3000:])
    assert (found == labels[3000:]).mean() > 0.7


def test_ink_differs_from_paper_in_brightness() -> None:
    half = np.zeros((400, 32, 32), dtype=np.float32)
    half[:, 10:22, 10:22] = 1
    images = _paint(half, np.random.default_rng(0)).astype(float)
    brightness = np.einsum("c,nchw->nhw", [0.299, 0.587, 0.114], images)
    inside = brightness[:, 13:19, 13:19].mean((1, 2))
    outside = (brightness[:, 6:8].mean((1, 2)) + brightness[:, 24:26].mean((1, 2))) / 2
    assert np.quantile(np.abs(inside - outside), 0.05) > 25
