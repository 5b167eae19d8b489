"""Custom data in a table: columns of a CSV or parquet file."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import numpy as np
import yaml
from pydantic import Discriminator, Field, Tag

from flray.data.datasets.embedded import SampleCap, Seed, cap_samples
from flray.data.datasets.own import Labelling, Positive, TableTask
from flray.data.types import Array, DataSet, Domain, Flags, Floats
from flray.errors import DataError, explained, nearest
from flray.files import ARRAYS_BYTES, check_cells, check_size, open_file
from flray.files.tracking_address import at_home
from flray.registry import register_dataset, tasks

if TYPE_CHECKING:
    import pandas as pd

OneOrMore = Annotated[
    Annotated[str, Tag("[name]")]
    | Annotated[list[str], Field(min_length=1, max_length=1000), Tag("[names]")],
    Discriminator(lambda value: "[names]" if isinstance(value, list | tuple) else "[name]"),
]
Share = Annotated[float, Field(gt=0, lt=1, description="share of each class of a domain for test")]
_WHOSE = {"all": "all", "domain": "their domain's"}
Facts = dict[str, Any]
MOST_WORDS = 100
"""Most different words of a column: each of them becomes a column."""
_NUMERIC = "biufc"  # kinds of numpy's types, and of pandas' own


@register_dataset("table")
def table(
    root: Path,
    *,
    path: Annotated[str, Field(description="a .csv or .parquet file")],
    label: Annotated[
        OneOrMore,
        Field(description="column of the classes, or of what the task wants; a list of several"),
    ],
    columns: Annotated[
        list[str] | None, Field(description="columns to learn from; null: all others")
    ] = None,
    leave_out: Annotated[
        list[str], Field(description="columns not to learn from, such as identifiers and remarks")
    ] = [],  # noqa: B006
    by: Annotated[
        str | None,
        Field(description="column of the domain, such as the hospital; each value is a client"),
    ] = None,
    part: Annotated[
        str | None, Field(description="column that says train or test; null: by the share test")
    ] = None,
    test: Share = 0.2,
    words: Annotated[
        Literal["refuse", "one-hot"],
        Field(description="columns of words; one-hot: a column of 0 and 1 for each of its words"),
    ] = "refuse",
    dates: Annotated[
        list[str], Field(description="columns of dates (2026-11-26), learnt from as days")
    ] = [],  # noqa: B006
    gaps: Annotated[
        Literal["refuse", "mean", "median", "zero"],
        Field(
            description="empty cells of numbers and dates; mean, median: those of the training rows; "
            "an empty word is none of its column's words"
        ),
    ] = "refuse",
    scale: Annotated[
        Literal["standard", "columns", "none"],
        Field(
            description="standard: each column of numbers, and a label of numbers, by mean and deviation of training "
            "rows; columns: the label not"
        ),
    ] = "standard",
    fit: Annotated[
        Literal["all", "domain"],
        Field(
            description="whose training rows scale and gaps go by: everybody's, as a label's always, or each domain's"
        ),
    ] = "all",
    task: TableTask = "classification",
    positive: Positive = None,
    seed: Seed = 0,
    samples: SampleCap = None,
) -> DataSet:
    """Rows of a CSV or parquet file: columns to learn from, columns to predict, and one of domains if there is one.

    Raises
    ------
    DataError
        If the file cannot be read, a column is missing, repeats the label, looks like an identifier,
        or holds something else than is needed.
    """
    file = Path(at_home(path))
    frame = _read(file)
    named = [label] if isinstance(label, str) else list(label)
    uses = [*(("label", name) for name in named), ("by", by), ("part", part)]
    besides = [name for _, name in uses if name is not None]
    asked = (*besides, *(columns or []), *leave_out, *dates)
    wrong = (
        *(
            f"{file} has no column {name!r}{nearest(name, frame.columns)}; it has "
            f"{', '.join(map(str, frame.columns[:20]))}"
            for name in asked
            if name not in frame.columns
        ),
        *(
            f"data.columns has {name!r}, which is data.{use} already; leave it out"
            for use, name in (*uses, *(("leave_out", name) for name in leave_out))
            if name in (columns or [])
        ),
        *(
            f"data.label, by and part name {name!r} twice; leave it out once"
            for name in besides
            if besides.count(name) > 1
        ),
    )
    for problem in wrong:
        raise DataError(f"data set table: {problem}")
    used = columns or [name for name in frame.columns if name not in (*besides, *leave_out)]
    unnamed = [] if columns is not None else [name for name in used if name not in dates]
    identifiers = [name for name in unnamed if _is_identifier(frame, name)]
    try:
        for name in identifiers:
            raise DataError(
                f"data set table: column {name!r} of {file} has another value in each row, as identifiers "
                f"have; data.leave_out: [{name}], or name all columns to learn from in data.columns"
            )
        x, facts, told = _encode(file, frame, used, words, dates, gaps)
    except DataError as error:
        if columns is not None:
            raise
        wanted = {"leave_out": leave_out, "words": words, "dates": dates, "gaps": gaps}
        raise DataError(f"{error}{_needed(frame, used, identifiers, wanted)}") from None
    for name in besides:
        if frame[name].isna().any():
            raise DataError(
                f"data set table: column {name!r} of {file} is empty, or NA, None, null or nan, in "
                f"{int(frame[name].isna().sum())} rows; write another word, or take the rows away"
            )
    groups = ["table"] * len(frame) if by is None else [str(v) for v in frame[by].tolist()]
    parts = None if part is None else [str(v) for v in frame[part].tolist()]
    labelling = Labelling("table", str(file), named[0], task, positive)
    target = tasks.outline(task).target
    if (target == "classes" and len(named) > 1) or (target != "classes" and positive is not None):
        raise labelling.refused(
            f"data.label names {len(named)} columns, and {task} has one; leave some out, or write "
            "data.task: regression or multi-label"
            if target == "classes"
            else f"data.positive is {positive}, and {task} has no classes; leave it out"
        )
    y: Array
    y, classes = (
        labelling.encode(frame[named[0]].tolist())
        if target == "classes"
        else (_targets(file, frame, named, target), tuple(named))
    )
    domains = [
        Domain(name, "real", x[rows], y[rows], x[held], y[held])
        for name, rows, held in labelling.cut(y, groups, parts, test, seed)
    ]
    for name in named:
        _check_other_than_label(file, frame, used, name, target == "numbers")
    # Or dates; the other columns are 0 or 1 for a word.
    numbers = np.array(["word" not in one for one in facts])
    if empty := int(np.isnan(x).sum()):
        _fill(file, facts, domains, gaps, fit)
        by = f"the {gaps} of {_WHOSE[fit]} training rows"
        told.append(f"empty cells: {empty} (filled with {'zero' if gaps == 'zero' else by})")
    if scale != "none":
        for group in [[one] for one in domains] if fit == "domain" else [domains]:
            found = _standardise([(one.train_x, one.test_x) for one in group], numbers)
            _tell(facts, found, group[0].name if fit == "domain" else "")
    labels: list[Facts] = [{"column": name} for name in named]
    if scale == "standard" and target == "numbers":
        _tell(labels, _standardise([(one.train_y, one.test_y) for one in domains]))
    capped = tuple(cap_samples(_single(domain), samples, seed) for domain in domains)
    return DataSet(
        "table",
        capped,
        classes,
        (0.0,),
        (1.0,),
        task,
        encoding="; ".join(told),
        columns={"inputs": facts, "labels": labels},
    )


def _read(file: Path) -> pd.DataFrame:
    import pandas as pd

    kind = file.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise DataError(
            f"data set table: {file} is neither a .csv nor a .parquet file; write it as one"
        )
    with (
        explained(  # pandas' and pyarrow's own are ValueErrors
            (OSError, ValueError, OverflowError), f"data set table: {file} cannot be read"
        ),
        open_file(file) as source,
    ):
        if kind == ".parquet":
            return _read_parquet(file, source)
        # pandas calls a second column y "y.1", under which it would be learnt from.
        first = pd.read_csv(source, header=None, nrows=1, dtype=str).iloc[0].dropna().tolist()
        _check_columns(file, first)
        source.seek(0)
        frame = pd.read_csv(source)
    # pandas takes surplus first values for names of rows, as R writes them.
    if not isinstance(frame.index, pd.RangeIndex) and frame.iloc[:, -1].isna().all():
        raise DataError(
            f"data set table: rows of {file} have a value more than its header, and the last column is empty: name "
            "all columns, or write rows without a delimiter at their end"
        )
    return frame


def _read_parquet(file: Path, source: BinaryIO) -> pd.DataFrame:
    """Return the table of a parquet file, whose texts stay in its dictionary: one is in memory once."""
    from pyarrow import parquet, types

    found = parquet.ParquetFile(source)
    fields, footer = list(found.schema_arrow), found.metadata
    _check_columns(file, [field.name for field in fields])
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    parts = [group.column(number) for group in groups for number in range(group.num_columns)]
    check_cells(file, sum(group.num_rows for group in groups), footer.num_columns)
    check_size(file, sum(part.total_uncompressed_size for part in parts), ARRAYS_BYTES)
    nested = [field.name for field in fields if types.is_nested(field.type)]
    flat = [field.name for field in fields if field.name not in nested]
    table = parquet.read_table(source, columns=flat, read_dictionary=flat)
    frame: pd.DataFrame = table.to_pandas()
    for name in frame.select_dtypes("category"):
        frame[name] = frame[name].astype(object)
    for name in nested:  # as many values as they like in a row: not read
        frame[name] = None
    return frame


def _check_columns(file: Path, names: list[str]) -> None:
    """Refuse a table with two columns of one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"data set table: {file} has {names.count(twice)} columns {twice!r}; give each its own name"
        )


