"""Data sets of the Hugging Face hub, or in its formats in a folder: images or numbers, by the names of columns."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from flray.data.datasets.embedded import SampleCap, Seed, cap_samples
from flray.data.datasets.own_rows import Rows, domains_of
from flray.data.sources.images import channel_statistics
from flray.data.types import DataSet
from flray.errors import DataError, brief, nearest
from flray.registry import register_dataset


@register_dataset("huggingface")
def huggingface(
    root: Path,
    *,
    path: Annotated[str, Field(description="name on the hub, or a folder (parquet, imagefolder)")],
    config: Annotated[
        str | None, Field(description="the set's configuration, if it has several")
    ] = None,
    image: Annotated[str, Field(description="column of the images")] = "image",
    label: Annotated[str, Field(description="column of the classes")] = "label",
    by: Annotated[
        str | None, Field(description="column of the domain, such as the writer; each is a client")
    ] = None,
    size: Annotated[int, Field(ge=1, le=8192, description="height and width in pixels")] = 32,
    test: Annotated[
        float, Field(gt=0, lt=1, description="share for test, where there is no test split")
    ] = 0.2,
    seed: Seed = 0,
    samples: SampleCap = None,
) -> DataSet:
    """Images of the Hugging Face hub, or of a folder in its formats; its code is never run.

    Raises
    ------
    DataError
        If the package is missing, the set cannot be had, or a column is not there or no image.
    """
    if importlib.util.find_spec("datasets") is None:
        raise DataError(
            "data set huggingface needs the package datasets; pip install 'flray[huggingface]'"
        )
    import datasets

    place = str(Path(path).expanduser()) if Path(path).expanduser().exists() else path
    try:
        found = datasets.load_dataset(place, config, cache_dir=str(root / "huggingface"))
    except Exception as error:  # of many packages
        raise DataError(f"data set huggingface: {path} cannot be loaded ({brief(error)})") from None
    parts = {name: found[name] for name in ("train", "test") if name in found}
    if "train" not in parts:
        raise DataError(
            f"data set huggingface: {path} has no split train; it has {', '.join(map(str, found))}"
        )
    images, labels, domains, said = [], [], [], []
    for name, rows in parts.items():
        for column in (image, label, *([by] if by else [])):
            if column not in rows.column_names:
                raise DataError(
                    f"data set huggingface: {path} has no column {column!r}"
                    f"{nearest(column, rows.column_names)}; it has {', '.join(rows.column_names)}"
                )
        images += list(_pixels(path, rows, image, size))
        labels += list(_names(rows, label))
        domains += [str(one) for one in _names(rows, by)] if by else ["all"] * len(rows)
        said += [name] * len(rows)
    cut = Rows("huggingface", np.stack(images), labels, domains, said if "test" in parts else None)
    found_domains, classes = domains_of(cut, test, seed, path)
    capped = [cap_samples(domain, samples, seed) for domain in found_domains]
    return DataSet(
        "huggingface",
        tuple(capped),
        classes,
        *channel_statistics([domain.train_x for domain in capped]),
    )


def _names(rows: Any, column: str) -> list[Any]:
    """Return a column's values; names instead of numbers where the set knows them."""
    feature = rows.features[column]
    values: list[Any] = list(rows[column])
    names = getattr(feature, "names", None)
    return [names[value] for value in values] if names else values


def _pixels(path: str, rows: Any, column: str, size: int) -> Iterator[Any]:
    from PIL import Image

    for number, value in enumerate(rows[column]):
        if not isinstance(value, Image.Image):
            raise DataError(
                f"data set huggingface: column {column!r} of {path} holds {type(value).__name__} in row "
                f"{number}, not images"
            )
        pixels = np.asarray(value.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
        yield pixels.transpose(2, 0, 1)
