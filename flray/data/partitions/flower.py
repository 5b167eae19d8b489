"""Flower's partitioners of ``flwr-datasets``, by the names of their classes."""

import inspect
import logging
import warnings
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from flray.data.types import Rows
from flray.errors import DataError, brief, nearest, one_line
from flray.registry import register_partition, require_package
from flray.rng import numpy_generator

_log = logging.getLogger("flray")
# These need columns of a table or functions; `domains` is the partition by a column.
_OTHERS = ("Partitioner", "IdToSizeFnc", "NaturalId", "GroupedNaturalId", "Vertical")
_SET_HERE = {
    "num_partitions": "partition.clients",
    "partition_by": "the class",
    "seed": "the run's seed or partition.seed",
}


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
    allowed = sorted(takes - set(_SET_HERE))
    for name in given:
        if name not in allowed:
            use = f": {_SET_HERE[name]}" if name in _SET_HERE else nearest(name, allowed)
            raise DataError(
                f"partition flower: {partitioner} has no option {name!r} here{use}; "
                f"it has {', '.join(allowed) or 'none'}"
            )
    if ("num_partitions" in takes) != (clients is not None):
        do = "set clients" if clients is None else "leave clients out, its options say how many"
        raise DataError(f"partition flower: {do}; {partitioner} has {', '.join(sorted(takes))}")
    given = {name: np.array(v) if _is_table(v) else v for name, v in given.items()}
    own_seed = int(numpy_generator(seed, "partition").integers(2**31))
    for name, value in (("num_partitions", clients), ("partition_by", "y"), ("seed", own_seed)):
        if name in takes:
            given[name] = value
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            parts = _split(cls(**given), labels)
    except Exception as error:  # of any kind, for the package checks its options itself
        raise DataError(f"partition flower: {partitioner}: {brief(error)}") from None
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


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)