def _is_identifier(frame: pd.DataFrame, name: str) -> bool:
    """Return whether a column has another word in each row, or counts the rows, or is called id."""
    import pandas as pd

    values = frame[name]
    if len(values) < 2 or not values.is_unique:
        return False
    whole = pd.api.types.is_integer_dtype(values)
    counted = whole and bool((values.diff().iloc[1:] == 1).all())
    texts = pd.api.types.is_string_dtype(values)
    called = re.search(r"(^|[_ .-])(id|uid|uuid|mrn|key|index)$|[a-z](Id|ID)$", str(name))
    return bool(counted or texts or (whole and called))


def _needed(
    frame: pd.DataFrame, columns: list[str], identifiers: list[str], given: dict[str, Any]
) -> str:
    """Return all settings that the columns need, if they are several, so that nobody finds them one by one."""
    import pandas as pd

    found: dict[str, Any] = {**given, "leave_out": [*given["leave_out"], *identifiers]}
    for name in (name for name in columns if name not in (*identifiers, *given["dates"])):
        values = frame[name].dropna()
        numeric = values.dtype.kind in _NUMERIC
        days = pd.to_datetime(values.astype(str), format="ISO8601", errors="coerce", utc=True)
        if not len(values) or (not numeric and days.isna().any() and values.nunique() > MOST_WORDS):
            found["leave_out"] = [*found["leave_out"], name]
            continue
        if not numeric and days.notna().all():
            found["dates"] = [*found["dates"], name]
        elif not numeric:
            found["words"] = "one-hot"
        if len(values) < len(frame) and given["gaps"] == "refuse":
            found["gaps"] = "median"
    needed = {key: value for key, value in found.items() if value != given[key]}
    shown = yaml.safe_dump(needed, default_flow_style=True, sort_keys=False, width=1e9)
    return f"; this table needs data: {shown.strip()}" if len(needed) > 1 else ""


