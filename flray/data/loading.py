"""Load a registered data set, checked; take a small part of it, or public samples from another one."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flray.config.components import PublicChoice
from flray.data.sources.cache import data_root
from flray.data.sources.images import to_uint8, triangles
from flray.data.types import DataSet, Images, Ints, Labels
from flray.errors import ConfigError, DataError, brief
from flray.registry import datasets
from flray.rng import numpy_generator


def load_dataset(
    name: str, options: Mapping[str, Any] | None = None, root: Path | None = None
) -> DataSet:
    """Return a registered data set; nothing is downloaded.

    Parameters
    ----------
    name : str
        Registered name.
    options : dict, optional
        Its options.
    root : Path, optional
        Folder of the data cache, default `flray.data.sources.cache.data_root()`.

    Raises
    ------
    FlrayError
        If the name or an option is unknown, or the data set has not been fetched.
    """
    return validate_dataset(
        name, datasets.call(name, root or data_root(), **datasets.checked(name, options or {}))
    )


def take_subset(dataset: DataSet, most: int) -> DataSet:
    """Return a data set with at most `most` training and `most` test samples of each domain, chosen by key.

    Parameters
    ----------
    dataset : DataSet
        Public samples stay as they are.
    most : int
        At least 1. Every class keeps at least one sample where `most` allows it.
    """

    def choose_rows(labels: Labels, what: str) -> Ints:
        order = numpy_generator(0, "sampling", extra=f"subset/{what}").permutation(len(labels))
        flat = labels.reshape(len(labels), math.prod(labels.shape[1:]))[:, 0]
        _, first = np.unique(flat[order], return_index=True)
        rest = np.setdiff1d(np.arange(len(order)), first)
        return np.sort(order[np.concatenate([np.sort(first), rest])[:most]])

    domains = []
    for domain in dataset.domains:
        train = choose_rows(domain.train_y, f"{domain.name}/train")
        test = choose_rows(domain.test_y, f"{domain.name}/test")
        domains.append(
            replace(
                domain,
                train_x=domain.train_x[train],
                train_y=domain.train_y[train],
                test_x=domain.test_x[test],
                test_y=domain.test_y[test],
            )
        )
    return replace(dataset, domains=tuple(domains))


def validate_dataset(name: str, found: Any) -> DataSet:
    """Return the result of a registered function, after checking that it is a consistent data set.

    Parameters
    ----------
    name : str
        The registered name, which the message shows.
    found : Any
        The function's result.

    Raises
    ------
    DataError
        Naming the domain, the problem, and the requirement.
    """
    if not isinstance(found, DataSet):
        raise DataError(
            f"data set {name}: its function returned {type(found).__name__}; return a flray.data.DataSet"
        )
    try:
        problem = next(_problems(found), None)
    except Exception as error:  # parts of types that nobody thought of
        problem = f": its parts are not what flray.data.DataSet says: {brief(error)}"
    if problem is not None:
        raise DataError(f"data set {name}{problem}")
    return found


def _problems(dataset: DataSet) -> Iterator[str]:
    for part, values in (("mean", dataset.mean), ("std", dataset.std)):
        if (
            not isinstance(values, tuple | list | np.ndarray)
            or np.ndim(values) != 1
            or not all(
                isinstance(value, float | int | np.floating) and math.isfinite(value)
                for value in values
            )
        ):
            yield f": {part} is {values!r}; give a tuple of one finite number per channel"
            return
    if not dataset.domains:
        yield ": it has no domains; one at least is needed"
        return
    first = dataset.domains[0].train_x
    for domain in dataset.domains:
        where = f", domain {domain.name}"
        for part, x, y in (
            ("train", domain.train_x, domain.train_y),
            ("test", domain.test_x, domain.test_y),
        ):
            if len(x) != len(y):
                yield f"{where}: {len(x)} rows in {part}_x and {len(y)} in {part}_y; each sample needs one label"
            if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
                yield f"{where}: {part}_x is {x.dtype}; give images as uint8 from 0 to 255, anything else as float32"
            elif x.dtype != np.uint8 and not np.isfinite(x).all():
                row = int(np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))[0])
                yield f"{where}: {part}_x is NaN or infinite in row {row}; fill it, or take the row away"
            if (x.shape[1:], x.dtype) != (first.shape[1:], first.dtype):
                yield (
                    f"{where}: samples of {part}_x are {x.dtype} {list(x.shape[1:])}, those of "
                    f"{dataset.domains[0].name} {first.dtype} {list(first.shape[1:])}; all must be alike"
                )
            if y.ndim != 1:
                continue  # masks, numbers or flags, which the task checks
            if not np.issubdtype(y.dtype, np.integer):
                yield (
                    f"{where}: {part}_y is {y.dtype}; give class numbers as int64, or float32 [n, 1] with task: "
                    "regression"
                )
            elif len(y) and not 0 <= y.min() <= y.max() < len(dataset.classes):
                yield (
                    f"{where}: {part}_y has labels from {y.min()} to {y.max()}, and there are "
                    f"{len(dataset.classes)} classes; labels count from 0 to {len(dataset.classes) - 1}"
                )
    channels = first.shape[1:2]
    if first.dtype == np.uint8 and (first.ndim != 4 or (len(dataset.mean),) != channels):
        yield (
            f": samples are {list(first.shape[1:])} and mean has {len(dataset.mean)} values; images are [channels, "
            "height, width] (x.transpose(0, 3, 1, 2) brings the last axis to the front), with one mean per channel"
        )
    elif first.ndim == 4 and len(dataset.mean) not in (1, *channels):
        yield (
            f": samples are {first.dtype} {list(first.shape[1:])} and mean has {len(dataset.mean)} values; give one "
            "for all or one per channel (flray.data.channel_statistics returns mean and std)"
        )
    if len(dataset.mean) != len(dataset.std) or not all(value > 0 for value in dataset.std):
        yield (
            f": mean has {len(dataset.mean)} values and std is {dataset.std}; give as many, those "
            "of std above 0 (flray.data.channel_statistics returns both)"
        )


LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a grey image (ITU-R BT.601), as Pillow and torchvision have them."""
_loaded: dict[tuple[bool, str], DataSet] = {}
"""By whether it is of the user's files or code, and its name and options."""


