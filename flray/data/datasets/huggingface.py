"""Images of the Hugging Face hub or of a folder in its formats; a few rows at a time are in memory."""

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from flray.data.datasets.embedded import SampleCap, Seed, assemble
from flray.data.datasets.own import Labelling, Positive, TaskName
from flray.data.sources import image_sets, images
from flray.data.types import Array, Arrays, DataSet, Rows
from flray.errors import DataError, explained, nearest
from flray.files import FILE_BYTES, check_cells, parse_json, read
from flray.files.tracking_address import at_home
from flray.process import quiet_logs
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
    revision: Annotated[
        str | None,
        Field(min_length=1, description="branch, tag or commit on the hub; null: the newest"),
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
    mapped: image_sets.Mapped = None,
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
    held = _Held(path, config, revision, root / "huggingface", splits[0])
    chosen = [name for name in splits if name in held.splits]
    missing = [name for name in splits if name not in chosen]
    if not chosen or missing not in ([], ["test"]) or len(set(splits)) < len(splits):
        found = f"no split {missing[0]}" if missing else f"one split {splits[0]} for both parts"
        raise DataError(
            f"data set huggingface: {path} has {found}; it has {', '.join(held.splits)}; name one or two in "
            "data.splits"
        )
    for split in chosen:
        held.check(split, image, [label, *([by] if by else [])])
    named, labels = held.numbers(chosen, label)
    labelling = Labelling("huggingface", path, label, task, positive)
    numbers, classes = labelling.encode(named)
    y = numbers[np.concatenate(labels)]
    domains = ["all"] * len(y)
    if by:
        named, groups = held.numbers(chosen, by)
        domains = [str(named[one]) for rows in groups for one in rows]
    said = [part for part, rows in zip(("train", "test"), labels, strict=False) for _ in rows]
    cut = labelling.cut(y, domains, said if len(chosen) > 1 else None, test, seed)
    parts = [images.cap_rows(name, rows, samples, seed) for name, rows, _ in cut]
    parts += [rows for *_, rows in cut]
    order = np.concatenate(parts)
    place = np.full(len(y), -1)
    place[order] = np.arange(len(order))

    def fill(x: Array) -> Arrays:
        starts = np.cumsum([len(rows) for rows in labels])[:-1]
        for split, here in zip(chosen, np.split(place, starts), strict=True):
            for row, pixels in held.images(split, image, np.flatnonzero(here >= 0), size):
                x[here[row]] = pixels
        return {}

    arrays = image_sets.keep_images(
        held.cache / "images" / held.key(f"{chosen} {image} {size}", place),
        "huggingface",
        path,
        mapped,
        (len(order), size, size, 3),
        fill,
    )
    made = image_sets.domains_of(
        [name for name, *_ in cut], arrays["x"], y[order], [len(rows) for rows in parts]
    )
    return assemble("huggingface", made, classes, seed, task=task)


class _Held:
    """A set on the hub or in a folder.

    The files of a folder are read one row after another. A set of the hub, or of ``save_to_disk``,
    lies in Arrow files that are mapped into memory; only the chosen rows are read.
    """

    def __init__(
        self, path: str, config: str | None, revision: str | None, cache: Path, first: str
    ) -> None:
        self.path, self.folder, self.config = path, Path(at_home(path)), config
        self.cache, self.revision, self.first = cache, revision, first
        self.here = self.folder.exists()
        if self.here and not self.folder.is_dir():
            raise DataError(
                f"data set huggingface: {path} is a file; name the folder that it lies in"
            )
        if revision is not None and self.here:
            why = f"which only sets on the hub have, and {path} is a folder here; leave it out"
            raise DataError(f"data set huggingface: found data.revision {revision}, {why}")
        self.parquet: Mapping[str, list[str]] = {}
        with self._foreign(path):
            self.splits = self._open()

    def _open(self) -> dict[str, Any]:
        """Return the splits."""
        import datasets
        from datasets.packaged_modules.parquet.parquet import Parquet

        folder, cache, revision = self.folder, self.cache, self.revision
        if (folder / "state.json").is_file():  # Dataset.save_to_disk
            return {self.first: _saved(folder)}
        if (folder / "dataset_dict.json").is_file():  # DatasetDict.save_to_disk
            saved = sorted(file.parent for file in folder.glob("*/state.json"))
            return {place.name: _saved(place) for place in saved}
        if not self.here:
            if revision is not None:
                # Without a hub the package takes the newest set of a cache, whatever its revision.
                cache /= f"revisions/{hashlib.sha256(revision.encode()).hexdigest()[:16]}"
            place = (self.path, self.config)
            return {**datasets.load_dataset(*place, cache_dir=str(cache), revision=revision)}
        builder = datasets.load_dataset_builder(str(folder), self.config, cache_dir=str(cache))
        if isinstance(builder, Parquet):
            self.parquet = builder.config.data_files
        return {**builder.as_streaming_dataset()}

    @contextlib.contextmanager
    def _foreign(self, what: str) -> Iterator[None]:
        """Turn the errors of the package into one of ours, and silence the lines that it prints."""
        with (  # errors of many packages, and five lines on each attempt to reach the hub
            explained(Exception, f"data set huggingface: {what} cannot be loaded"),
            quiet_logs("huggingface_hub", "datasets"),
        ):
            yield

    def check(self, split: str, image: str, columns: list[str]) -> None:
        """Refuse a split without these columns, or whose images are something else."""
        from datasets import Image

        features = self.splits[split].features or {}
        for column in (image, *columns):
            if column not in features:
                raise DataError(
                    f"data set huggingface: {self.path} has no column {column!r}"
                    f"{nearest(column, features)}; it has {', '.join(features)}"
                )
        if not isinstance(features[image], Image):
            kind = getattr(features[image], "dtype", type(features[image]).__name__)
            raise DataError(
                f"data set huggingface: column {image!r} of {self.path} holds {kind}, not images"
            )

    def numbers(self, splits: list[str], column: str) -> tuple[list[Any], list[Rows]]:
        """Return the different values of a column, and for each split which of them each row has."""
        known: dict[Any, int] = {}
        made = []
        for split in splits:
            names = getattr(self.splits[split].features[column], "names", None)
            found = [np.zeros(0, dtype=np.int64)]
            for values in self._cells(split, column, 4096):
                if names:  # -1 is no class
                    values = [
                        names[v] if v is not None and 0 <= v < len(names) else None for v in values
                    ]
                for value in values:
                    if value is None or isinstance(value, list | dict):
                        row = sum(map(len, found)) + values.index(value)
                        raise DataError(
                            f"data set huggingface: column {column!r} of {self.path} has no single value in row {row} "
                            f"of {split}; fill it, or take the row away"
                        )
                found.append(np.array([known.setdefault(one, len(known)) for one in values]))
            made.append(np.concatenate(found))
        return list(known), made

    def _cells(
        self, split: str, column: str, most: int, rows: Rows | None = None
    ) -> Iterator[list[Any]]:
        """Yield a column's values, so many at a time; of Arrow files some rows alone."""
        from datasets import Features, Image
        from datasets.table import table_cast
        from pyarrow import Table, parquet

        held = self.splits[split]
        schema = Features({column: held.features[column]}).arrow_schema
        for name in self.parquet.get(split, ()):
            with self._foreign(name):
                # The package holds a group of rows, which may be all of a file.
                file = parquet.ParquetFile(name, buffer_size=2**20)
                check_cells(Path(name), file.metadata.num_rows, 1)
                for batch in file.iter_batches(most, columns=[column]):
                    yield table_cast(Table.from_batches([batch]), schema)[column].to_pylist()
        if split not in self.parquet:
            with self._foreign(self.path):
                held = (held if rows is None else held.select(rows)).select_columns([column])
                if isinstance(held.features[column], Image):
                    held = held.cast_column(column, Image(decode=False))
                for batch in held.iter(most):
                    yield batch[column]

    def images(
        self, split: str, column: str, chosen: Rows, size: int
    ) -> Iterator[tuple[int, Array]]:
        """Yield rows and their images, decoded here: the package's own way fetches addresses and starts programs."""
        left, mapped = set(chosen.tolist()), hasattr(self.splits[split], "select")
        cells = self._cells(split, column, 16, chosen if mapped else None)
        numbers = iter(chosen.tolist()) if mapped else itertools.count()
        for value, number in zip(itertools.chain.from_iterable(cells), numbers, strict=False):
            if number in left:
                left.remove(number)
                where = f"data set huggingface: row {number} of column {column!r} of {self.path}"
                yield number, images.decode(self._content(value or {}, where), where, size)
            if not left:
                return
        if left:
            raise DataError(
                f"data set huggingface: {split} of {self.path} ends before row {min(left)}, which it had a moment "
                "ago; start again once nothing writes to it"
            )

    def _content(self, value: Mapping[str, Any], where: str) -> bytes:
        """Return an image's file; of a folder it lies in the folder."""
        if value.get("bytes") is not None:
            return bytes(value["bytes"])
        named = (str(value.get("path")), self.folder)
        file, top = (Path(os.path.normpath(Path.cwd() / one)) for one in named)
        if not file.is_file() or (self.here and not file.is_relative_to(top)):
            there = " in its folder" if self.here else ""
            raise DataError(f"{where} has neither an image nor a file's name{there}")
        return read(file, FILE_BYTES)

    def key(self, settings: str, place: Rows) -> str:
        """Return the name of the decoded images' folder: it differs for other files, settings or rows."""
        files: list[Any] = image_sets.Store(self.folder).items() if self.here else []
        splits = () if self.here else self.splits.values()
        for file in [Path(one["filename"]) for rows in splits for one in rows.cache_files]:
            files.append((file, file.stat().st_size, file.stat().st_mtime_ns))
        facts = f"1|{self.folder.resolve()}|{self.config}|{self.revision}|{settings}|{files}"
        return hashlib.sha256(os.fsencode(facts) + place.tobytes()).hexdigest()[:16]


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
