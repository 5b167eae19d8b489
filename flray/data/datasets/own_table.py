"""A table of one's own: columns of a CSV or parquet file, with one domain per hospital, writer or device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import numpy as np
from pydantic import Field

from flray.data.datasets.embedded import SampleCap, Seed, cap_samples
from flray.data.datasets.own_rows import Positive, Rows, TaskName, domains_of
from flray.data.types import DataSet
from flray.errors import DataError, brief, nearest
from flray.files.border import check_cells, open_file
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
    task: TaskName = "classification",
    positive: Positive = None,
    seed: Seed = 0,
    samples: SampleCap = None,
) -> DataSet:
    """Rows of a CSV or parquet file: columns of numbers, a column of classes, and one of domains if there is one.

    Raises
    ------
    DataError
        If the file cannot be read, a column is missing, repeats the label or holds something else
        than is needed.
    """
    file = Path(path).expanduser()
    frame = _read(file)
    uses = {"label": label, "by": by, "part": part}
    besides = [name for name in uses.values() if name is not None]
    for name in (*besides, *(columns or [])):
        if name not in frame.columns:
            raise DataError(
                f"data set table: {file} has no column {name!r}{nearest(name, frame.columns)}; it has "
                f"{', '.join(map(str, frame.columns[:20]))}"
            )
    for name in besides:
        if name in (columns or []):
            raise DataError(
                f"data set table: data.columns has {name!r}, which is data."
                f"{next(use for use, one in uses.items() if one == name)} already; leave it out"
            )
    used = columns or [name for name in frame.columns if name not in besides]
    x = _numbers(file, frame, used)
    for name in besides:
        if frame[name].isna().any():
            raise DataError(
                f"data set table: column {name!r} of {file} is empty in "
                f"{int(frame[name].isna().sum())} rows; fill them or take the rows away"
            )
    _check_other_than_label(file, frame, used, label)
    groups = ["table"] * len(frame) if by is None else [str(v) for v in frame[by].tolist()]
    rows = Rows(
        "table",
        x,
        frame[label].tolist(),
        groups,
        None if part is None else [str(v) for v in frame[part].tolist()],
        label,
        task,
        positive,
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
        with open_file(file) as source:
            if file.suffix == ".csv":
                # pandas calls a second column y "y.1", under which it would be learnt from.
                first = pd.read_csv(source, header=None, nrows=1, dtype=str)
                names: list[Any] = first.iloc[0].tolist()
                source.seek(0)
                frame = pd.read_csv(source)
            else:
                _check_footer(file, source)
                frame = pd.read_parquet(source)
                names = list(frame.columns)
    except OSError as error:
        raise DataError(
            f"data set table: {file} cannot be read ({error.strerror or brief(error)})"
        ) from None
    except (ValueError, OverflowError) as error:  # pandas' and pyarrow's own are ValueErrors
        raise DataError(f"data set table: {file} is no table ({brief(error)})") from None
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"data set table: {file} has {names.count(twice)} columns {twice!r}; give each its own name"
        )
    return frame


def _check_footer(file: Path, source: BinaryIO) -> None:
    """Refuse a parquet file of too many rows: a million that are alike take up a few bytes in it."""
    from pyarrow.parquet import read_metadata

    found = read_metadata(source)
    groups = sum(found.row_group(number).num_rows for number in range(found.num_row_groups))
    check_cells(file, max(found.num_rows, groups), found.num_columns)


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
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(frame[columns].to_numpy(dtype=np.float32))
    wrong_rows, wrong_columns = np.nonzero(~np.isfinite(x))
    if len(wrong_rows):
        name = columns[wrong_columns[0]]
        raise DataError(
            f"data set table: column {name!r} of {file} has {frame[name].iloc[wrong_rows[0]]} in row "
            f"{wrong_rows[0] + 1}, and float32 ends at 3.4e38; write the column in another unit"
        )
    return x


def _check_other_than_label(
    file: Path, frame: pd.DataFrame, columns: list[str], label: str
) -> None:
    """Refuse a column that says the same as the label: one value for each class, another for each."""
    classes = frame[label].nunique()
    for name in columns:
        if classes < 2 or frame[name].nunique() != classes:
            continue
        if frame.groupby([name, label]).ngroups == classes:
            raise DataError(
                f"data set table: column {name!r} of {file} says the same as the label {label!r} in every "
                "row, so it would be learnt from; leave it out with data.columns, or take it away"
            )