def forget_of_user() -> None:
    """Forget data sets of the user's files or code, because these may change between two runs."""
    for key in [key for key in _loaded if key[0]]:
        del _loaded[key]


def load_once(
    name: str,
    options: Mapping[str, Any],
    public: PublicChoice | None = None,
    subset: int | None = None,
) -> DataSet:
    """Return a data set with its public samples; a process keeps the one that it has loaded last.

    `forget_of_user` removes a set of the user's files or code.

    Parameters
    ----------
    name : str
        Registered name.
    options : mapping
        Its options.
    public : PublicChoice, optional
        Where its public samples come from, if not from the set itself.
    subset : int, optional
        At most so many training and test samples of each domain.
    """
    sources = [(name, options), *([(public.name, public.options)] if public is not None else [])]
    own = any(datasets.is_own(source) or given.get("path") for source, given in sources)
    key = (own, f"{name} {sorted(options.items())} {public} {subset}")
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = load_chosen(name, options, public, subset)
    return _loaded[key]


def load_chosen(
    name: str, options: Mapping[str, Any], public: PublicChoice | None, subset: int | None
) -> DataSet:
    """Return a data set as an experiment chooses it, given as in `load_once`, without a copy for the next caller."""
    dataset = load_dataset(name, options)
    if subset is not None:
        dataset = take_subset(dataset, subset)
    return dataset if public is None else with_public(dataset, public.name, public.options)


def with_public(dataset: DataSet, name: str, options: Mapping[str, Any]) -> DataSet:
    """Return a data set with public samples from another one; its fingerprint covers them.

    Parameters
    ----------
    dataset : DataSet
        The private one.
    name : str
        Registered name of the other one.
    options : mapping
        Its options; ``samples`` is the number of public samples here.

    Raises
    ------
    FlrayError
        If the other set has not been fetched, or cannot serve.
    """
    others = {option: value for option, value in options.items() if option != "samples"}
    private = dataset.domains[0].train_x
    shape = private.shape[1:] if private.dtype == np.uint8 else ()
    source = load_dataset(name, others)
    return replace(
        dataset, public=public_images(source, shape, options["samples"], others.get("seed", 0))
    )


def public_images(source: DataSet, shape: tuple[int, ...], samples: int, seed: int) -> Images:
    """Return some of a data set's training images, of all domains and without labels, in another set's shape.

    Parameters
    ----------
    source : DataSet
        A set of uint8 images.
    shape : tuple of int
        The wanted channels, height and width.
    samples : int
        The number of images; a larger choice contains every smaller one.
    seed : int
        The seed of the choice.

    Raises
    ------
    ConfigError
        If either side is not made of images, or the source has too few.
    """
    parts = [domain.train_x for domain in source.domains]
    image = parts[0].dtype == np.uint8 and parts[0].ndim == 4
    if not image or len(shape) != 3:
        why = "public data are taken from images; this set has others"
        if image:
            why = "public images go with private images only; these private samples are numbers of their own"
        raise ConfigError("experiment.public", source.name, why)
    total = sum(map(len, parts))
    if samples > total:
        raise ConfigError(
            "experiment.public.samples", str(samples), f"{source.name} has {total} training images"
        )
    generator = numpy_generator(seed, "public", extra=f"source/{source.name}")
    rows = np.sort(generator.permutation(total)[:samples])
    ends = np.cumsum([len(part) for part in parts])
    places = np.split(rows, np.searchsorted(rows, ends[:-1]))
    chosen = [
        part[place - (end - len(part))]
        for part, place, end in zip(parts, places, ends, strict=True)
    ]
    return fit_to_shape(np.concatenate(chosen), shape)


def fit_to_shape(images: Images, shape: tuple[int, ...]) -> Images:
    """Return images in another shape: grey ones three times or colours as their luma, and resampled.

    Parameters
    ----------
    images : ndarray of uint8 [n, C, H, W]
        Grey (C = 1) or colour (C = 3).
    shape : tuple of int
        Channels, height and width wanted. A triangle as wide as a new pixel weighs the old ones, so
        that shrinking averages and enlarging interpolates bilinearly.

    Raises
    ------
    ConfigError
        If channels other than one or three would have to change.
    """
    channels, height, width = shape
    if images.shape[1] == channels and images.shape[2:] == (height, width):
        return np.ascontiguousarray(images)
    if {images.shape[1], channels} - {1, 3} and images.shape[1] != channels:
        why = f"only grey and colour change into each other; the private images have {channels} channels"
        raise ConfigError("experiment.public", f"images of {images.shape[1]} channels", why)
    down, across = triangles(images.shape[2], height), triangles(images.shape[3], width)
    result = np.empty((len(images), *shape), dtype=np.uint8)
    # A bounded float64 copy, however many images there are.
    for first in range(0, len(images), 1000):
        block = images[first : first + 1000].astype(np.float64)
        if channels == 1 and block.shape[1] == 3:
            block = np.tensordot(block, LUMA, axes=(1, 0))[:, None]
        if block.shape[2:] != (height, width):
            block = down @ block @ across.T
        result[first : first + 1000] = to_uint8(block)
    return result
