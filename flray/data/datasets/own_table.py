"""A table of one's own: columns of a CSV or parquet file, with one domain per hospital, writer or device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from flray.data.datasets.embedded import SampleCap, Seed, cap_samples
from flray.data.datasets.own_rows import Rows, domains_of
from flray.data.sources.limits import ARRAYS_BYTES, check_size
from flray.data.types import DataSet
from flray.errors import DataError, brief, nearest
from flray.registry import register_dataset

if TYPE_CHECKING:
    import pandas as pd

Share = Annotated[float, Field(gt=0, lt=1, description="share of each class of a domain for test")]


@register_dataset("table")
def table(
    root: Path,
    *,
    path: Annotated[str, Field(description="a .csv or .parquet file")],
    label: Annotated[str, Field(description="column of the classes")],
    columns: Annotated[
        list[str] | None, Field(description="columns of numbers to learn from; null: all others")
    ] = None,
    by: Annotated[
        str | None,
        Field(description="column of the domain, such as the hospital; each value is a client"),
    ] = None,
    part: Annotated[
        str | None, Field(description="column that says train or test; null: by the share test")
    ] = None,
    test: Share = 0.2,
    scale: Annotated[
        Literal["standard", "none"],
        Field(description="standard: each column by mean and deviation of all training rows"),
    ] = "standard",
    task: Literal["classification", "binary"] = "classification",
    seed: Seed = 0,
    samples: SampleCap = None,
) -> DataSet:
    """Rows of a CSV or parquet file: columns of numbers, a column of classes, and one of domains if there is one.

    Raises
    ------
    DataError
        If the file cannot be read, a column is missing or holds something else than is needed.
    """
    file = Path(path).expanduser()
    frame = _read(file)
    besides = [name for name in (label, by, part) if name is not None]
    for name in (*besides, *(columns or [])):
        if name not in frame.columns:
            raise DataError(
                f"data set table: {file} has no column {name!r}{nearest(name, frame.columns)}; it has "
                f"{', '.join(map(str, frame.columns[:20]))}"
            )
    used = columns or [name for name in frame.columns if name not in besides]
    x = _numbers(file, frame, used)
    for name in besides:
        if frame[name].isna().any():
            raise DataError(
                f"data set table: column {name!r} of {file} is empty in "
                f"{int(frame[name].isna().sum())} rows; fill them or take the rows away"
            )
    groups = ["table"] * len(frame) if by is None else [str(v) for v in frame[by].tolist()]
    rows = Rows(
        "table",
        x,
        frame[label].tolist(),
        groups,
        None if part is None else [str(v) for v in frame[part].tolist()],
    )
    domains, classes = domains_of(rows, test, seed, str(file))
    if scale == "standard":
        training = np.concatenate([domain.train_x for domain in domains]).astype(np.float64)
        mean, std = training.mean(0), training.std(0)
        std[std == 0] = 1.0
        for domain in domains:
            for values in (domain.train_x, domain.test_x):
                values[:] = ((values - mean) / std).astype(np.float32)
    capped = tuple(cap_samples(domain, samples, seed) for domain in domains)
    return DataSet("table", capped, classes, (0.0,), (1.0,), task=task)


def _read(file: Path) -> pd.DataFrame:
    import pandas as pd

    if file.suffix not in (".csv", ".parquet"):
        raise DataError(f"data set table: {file} is neither a .csv nor a .parquet file")
    try:
        check_size(file, file.stat().st_size, ARRAYS_BYTES)
        return pd.read_csv(file) if file.suffix == ".csv" else pd.read_parquet(file)
    except OSError as error:
        raise DataError(
            f"data set table: {file} cannot be read ({error.strerror or brief(error)})"
        ) from None
    except (ValueError, OverflowError) as error:  # pandas' and pyarrow's own are ValueErrors
        raise DataError(f"data set table: {file} is no table ({brief(error)})") from None


def _numbers(
    file: Path, frame: pd.DataFrame, columns: list[str]
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    import pandas as pd

    if not columns:
        raise DataError(f"data set table: {file} has no column to learn from; give data.columns")
    for name in columns:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            raise DataError(
                f"data set table: column {name!r} of {file} is no column of numbers; leave it out with "
                f"data.columns, or write its values as numbers"
            )
        wrong = int((~np.isfinite(frame[name].to_numpy(dtype=np.float64, na_value=np.nan))).sum())
        if wrong:
            raise DataError(
                f"data set table: column {name!r} of {file} is empty or infinite in {wrong} rows; fill "
                f"them or take the rows away"
            )
    return np.ascontiguousarray(frame[columns].to_numpy(dtype=np.float32))
