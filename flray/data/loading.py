"""Load a registered data set: options and contents are checked, and a small part can be taken to try things out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from flray import rng
from flray.data.arrays import Labels
from flray.data.sources.cache import data_root
from flray.data.types import DataSet, Domain
from flray.errors import ConfigError, DataError, brief
from flray.registry import Registry, datasets


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
        name,
        datasets.call(name, root or data_root(), **validate_options(datasets, name, options or {})),
    )


def validate_options(registry: Registry, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a component's options with its defaults.

    Raises
    ------
    ConfigError
        If one is unknown or has a value that is not allowed.
    """
    model: type[BaseModel] = registry.params(name)
    try:
        return dict(model(**options))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join([registry.kind, name, *map(str, first["loc"])])
        allowed = ", ".join(model.model_fields) or "none"
        raise ConfigError(
            path, repr(first["input"]), f"{first['msg']} (options: {allowed})"
        ) from None


def take_subset(dataset: DataSet, most: int) -> DataSet:
    """Return a data set with at most `most` training and `most` test samples of each domain, chosen by key.

    Parameters
    ----------
    dataset : DataSet
        Public samples stay as they are.
    most : int
        At least 1. Every class keeps at least one sample where `most` allows it.
    """

    def choose_rows(labels: Labels, what: str) -> NDArray[np.int64]:
        order = rng.numpy_generator(0, "sampling", extra=f"subset/{what}").permutation(len(labels))
        flat = labels.reshape(len(labels), -1)[:, 0]
        _, first = np.unique(flat[order], return_index=True)
        rest = np.setdiff1d(np.arange(len(order)), first)
        return np.sort(order[np.concatenate([np.sort(first), rest])[:most]])

    domains = []
    for domain in dataset.domains:
        train, test = (
            choose_rows(domain.train_y, f"{domain.name}/train"),
            choose_rows(domain.test_y, f"{domain.name}/test"),
        )
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
    """Return what a registered function gave, having checked that it is a data set whose parts fit together.

    Parameters
    ----------
    name : str
        The registered name, for the message.
    found : Any
        What the function returned.

    Raises
    ------
    DataError
        Naming the domain, what was found there, and what is needed.
    """
    if not isinstance(found, DataSet):
        raise DataError(
            f"data set {name}: its function returned {type(found).__name__}; return a "
            "flray.data.DataSet"
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
            if (x.shape[1:], x.dtype) != (first.shape[1:], first.dtype):
                yield (
                    f"{where}: samples of {part}_x are {x.dtype} {list(x.shape[1:])}, those of "
                    f"{dataset.domains[0].name} {first.dtype} {list(first.shape[1:])}; all must "
                    "be alike"
                )
            yield from (f"{where}: {problem}" for problem in _label_problems(domain, part, dataset))
    channels = first.shape[1:2]
    if first.dtype == np.uint8 and (first.ndim != 4 or (len(dataset.mean),) != channels):
        yield (
            f": samples are {list(first.shape[1:])} and mean has {len(dataset.mean)} values; "
            "images are [channels, height, width] (x.transpose(0, 3, 1, 2) brings the last axis "
            "to the front), with one mean per channel"
        )
    elif first.ndim == 4 and len(dataset.mean) not in (1, *channels):
        yield (
            f": samples are {first.dtype} {list(first.shape[1:])} and mean has "
            f"{len(dataset.mean)} values; give one for all or one per channel "
            "(flray.data.channel_statistics returns mean and std)"
        )
    if len(dataset.mean) != len(dataset.std) or not all(value > 0 for value in dataset.std):
        yield (
            f": mean has {len(dataset.mean)} values and std is {dataset.std}; give as many, those "
            "of std above 0 (flray.data.channel_statistics returns both)"
        )


def _label_problems(domain: Domain, part: str, dataset: DataSet) -> Iterator[str]:
    labels, count = (domain.train_y if part == "train" else domain.test_y), len(dataset.classes)
    if labels.ndim != 1:
        return  # masks, which the task checks
    if not np.issubdtype(labels.dtype, np.integer):
        yield f"{part}_y is {labels.dtype}; give class numbers as int64"
    elif len(labels) and not 0 <= labels.min() <= labels.max() < count:
        yield (
            f"{part}_y has labels from {labels.min()} to {labels.max()}, and there are {count} "
            f"classes; labels count from 0 to {count - 1}"
        )
