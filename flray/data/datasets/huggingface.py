"""Data sets of the Hugging Face hub, or in its formats in a folder: images or numbers, by the names of columns."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from flray.data.datasets.embedded import SampleCap, Seed, assemble
from flray.data.datasets.own import Labelling, Positive, TaskName
from flray.data.sources.images import decode
from flray.data.types import DataSet
from flray.errors import DataError, brief, nearest
from flray.files.border import FILE_BYTES, parse_json, read
from flray.registry import register_dataset, require_package


@register_dataset("huggingface")
def huggingface(
    root: Path,
    *,
    path: Annotated[
        str, Field(description="name on the hub, or a folder (save_to_disk, parquet, imagefolder)")
    ],
    config: Annotated[
        str | None, Field(description="the set's configuration, if it has several")
    ] = None,
    image: Annotated[str, Field(description="column of the images")] = "image",
    label: Annotated[str, Field(description="column of the classes")] = "label",
    by: Annotated[
        str | None, Field(description="column of the domain, such as the writer; each is a client")
    ] = None,
    splits: Annotated[
        list[str],
        Field(
            min_length=1,
            max_length=2,
            description="the splits for training and test; without the second by the share test",
        ),
    ] = ["train", "test"],  # noqa: B006 - options are copied, and a list is what YAML has
    size: Annotated[int, Field(ge=1, le=8192, description="height and width in pixels")] = 32,
    test: Annotated[
        float, Field(gt=0, lt=1, description="share for test, where there is no test split")
    ] = 0.2,
    seed: Seed = 0,
    samples: SampleCap = None,
    task: TaskName = "classification",
    positive: Positive = None,
) -> DataSet:
    """Images of the Hugging Face hub, or of a folder in its formats; its code is never run.

    Raises
    ------
    DataError
        If the package is missing, the set cannot be had, or a column is not there or does not hold
        images.
    """
    require_package("data set huggingface", "datasets", "huggingface")
    import datasets

    folder = Path(path).expanduser()
    if folder.exists() and not folder.is_dir():
        raise DataError(f"data set huggingface: {path} is a file; name the folder that it lies in")
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)  # five lines on each attempt to reach the hub
    try:
        if (folder / "state.json").is_file():  # Dataset.save_to_disk
            found = {splits[0]: _saved(folder)}
        elif (folder / "dataset_dict.json").is_file():  # DatasetDict.save_to_disk
            there = sorted(one.parent.name for one in folder.glob("*/state.json"))
            found = {name: _saved(folder / name) for name in splits if name in there}
        else:
            place = str(folder) if folder.exists() else path
            found = datasets.load_dataset(place, config, cache_dir=str(root / "huggingface"))
            there = list(found)
    except DataError:
        raise
    except Exception as error:  # of many packages
        raise DataError(f"data set huggingface: {path} cannot be loaded ({brief(error)})") from None
    finally:
        hub.setLevel(level)
    parts = {name: found[name] for name in splits if name in found}
    if splits[0] not in parts:
        raise DataError(
            f"data set huggingface: {path} has no split {splits[0]}; it has {', '.join(there)}; name "
            "one or two in data.splits"
        )
    images, labels, domains, said = [], [], [], []
    for part, rows in zip(("train", "test"), parts.values(), strict=False):
        for column in (image, label, *([by] if by else [])):
            if column not in rows.column_names:
                raise DataError(
                    f"data set huggingface: {path} has no column {column!r}"
                    f"{nearest(column, rows.column_names)}; it has {', '.join(rows.column_names)}"
                )
        images += list(_pixels(path, rows, image, size))
        labels += list(_names(rows, label))
        domains += [str(one) for one in _names(rows, by)] if by else ["all"] * len(rows)
        said += [part] * len(rows)
    given = said if len(parts) > 1 else None
    labelling = Labelling("huggingface", path, label, task, positive)
    y, classes = labelling.encode(labels)
    found_domains = labelling.domains(np.stack(images), y, domains, given, test, seed)
    return assemble("huggingface", found_domains, classes, seed, samples, task=task)


def _saved(folder: Path) -> Any:
    """Return a data set that ``Dataset.save_to_disk`` wrote, from the Arrow files that ``state.json`` names."""
    from datasets import Dataset

    state = parse_json(read(folder / "state.json", FILE_BYTES))
    for one in state["_data_files"]:
        if (
            Path(one["filename"]).name != one["filename"]
            or not (folder / one["filename"]).is_file()
        ):
            raise DataError(
                f"data set huggingface: {folder / 'state.json'} names the file {one['filename']!r}, which "
                "is not a file beside it; save the set again"
            )
    return Dataset.load_from_disk(str(folder.resolve())).with_format(None)


def _names(rows: Any, column: str) -> list[Any]:
    """Return a column's values; names instead of numbers where the set knows them."""
    feature = rows.features[column]
    values: list[Any] = list(rows[column])
    names = getattr(feature, "names", None)
    return [names[value] for value in values] if names else values


def _pixels(path: str, rows: Any, column: str, size: int) -> Iterator[Any]:
    """Yield a column's images, decoded here: the package's own way fetches addresses and starts programs."""
    from datasets import Image

    if not isinstance(rows.features[column], Image):
        raise DataError(
            f"data set huggingface: column {column!r} of {path} holds "
            f"{type(rows[0][column]).__name__} in row 0, not images"
        )
    for number, value in enumerate(rows.cast_column(column, Image(decode=False))[column]):
        where = f"data set huggingface: row {number} of column {column!r} of {path}"
        if value["bytes"] is None and not Path(str(value["path"])).is_file():
            raise DataError(f"{where} has neither an image nor a file's name")
        content = value["bytes"]
        if content is None:
            content = read(Path(value["path"]), FILE_BYTES)
        yield decode(bytes(content), where, size).transpose(2, 0, 1)
