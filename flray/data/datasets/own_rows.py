"""Samples of one's own with a label, a domain and perhaps a part each: their classes, training and test parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from flray.data.arrays import Array
from flray.data.types import Domain
from flray.errors import DataError
from flray.rng import numpy_generator

_TRAINING, _TEST = ("train", "training"), ("test", "testing")
_EVIDENT = (
    ("0", "1"),
    ("-1", "1"),
    ("n", "y"),
    ("no", "yes"),
    ("false", "true"),
    ("neg", "pos"),
    ("negative", "positive"),
)

_TRUTH = (("no", "n", "off"), ("yes", "y", "on"))
TaskName = Annotated[
    Literal["classification", "binary"],
    Field(description="binary: two classes, measured by AUC, sensitivity, specificity and F1 too"),
]
Positive = Annotated[
    bool | str | int | float | None,
    Field(
        description="task binary: the class that is to be found, such as the ill; null: the evident one "
        "of 0 and 1, no and yes, false and true, negative and positive"
    ),
]


def classes_of(
    name: str, values: Sequence[Any], where: str, task: str = "classification", positive: Any = None
) -> list[Any]:
    """Return the classes in the order of their numbers; the positive one of a binary task is the last.

    Parameters
    ----------
    name : str
        The data set's.
    values : sequence
        The label of each sample, of any type.
    where : str
        Where the labels stand, for messages.
    task : str
        The data set's.
    positive : str or number, optional
        The positive class of a binary task, as the user names it.

    Raises
    ------
    DataError
        If there is one class, the labels are fractions, or it is not clear which class is positive.
    """
    numeric = all(isinstance(one, int | float) for one in values)
    fraction = next((one for one in values if numeric and not float(one).is_integer()), None)
    if fraction is not None:
        raise DataError(
            f"data set {name}: {where} holds fractions such as {fraction}, which are not classes; name "
            f"a column of classes, or divide the numbers into some (pandas.cut)"
        )
    found: list[Any] = sorted(set(values) if numeric else {str(one) for one in values})
    if len(found) < 2:
        raise DataError(
            f"data set {name}: {where} has {len(found)} class{'es' * (not found)}; two at least are needed"
        )
    if task != "binary":
        if positive is not None:
            raise DataError(
                f"data set {name}: data.positive is {positive}, which only a binary task has; add "
                "task: binary, or leave it out"
            )
        return found
    if len(found) > 2:
        raise DataError(
            f"data set {name}: a binary task has 2 classes, and {where} has {len(found)}; "
            "task: classification, or labels of two"
        )
    names = [_in_words(one) for one in found]
    evident = next((last for first, last in _EVIDENT if {first, last} == set(names)), None)
    wanted = evident if positive is None else _in_words(positive)
    if isinstance(positive, bool):  # YAML reads yes and no so
        wanted = next((one for one in names if one in _TRUTH[positive]), wanted)
    if wanted not in names:
        raise DataError(
            f"data set {name}: {where} has the classes {found[0]} and {found[1]}, and "
            + ("which is positive is not evident" if positive is None else f"not {positive}")
            + f"; write data.positive: {found[0]} or data.positive: {found[1]}"
        )
    return found if names[1] == wanted else found[::-1]


def _in_words(label: Any) -> str:
    """Return a class as it is compared with what a user writes, for example ``1`` for 1.0."""
    return f"{label:g}" if isinstance(label, float) else str(label).strip().lower()


@dataclass(frozen=True)
class Rows:
    """Samples before they are cut.

    Attributes
    ----------
    name : str
        The data set's.
    x : ndarray [n, ...]
        The samples.
    labels : sequence
        The class of each, of any one type that can be sorted.
    domains : sequence of str
        The domain of each.
    parts : sequence of str or None
        ``train`` or ``test`` of each, where the data say so.
    label : str
        The column of the labels, for messages.
    task : str
        The data set's.
    positive : str or number, optional
        As for `classes_of`.
    """

    name: str
    x: Array
    labels: Sequence[Any]
    domains: Sequence[str]
    parts: Sequence[str] | None = None
    label: str = "label"
    task: str = "classification"
    positive: Any = None


def domains_of(
    rows: Rows, share: float, seed: int, where: str
) -> tuple[list[Domain], tuple[str, ...]]:
    """Return the domains, by name, and the names of the classes.

    Parameters
    ----------
    rows : Rows
        The samples.
    share : float
        Of each class of a domain for test, where there are no parts; one at least in each part where
        a class has two samples of a domain.
    seed : int
        Which ones.
    where : str
        For messages.

    Raises
    ------
    DataError
        If a part is neither train nor test, a domain has no sample of one, or the labels are not
        classes of the task.
    """
    labels = f"column {rows.label!r} of {where}"
    found = classes_of(rows.name, rows.labels, labels, rows.task, rows.positive)
    number = {one: place for place, one in enumerate(found)}
    named = isinstance(found[0], str)
    y = np.array([number[str(one) if named else one] for one in rows.labels], dtype=np.int64)
    of_domain = np.array(rows.domains)
    test = _test_rows(rows, y, of_domain, share, seed, where)
    domains = []
    for name in sorted(set(rows.domains)):
        parts = []
        for part, chosen in (("training", ~test), ("test", test)):
            places = np.flatnonzero((of_domain == name) & chosen)
            if not len(places):
                raise DataError(
                    f"data set {rows.name}: {name!r} of {where} has no {part} samples; take it away, "
                    f"or join it with another"
                )
            parts += [np.ascontiguousarray(rows.x[places]), y[places]]
        domains.append(Domain(name, "real", *parts))
    return domains, tuple(str(one) for one in found)


def _test_rows(
    rows: Rows, y: Array, of_domain: Array, share: float, seed: int, where: str
) -> Array:
    test = np.zeros(len(y), dtype=bool)
    if rows.parts is not None:
        said = np.array([one.lower() for one in rows.parts])
        wrong = sorted(set(said.tolist()) - {*_TRAINING, *_TEST})
        if wrong:
            raise DataError(
                f"data set {rows.name}: {where} has the part {wrong[0]!r}; only train and test are known"
            )
        return np.isin(said, _TEST)
    for name in sorted(set(rows.domains)):
        for label in range(int(y.max()) + 1):
            places = np.flatnonzero((of_domain == name) & (y == label))
            key = f"{rows.name}/split/{name}/{label}"
            order = numpy_generator(seed, "data", extra=key).permutation(places)
            test[order[: min(max(round(share * len(places)), 1), max(len(places) - 1, 0))]] = True
    return test
