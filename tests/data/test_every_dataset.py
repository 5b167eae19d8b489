"""What every data set promises: labels in their order, nothing in two parts, a seed that decides, a picture."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torchvision.datasets import EMNIST, FashionMNIST

from flray.data.datasets.small_images import COARSE, FC100_COARSE
from flray.data.loading import load_dataset
from flray.data.sources.images import resize, to_colour
from flray.data.types import DataSet, Domain
from flray.registry import datasets
from tests.data.layouts import LAYOUTS, OTHER_FORMS, Known, Written
from tests.helpers import printed

GENERATED: dict[str, dict[str, Any]] = yaml.safe_load(
    """{digits-sklearn: {}, random: {samples: 50, shape: [1, 4, 4]}, stand-in: {of: mnist},
    photos: {crops: 30}, glyphs: {classes: 20, unseen: 8, samples: 30},
    fundus-synthetic: {samples: 10, size: 32}, eeg-synthetic: {samples: 100, strength: 1.0}}"""
)
FORMS = {"folder", "huggingface", "table"}  # of the user's own, see test_own_data.py
UNTOLD = {"glyphs", "photos", "random", "stand-in"}  # of one class, or of labels that mean nothing


def test_every_built_in_set_is_here() -> None:
    built_in = set(datasets.names()) - set(datasets.added())
    assert sorted([*LAYOUTS, *GENERATED, *FORMS]) == sorted(built_in)


def samples(dataset: DataSet, part: str) -> list[tuple[bytes, tuple[str, Any]]]:
    """Return each sample's bytes, its domain, and its class's name or its masks."""
    return [
        (x.tobytes(), (domain.name, dataset.classes[y] if not y.shape else y.tobytes()))
        for domain in dataset.domains
        for x, y in zip(getattr(domain, f"{part}_x"), getattr(domain, f"{part}_y"), strict=True)
    ]


def plain(known: Known) -> Known:
    """Return what is known with class names in small letters."""
    small = {k: what.lower() if isinstance(what, str) else what for k, (_, what) in known.items()}
    return {sample: (domain, small[sample]) for sample, (domain, _) in known.items()}


def check_samples(name: str, root: Path, there: Written) -> DataSet:
    """Look that all that is written is in the set, with its label and in one part."""
    dataset = load_dataset(name, there.options, root)
    train, test = samples(dataset, "train"), samples(dataset, "test")
    assert train and test
    assert not {sample for sample, _ in train} & {sample for sample, _ in test}
    if name == "cifar10-jpeg":  # lossy: flat colours come back nearly
        train, test = ([(flat(x), what) for x, what in part] for part in (train, test))
    found, known = plain(dict(train + test)), plain(there.known)
    if known:
        assert found.items() <= known.items() and len(found) == len(known) - there.spare
    if there.test is not None:
        assert {sample for sample, _ in test} == there.test
    return dataset


def flat(sample: bytes) -> bytes:
    """Return the image of one colour, a multiple of 12, that is nearest."""
    nearest = 12 * round(np.frombuffer(sample, np.uint8).mean() / 12)
    return np.full((3, 32, 32), nearest, np.uint8).tobytes()


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_what_every_reader_promises(name: str, tmp_path: Path) -> None:
    there = LAYOUTS[name](tmp_path)
    check_classes(name, check_samples(name, tmp_path, there).classes)
    first, again, other = (
        load_dataset(name, {**there.options, **there.drawn, "seed": seed}, tmp_path)
        for seed in (0, 0, 1)
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint
    if there.test is not None:  # the official test part is nobody's choice
        assert {s for s, _ in samples(first, "test")} == {s for s, _ in samples(other, "test")}


@pytest.mark.parametrize(("name", "change"), OTHER_FORMS)
def test_other_forms_are_alike(name: str, change: Callable[[Path], object], tmp_path: Path) -> None:
    there = LAYOUTS[name](tmp_path)
    change(tmp_path / "archives" / name)
    check_samples(name, tmp_path, there)


@pytest.mark.parametrize("name", ["mnist-m", "synthdigits"])
def test_one_domain_of_digit_five_comes_alone(name: str, tmp_path: Path) -> None:
    known = LAYOUTS["digit-five"](tmp_path).known
    own = {k: v for k, v in known.items() if v[0] == name.replace("-", "")}
    options = {"path": str(tmp_path / "archives/digit-five"), "size": 32}
    check_samples(name, tmp_path, Written(own, None, options))


@pytest.mark.parametrize("name", ["emnist", "fundus", "svhn"])
def test_it_is_drawn(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    chosen = [f"data.{option}={value}" for option, value in LAYOUTS[name](tmp_path).options.items()]
    picture = tmp_path / "shown.png"
    assert "partition fingerprint" in printed("data", "show", name, *chosen, "--plot", str(picture))
    with Image.open(picture) as image:
        assert len(image.getcolors(2**24) or ()) > 2


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_what_every_generated_set_promises(name: str, tmp_path: Path) -> None:
    first, again, other = (
        load_dataset(name, {**GENERATED[name], "seed": seed}, tmp_path) for seed in (0, 0, 1)
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint
    seen = [sample for part in ("train", "test") for sample, _ in samples(first, part)]
    assert len(set(seen)) == len(seen)
    if name not in UNTOLD:
        check_classes(name, first.classes)


def whole(domain: Domain) -> list[NDArray[Any]]:
    """Return all samples of a domain, and their labels."""
    return [np.concatenate([getattr(domain, f"{p}_{a}") for p in ("train", "test")]) for a in "xy"]


def test_sklearns_digits_have_their_targets() -> None:
    digits, dataset = load_digits(), load_dataset("digits-sklearn")
    upright = resize(digits.images * (255 / 16), 32)
    undone: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
        "plain": lambda x: x,
        "inverted": lambda x: 255 - x,
        "rotated": lambda x: np.rot90(x, -1, axes=(2, 3)),
    }
    images = [image.tobytes() for image in to_colour(upright)]
    known = dict(zip(images, digits.target, strict=True))
    left = np.bincount(digits.target)
    for domain in dataset.domains:
        x, y = whole(domain)
        left -= np.bincount(y, minlength=10)
        if domain.name in undone:
            assert [known[image.tobytes()] for image in undone[domain.name](x)] == y.tolist()
    assert not left.any()  # so those over photos have the targets of what is left
    over = dataset.domains[3]
    edges = (np.abs(np.diff(x[:, 0].astype(float), axis=2)) for x in (over.train_x, over.test_x))
    train, test = (one.reshape(len(one), -1) for one in edges)
    learnt = LogisticRegression(max_iter=50).fit(train, over.train_y)
    assert learnt.score(test, over.test_y) > 0.3


def test_a_glyph_is_the_character_that_its_class_is_named_after() -> None:
    dataset = load_dataset("glyphs", GENERATED["glyphs"])
    (domain,) = dataset.domains
    x, y = whole(domain)
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(fonts / "DejaVuSans.ttf", 23)
    drawn = []
    for name in dataset.classes:
        canvas = Image.new("L", (32, 32))
        ImageDraw.Draw(canvas).text((16, 16), name, fill=255, font=font, anchor="mm")
        drawn.append(np.asarray(canvas, dtype=float).ravel())
    means = np.stack([x[y == label].mean(0).ravel() for label in range(len(drawn))])
    likeness = np.corrcoef(np.concatenate([means, np.stack(drawn)]))[: len(means), len(means) :]
    assert (likeness.argmax(1) == np.arange(len(means))).mean() > 0.7


@pytest.mark.parametrize("name", ["eeg", "eeg-synthetic"])
def test_trials_keep_their_labels(name: str, tmp_path: Path) -> None:
    there = LAYOUTS[name](tmp_path) if name in LAYOUTS else None
    dataset = load_dataset(name, GENERATED.get(name, {}), tmp_path)
    assert dataset.classes == ("feet", "right hand")
    for domain in dataset.domains:
        # The first number of a tangent vector is the first channel's logarithmic power.
        if there is not None:
            assert ((domain.train_x[:, 0] > 0) == (domain.train_y == 1)).all()
            assert ((domain.test_x[:, 0] > 0) == (domain.test_y == 1)).all()
            assert np.bincount(domain.test_y).tolist() == [3, 3]  # a fifth of each class
            assert domain.train_x.shape == (24, 15)  # as wide as that of five channels
        else:
            learnt = LogisticRegression(max_iter=500).fit(domain.train_x, domain.train_y)
            assert learnt.score(domain.test_x, domain.test_y) > 0.8


# office-caltech10 and domainnet have FedBN's label numbers; the others' folders are in the order of their names, as
# torchvision's ImageFolder and DomainBed number them.
ORDERS = {
    "office-caltech10": "back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug projector",
    "domainnet": "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra",
    "pacs": "dog elephant giraffe guitar horse house person",
    "vlcs": "bird car chair dog person",
    "camelyon17": "normal tumour",
    **dict.fromkeys(("fundus", "fundus-synthetic"), "disc cup"),
    **dict.fromkeys(
        ("cifar-10", "cifar10-jpeg"), "airplane automobile bird cat deer dog frog horse ship truck"
    ),
}
SORTED = {"office31": (31, "back_pack", "trash_can"), "office-home": (65, "Alarm_Clock", "Webcam")}
SORTED |= {"tiny-imagenet": (200, "n00000003", "n00001993")}
SORTED |= dict.fromkeys(("cifar-100", "fc100"), (100, "apple", "worm"))
DIGITS = (
    "mnist usps svhn digits4 digits5 digit-five digits5-local digits-sklearn mnist-m synthdigits"
)


def check_classes(name: str, classes: tuple[str, ...]) -> None:
    """Look that classes are in the order in which others number them."""
    if name in SORTED:
        assert (len(classes), classes[0], classes[-1]) == SORTED[name]
        assert all(a < b for a, b in pairwise(classes))
    elif name in DIGITS.split():
        assert classes == tuple("0123456789")
    elif name == "fashion-mnist":
        assert [c.lower() for c in classes] == [c.lower() for c in FashionMNIST.classes]
    elif name == "emnist":
        assert list(classes) == sorted(EMNIST.classes_split_dict["bymerge"]) and len(classes) == 47
    else:
        order = ORDERS.get(name)
        assert classes == (tuple(order.split()) if order else ("feet", "right hand"))


def test_superclasses_are_in_the_order_that_others_number_them() -> None:
    assert list(COARSE) == sorted(COARSE) and len(COARSE) == 20
    # Oreshkin et al. (2018), TADAM, supplement: people, insects, ... by the numbers of CIFAR-100's
    # coarse labels
    train = [1, 2, 3, 4, 5, 6, 9, 10, 15, 17, 18, 19]
    assert {"train": train, "val": [8, 11, 13, 16], "test": [0, 7, 12, 14]} == FC100_COARSE