def _encode(
    file: Path, frame: pd.DataFrame, columns: list[str], words: str, dates: Sequence[str], gaps: str
) -> tuple[Floats, list[Facts], list[str]]:
    """Return columns as numbers, those of words as one of 0 and 1 for each word.

    Returns
    -------
    x : ndarray of float64 [n, d]
        Empty cells are NaN. Numbers far from 0, such as seconds since 1970, would lose their digits in float32.
    facts : list of dict
        The source of each, see `flray.data.types.DataSet.columns`.
    told : list of str
        A report's notes on it.
    """
    if not columns:
        raise DataError(f"data set table: {file} has no column to learn from; give data.columns")
    made: list[Array] = []
    facts: list[Facts] = []
    for name in columns:
        values = frame[name]
        if name in dates:
            made.append(_days(file, name, values))
            facts.append({"column": name, "unit": "days since 1970"})
        elif values.dtype.kind in _NUMERIC:
            made.append(values.to_numpy(dtype=np.float64, na_value=np.nan))
            facts.append({"column": name})
        elif values.dtype.kind == "M":
            raise DataError(
                f"data set table: column {name!r} of {file} has dates; data.dates: [{name}] learns from "
                f"them as days, data.leave_out: [{name}] leaves it out"
            )
        elif words == "refuse":
            raise DataError(
                f"data set table: column {name!r} of {file} is no column of numbers; data.leave_out: "
                f"[{name}] leaves it out, data.words: one-hot makes a column of each of its words, "
                f"data.dates: [{name}] takes it for dates"
            )
        else:
            found = _one_hot(file, name, values)
            made += found.values()
            facts += [{"column": name, "word": word} for word in found]
    check_cells(file, len(frame), len(made))
    x = np.stack(made, axis=1, dtype=np.float64)
    empty = np.zeros(x.shape, dtype=bool) if gaps == "refuse" else np.isnan(x)
    for row, column in np.argwhere(~(np.abs(x) <= np.finfo(np.float32).max) & ~empty):
        remedy = "" if not np.isnan(x[row, column]) else ", or let data.gaps fill it (median)"
        raise DataError(
            f"data set table: column {facts[column]['column']!r} of {file} is empty, infinite or above "
            f"3.4e38 in row {row + 1}; fill it, take the row away or take another unit{remedy}"
        )
    texts = list(dict.fromkeys(one["column"] for one in facts if "word" in one))
    blank = next((name for name in texts if gaps == "refuse" and frame[name].isna().any()), None)
    if blank is not None:
        row = int(np.flatnonzero(frame[blank].isna())[0])
        raise DataError(
            f"data set table: column {blank!r} of {file} is empty in row {row + 1}; with another "
            "data.gaps an empty word is none of its column's words"
        )
    told = []
    if texts:
        count = sum("word" in one for one in facts)
        told = [f"columns of words: {len(texts)} (as {count} of 0 and 1)"]
    if days := [name for name in columns if name in dates]:
        told += [f"columns of dates: {len(days)} (in days)"]
    return x, facts, told


