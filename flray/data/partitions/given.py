"""Splits that others make: a file, by flray or by another tool, and Flower's partitioners by their classes' names."""

import inspect
import json
import logging
import warnings
from collections import Counter
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from flray.config.start import GivenSplit, SplitFile
from flray.data.types import FederatedData, Labels, Rows, digest_of
from flray.errors import DataError, explained, nearest, one_line
from flray.files import MAPPING
from flray.registry import register_partition, require_package
from flray.rng import numpy_generator

_Numbers: TypeAlias = list[Annotated[int, Field(ge=0, lt=2**62)]]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^\w[^/\\\x00-\x1f\x7f-\x9f\u2028\u2029]{0,99}$")]


class _Client(BaseModel, extra="forbid", strict=True):
    train: Annotated[_Numbers, Field(min_length=1)]
    val: _Numbers = []
    test: _Numbers | None = None


class _Split(BaseModel, extra="forbid", strict=True):
    dataset: str | None = None
    samples: int | None = None
    labels: str | None = None
    clients: dict[_Name, _Client] = Field(min_length=1)


@register_partition("file")
def file(
    targets: Labels,
    training: int,
    *,
    path: Annotated[
        GivenSplit, Field(description="JSON file of each client's samples, by their numbers")
    ],
) -> dict[str, dict[str, Rows]]:
    """Split as a file says, which flray or another tool wrote.

    The file maps each client's name to the numbers of its training samples, or has ``clients``,
    which maps it to ``train``, ``val`` and ``test``. Numbers count the data set's training samples
    from 0, domain by domain, and then its test samples. Without ``test``, clients get test samples
    in proportion to their training samples, as in any other partition.

    Parameters
    ----------
    targets : ndarray
        Labels or masks of all samples of the data set.
    training : int
        Number of the training samples among them.
    path : SplitFile
        The file. It has to stay as it was when the run began.

    Returns
    -------
    dict of str to dict
        By client its sorted rows ``train``, ``val``, and ``test`` if the file has any.

    Raises
    ------
    FlrayError
        If the file is gone, is another one now, or does not fit the data set.
    """
    known = SplitFile.model_validate(path)
    found, samples = _parse(known), len(targets)
    remedy = "set data and subset as the file needs them, or write it anew"
    if found.samples not in (None, samples):
        raise DataError(
            f"{known.file}: it splits {found.samples} samples, and the data set has {samples}; {remedy}"
        )
    if found.labels not in (None, digest_of(targets)):
        raise DataError(
            f"{known.file}: it splits samples with other labels (SHA-256 in labels); {remedy}"
        )
    tested = [name for name, one in found.clients.items() if one.test is not None]
    if tested and (without := [name for name in found.clients if name not in tested]):
        raise DataError(
            f"{known.file}: {without[0]} has no test, and {tested[0]} has one; give it to all clients or to none"
        )
    most = samples if tested else training
    held: dict[str, dict[str, Rows]] = {}
    taken = np.zeros(samples, dtype=bool)
    for name, one in found.clients.items():
        held[name] = {}
        for part in ("train", "val", *(["test"] if tested else [])):
            rows = np.sort(np.array(getattr(one, part), dtype=np.int64))
            where = f"{known.file}: clients.{name}.{part}"
            if len(rows) and rows[-1] >= most:
                kind = (
                    "samples" if tested else "training samples (numbers of test samples go to test)"
                )
                raise DataError(f"{where} has number {rows[-1]}; there are {most} {kind}, from 0")
            twice = [*rows[taken[rows]], *rows[1:][np.diff(rows) == 0]]
            if twice:
                raise DataError(
                    f"{where} has sample {twice[0]}, which was given before; give it once"
                )
            taken[rows] = True
            held[name][part] = rows
    return held