def _days(file: Path, name: str, values: pd.Series) -> Array:
    """Return dates as days since 1970, float64 [n]; empty ones are NaN."""
    import pandas as pd

    found = pd.Series(pd.NaT, index=values.index, dtype="datetime64[ns, UTC]")
    if values.dtype.kind not in _NUMERIC:
        found = pd.to_datetime(values, format="ISO8601", errors="coerce", utc=True)
    wrong = np.flatnonzero(found.isna() & values.notna())
    if len(wrong):
        raise DataError(
            f"data set table: column {name!r} of {file} has {str(values.iloc[wrong[0]])[:40]!r} in row "
            f"{wrong[0] + 1}, which is not a date such as 2026-11-26; write dates so, or take the "
            "column out of data.dates"
        )
    days = (found - pd.Timestamp("1970-01-01", tz="UTC")) / pd.Timedelta(days=1)
    return days.to_numpy(dtype=np.float64)


def _one_hot(file: Path, name: str, values: pd.Series) -> dict[str, Array]:
    """Return for each word of a column, in alphabetical order, which rows hold it, float32 [n]."""
    texts = values.map(str, na_action="ignore")
    known = sorted(set(texts.dropna()))
    if not known:
        raise DataError(
            f"data set table: column {name!r} of {file} has no words in any row; data.leave_out: [{name}]"
        )
    if len(known) > MOST_WORDS:
        raise DataError(
            f"data set table: column {name!r} of {file} has {len(known)} different words, and data.words: "
            f"one-hot takes at most {MOST_WORDS}; data.leave_out: [{name}], or join rare ones"
        )
    return {word: (texts == word).to_numpy(dtype=np.float32) for word in known}


def _fill(file: Path, facts: list[Facts], domains: Sequence[Domain], gaps: str, fit: str) -> None:
    """Fill empty cells in place from training rows."""
    everybody = _typical(np.concatenate([one.train_x for one in domains]), gaps)
    if np.isnan(everybody).any():
        column = facts[int(np.flatnonzero(np.isnan(everybody))[0])]["column"]
        raise DataError(
            f"data set table: column {column!r} of {file} is empty in all training rows; "
            f"data.leave_out: [{column}]"
        )
    for one in domains:
        own = _typical(one.train_x, gaps) if fit == "domain" else everybody
        filling = np.where(np.isnan(own), everybody, own)  # a domain without any takes everybody's
        _tell(facts, {"fill": filling}, one.name if fit == "domain" else "")
        for values in (one.train_x, one.test_x):
            np.copyto(values, filling, where=np.isnan(values))


def _typical(training: Array, gaps: str) -> Array:
    """Return a value for the empty cells of each column, NaN if the column has none to take it from."""
    if gaps == "zero":
        return np.zeros(training.shape[1])
    typical = np.nanmedian if gaps == "median" else np.nanmean
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of columns without values
        found: Array = typical(training.astype(np.float64), axis=0)
    return found


def _standardise(
    pairs: Sequence[tuple[Array, Array]], columns: Flags | None = None
) -> dict[str, Array]:
    """Scale training and test parts in place by mean and deviation of the training parts together; return these."""
    training = np.concatenate([train for train, _ in pairs]).astype(np.float64)
    mean, std = training.mean(0), training.std(0)
    std[training.min(0) == training.max(0)] = 1.0
    if columns is not None:
        mean[~columns], std[~columns] = 0.0, 1.0
    for values in itertools.chain.from_iterable(pairs):
        values[:] = (values - mean) / std
    return {"mean": mean, "std": std}


def _tell(facts: list[Facts], values: dict[str, Array], domain: str = "") -> None:
    """Add values of columns of numbers to their facts, if they are a domain's under its name."""
    for kind, array in values.items():
        for one, value in zip(facts, array.tolist(), strict=True):
            if "word" not in one:
                one[kind] = {**one.get(kind, {}), domain: value} if domain else value


def _single(domain: Domain) -> Domain:
    """Return a domain whose numbers are float32, as networks take them."""
    return Domain(
        **{
            part: one.astype(np.float32) if getattr(one, "dtype", None) == np.float64 else one
            for part, one in vars(domain).items()
        }
    )


def _targets(file: Path, frame: pd.DataFrame, columns: list[str], target: str) -> Array:
    """Return the columns to predict, numbers or flags."""
    for name in columns:
        if frame[name].dtype.kind not in _NUMERIC:
            raise DataError(
                f"data set table: column {name!r} of {file} is no column of numbers; name another in data.label, "
                "or write its values as numbers"
            )
    y, _, _ = _encode(file, frame, columns, "refuse", (), "refuse")
    if target == "numbers":
        return y
    for row, column in np.argwhere((y != 0) & (y != 1)):
        raise DataError(
            f"data set table: column {columns[column]!r} of {file} has {y[row, column]:g} in row {row + 1}; "
            "a label of several is 0 or 1 in each row"
        )
    return y.astype(np.uint8)


def _check_other_than_label(
    file: Path, frame: pd.DataFrame, columns: list[str], label: str, number: bool
) -> None:
    """Refuse a column that says the same as the label: a value for each class, or a number times and plus another."""
    classes = frame[label].nunique()
    for name in columns:
        if classes < 2 or frame[name].nunique() != classes:
            continue
        if (
            frame[name].dtype.kind in _NUMERIC and abs(frame[name].corr(frame[label])) > 1 - 1e-12
            if number
            else frame.groupby([name, label]).ngroups == classes
        ):
            raise DataError(
                f"data set table: column {name!r} of {file} says the same as the label {label!r} in every "
                "row, so it would be learnt from; leave it out with data.columns, or take it away"
            )