def _parse(known: SplitFile) -> _Split:
    """Return a file's content in its full form."""
    try:
        content = MAPPING.validate_python(
            json.loads(known.read("experiment.partition.path"), object_pairs_hook=_once)
        )
        if not isinstance(content.get("clients"), dict):
            content = {"clients": {name: {"train": rows} for name, rows in content.items()}}
        return _Split.model_validate(content)
    except (ValueError, RecursionError) as error:
        where, why = "its content", str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            where, why = ".".join(map(str, first["loc"])) or where, first["msg"]
        raise DataError(
            f"{known.file}: {where}: {one_line(why)}; needed is a JSON file such as "
            '{"clients": {"a": {"train": [0, 1], "test": [8]}}}: names of at most 100 characters that begin '
            "with a letter or digit and have no / or \\, and numbers of samples from 0"
        ) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the entries of a JSON object; of a name that stands twice it would have the last."""
    if len(found := dict(pairs)) < len(pairs):
        ((name, count),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r} stands {count} times")
    return found


def split_of(data: FederatedData) -> dict[str, Any]:
    """Return who holds which samples in the form that the partition ``file`` reads."""
    return {
        "dataset": data.dataset,
        "samples": len(data.y),
        "labels": digest_of(data.y),
        "clients": {
            client.name: {part: getattr(client, part).tolist() for part in ("train", "val", "test")}
            for client in data.everyone
        },
    }


_log = logging.getLogger("flray")
# These need columns of a table or functions; `domains` is the partition by a column.
_OTHERS = ("Partitioner", "IdToSizeFnc", "NaturalId", "GroupedNaturalId", "Vertical")


@register_partition("flower")
def flower(
    labels: Rows,
    seed: int,
    *,
    partitioner: Annotated[str, Field(description="class of flwr_datasets, as ShardPartitioner")],
    clients: Annotated[
        int | None, Field(ge=1, description="number of clients, where the class takes one")
    ] = None,
    options: Annotated[
        dict[str, Any] | None,
        Field(description="the class's own, as {num_shards_per_partition: 2}"),
    ] = None,
) -> list[Rows]:
    """Split as a partitioner of Flower does; it sees the classes, and all domains pooled.

    Parameters
    ----------
    labels : ndarray of int64 [n]
        Training labels.
    seed : int
        The experiment's seed; decides the partitioner's.
    partitioner : str
        Its class in ``flwr_datasets.partitioner``.
    clients : int, optional
        Its ``num_partitions``; None if it does not take this argument.
    options : dict, optional
        Further arguments.

    Raises
    ------
    DataError
        If the package is missing, a name is unknown, or the partitioner refuses.
    """
    require_package("partition flower", "flwr_datasets", "flower")
    from flwr_datasets import partitioner as known

    names = [name for name in known.__all__ if not name.startswith(_OTHERS)]
    if partitioner not in names:
        raise DataError(
            f"partition flower: found partitioner {partitioner!r}{nearest(partitioner, names)}; "
            f"there are {', '.join(names)}"
        )
    cls, given = getattr(known, partitioner), dict(options or {})
    takes = set(inspect.signature(cls).parameters)
    if ("num_partitions" in takes) != (clients is not None):
        do = "set clients" if clients is None else "leave clients out, its options say how many"
        raise DataError(f"partition flower: {do}; {partitioner} has {', '.join(sorted(takes))}")
    # A list of lists, such as a table of shares, is an array there.
    tables = [
        n for n, v in given.items() if isinstance(v, list) and isinstance((v or [0])[0], list)
    ]
    given |= {name: np.array(given[name]) for name in tables}
    own_seed = int(numpy_generator(seed, "partition").integers(2**31))
    own = {"num_partitions": clients, "partition_by": "y", "seed": own_seed}
    own = {name: value for name, value in own.items() if name in takes}
    remedy = f"its options: {', '.join(sorted(takes - own.keys())) or 'none'}"
    with (  # errors of any kind, because the package checks its options itself
        explained(Exception, f"partition flower: {partitioner} cannot split the samples", remedy),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always", UserWarning)
        parts = _split(cls(**own, **given), labels)
    for warning in said:
        if warning.category is UserWarning:
            _log.warning("partition flower: %s", one_line(str(warning.message)))
    return parts


def _split(partitioner: Any, labels: Rows) -> list[Rows]:
    import datasets

    rows = np.arange(len(labels), dtype=np.int64)
    partitioner.dataset = datasets.Dataset.from_dict({"y": labels, "row": rows})
    parts = (partitioner.load_partition(part) for part in range(partitioner.num_partitions))
    return [np.sort(np.array(part["row"], dtype=np.int64)) for part in parts]
