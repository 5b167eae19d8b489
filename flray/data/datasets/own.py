"""Custom images in folders of classes; and the labels of custom data."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from flray.data.datasets.embedded import ChosenDomains, SampleCap, Seed, select_domains
from flray.data.sources import image_sets, images
from flray.data.sources.archives import Source
from flray.data.types import Array, DataSet, Rows
from flray.errors import DataError
from flray.registry import register_dataset, tasks

_TRAINING, _TEST = ("train", "training"), ("test", "testing")
_NEGATIVE = ("0", "-1", "n", "no", "false", "neg", "negative")
_POSITIVE = ("1", "1", "y", "yes", "true", "pos", "positive")
_TRUTH = (("no", "n", "off"), ("yes", "y", "on"))
_OF_TABLES = "classes numbers flags"


def _tasks_of(targets: str) -> list[str]:
    """Return the tasks that have one of these kinds of targets."""
    kinds = targets.split()
    return [n for n in tasks.names() if getattr(tasks.outline(n), "target", "") in kinds]


def _check_task(targets: str, name: str) -> str:
    """Refuse a task that has other targets."""
    able = _tasks_of(targets)
    if name not in able:
        raise PydanticCustomError(
            "task",
            "{found} is none of the tasks of these data: {able} (flray list tasks)",
            {"found": name, "able": ", ".join(able)},
        )
    return name


_TASKS = "what is learnt (flray list tasks); binary: two classes, measured by AUC, sensitivity, specificity and F1 too"
TaskName = Annotated[
    str,
    AfterValidator(partial(_check_task, "classes")),
    Field(
        description=_TASKS,
        json_schema_extra=lambda field: field.update(enum=[*_tasks_of("classes")]),
    ),
]
TableTask = Annotated[
    str,
    AfterValidator(partial(_check_task, _OF_TABLES)),
    Field(
        description=f"{_TASKS}; regression: numbers; multi-label: columns of 0 and 1",
        json_schema_extra=lambda field: field.update(enum=[*_tasks_of(_OF_TABLES)]),
    ),
]
Positive = Annotated[
    bool | str | int | float | None,
    Field(
        description="task binary: the class that is to be found, such as the ill; null: the evident one "
        "of 0 and 1, no and yes, false and true, negative and positive"
    ),
]


class Labelling(NamedTuple):
    """The labels of custom data: what their messages name, and how they become classes.

    Attributes
    ----------
    name : str
        The name of the data set.
    where : str
        The origin of the samples.
    column : str or None
        The column of the labels; None if they are names of folders.
    task : str
        The task of the data set.
    positive : str or number, optional
        The positive class of a binary task, as the user names it.
    """

    name: str
    where: str
    column: str | None
    task: str
    positive: Any

    def refused(self, problem: str) -> DataError:
        """Return the error of a problem with the data."""
        return DataError(f"data set {self.name}: {problem}")

    def classes(self, values: Sequence[Any]) -> list[Any]:
        """Return the classes in the order of their numbers; the positive one of a binary task is the last.

        Parameters
        ----------
        values : sequence
            The label of each sample, of any type.

        Raises
        ------
        DataError
            If there is one class, the labels are fractions, or it is not clear which class is positive.
        """
        where = self.where if self.column is None else f"column {self.column!r} of {self.where}"
        numeric = all(isinstance(one, int | float) for one in values)
        fraction = next((one for one in values if numeric and not float(one).is_integer()), None)
        if fraction is not None:
            raise self.refused(
                f"{where} holds fractions such as {fraction}, which are not classes; name a column of classes, "
                "divide the numbers into some (pandas.cut), or in a table write data.task: regression"
            )
        found: list[Any] = sorted(set(values) if numeric else {str(one) for one in values})
        if len(found) < 2:
            count = f"{len(found)} class{'es' * (not found)}"
            raise self.refused(f"{where} has {count}; two at least are needed")
        if self.task != "binary":
            if self.positive is not None:
                raise self.refused(
                    f"data.positive is {self.positive}, which only a binary task has; add task: binary, or leave it out"
                )
            return found
        if len(found) > 2:
            raise self.refused(
                f"a binary task has 2 classes, and {where} has {len(found)}; task: classification, or labels of two"
            )
        names, given = [_in_words(one) for one in found], self.positive
        evident = next(
            (p for n, p in zip(_NEGATIVE, _POSITIVE, strict=True) if {n, p} == set(names)), None
        )
        wanted = evident if given is None else _in_words(given)
        if isinstance(given, bool):  # YAML reads yes and no so
            wanted = next((one for one in names if one in _TRUTH[given]), wanted)
        if wanted not in names:
            raise self.refused(
                f"{where} has the classes {found[0]} and {found[1]}, and "
                + ("which is positive is not evident" if given is None else f"not {given}")
                + f"; write data.positive: {found[0]} or data.positive: {found[1]}"
            )
        return found if names[1] == wanted else found[::-1]

    def encode(self, values: Sequence[Any]) -> tuple[Rows, tuple[str, ...]]:
        """Return the number of each sample's class, and the names of the classes; see `classes`."""
        found = self.classes(values)
        number = {one: place for place, one in enumerate(found)}
        named = isinstance(found[0], str)
        y = np.array([number[str(one) if named else one] for one in values], dtype=np.int64)
        return y, tuple(str(one) for one in found)

    def cut(
        self, y: Array, domains: Sequence[str], parts: Sequence[str] | None, share: float, seed: int
    ) -> list[tuple[str, Rows, Rows]]:
        """Return the domains by name, each with the rows of its training and of its test part.

        Parameters
        ----------
        y : ndarray [n] or [n, k]
            The class of each sample, or its targets.
        domains : sequence of str
            The domain of each.
        parts : sequence of str or None
            ``train`` or ``test`` for each sample; None if the data have no such column.
        share : float
            The share of each class of a domain for test, if `parts` is None. Each part has at least
            one sample if a class has two samples in a domain.
        seed : int
            Decides which samples are for test.

        Raises
        ------
        DataError
            If a part is neither train nor test, or a domain has no sample of one.
        """
        alike = y if y.ndim == 1 else np.zeros(len(y), dtype=np.int64)
        names = sorted(set(domains))
        # Numbers, because an array of texts has the length of the longest for each.
        place = {domain: number for number, domain in enumerate(names)}
        of_domain = np.fromiter((place[domain] for domain in domains), np.int64, len(y))
        if parts is None:
            test = images.choose_test(self.name, names, of_domain, alike, share, seed)
        else:
            said = [one.lower() for one in parts]
            wrong = sorted(set(said) - {*_TRAINING, *_TEST})
            if wrong:
                raise self.refused(
                    f"{self.where} has the part {wrong[0]!r}; only train and test are known"
                )
            test = np.array([one in _TEST for one in said])
        made = []
        for number, domain in enumerate(names):
            inside = of_domain == number
            rows = np.flatnonzero(inside & ~test), np.flatnonzero(inside & test)
            for part, chosen in zip(("training", "test"), rows, strict=True):
                if not len(chosen):
                    raise self.refused(
                        f"{domain!r} of {self.where} has no {part} samples; take it away, or join it with another"
                    )
            made.append((domain, *rows))
        return made


def _in_words(label: Any) -> str:
    """Return a class as text that is compared with the user's text, for example ``1`` for 1.0."""
    return f"{label:g}" if isinstance(label, float) else str(label).strip().lower()


LAYOUT = "CLASS/*.jpg, DOMAIN/CLASS/*.jpg, or train/CLASS/*.jpg and test/CLASS/*.jpg"
_HELD = ("val", "valid", "validation")
_OTHER_IMAGES = (".tif", ".tiff", ".heic", ".avif", ".jp2", ".dcm")


@register_dataset("folder")
def folder(
    root: Path,
    *,
    path: Annotated[str, Field(description=f"folder or zip archive with {LAYOUT}")],
    size: image_sets.Size = 32,
    seed: Seed = 0,
    domains: ChosenDomains = None,
    samples: SampleCap = None,
    test: image_sets.TestShare = 0.2,
    mapped: image_sets.Mapped = None,
    task: TaskName = "classification",
    positive: Positive = None,
) -> DataSet:
    """Photographs in a folder per class; a folder above these is a domain, so a client, or train and test.

    Raises
    ------
    DataError
        If the images do not all lie equally deep, a class or domain has too few, or it is not clear
        which class of a binary task is positive.
    """
    store = image_sets.find_store(root, Source("folder", "your own files"), path, LAYOUT)
    files = store.items()
    for item in (one for one in files if one.path.lower().endswith(_OTHER_IMAGES)):
        raise DataError(
            f"data set folder: {store.where / item.path} is not read; write it as .png, or take it away"
        )
    images = [item for item in files if item.is_image]
    table, names, classes = _table(store, images, task, positive)
    chosen = select_domains("folder", names, domains)
    kept = np.flatnonzero(np.isin(table.domains, [names.index(name) for name in chosen]))
    table = table.rows(kept)
    numbers = np.array([chosen.index(names[d]) for d in table.domains.tolist()], dtype=np.int64)
    table = image_sets.Table(table.items, table.labels, numbers, table.test)
    spec = image_sets.ImageSet("folder", chosen, classes, size, seed, samples, mapped, task)
    if table.test is None:
        table = image_sets.split(table, test, spec, store)
    return image_sets.image_dataset(spec, table, store, root)


def _table(
    store: image_sets.Store,
    images: Sequence[image_sets.Item],
    task: str,
    positive: str | float | None,
) -> tuple[image_sets.Table, tuple[str, ...], tuple[str, ...]]:
    """Return every image with its class, domain and part; the names of the domains and of the classes."""
    depths = Counter(item.path.count("/") for item in images)
    if set(depths) - {1, 2} or len(depths) != 1:
        odd = min(images, key=lambda item: depths[item.path.count("/")]).path if images else ""
        raise DataError(
            f"data set folder: {store.where} has "
            + (f"images at several depths, such as {odd}" if images else "no images")
            + f"; lay them out as {LAYOUT}"
        )
    steps = [item.path.split("/") for item in images]
    named = [step[-2] for step in steps]
    classes = tuple(Labelling("folder", str(store.where), None, task, positive).classes(named))
    labels = np.array([classes.index(name) for name in named], dtype=np.int64)
    above = [step[0] if len(step) == 3 else "photos" for step in steps]
    said = {name.lower() for name in above}
    if len(steps[0]) == 3 and said <= {*_TRAINING, *_TEST, *_HELD}:
        if not said.isdisjoint(_TEST) and not said.isdisjoint(_HELD):
            raise DataError(
                f"data set folder: {store.where} has folders for validation and for test; move the first into the one "
                "for training, from which evaluation.validation: 0.2 takes samples, or take it away"
            )
        test = np.array([name.lower() not in _TRAINING for name in above])
        same = np.zeros(len(images), dtype=np.int64)
        return image_sets.Table(list(images), labels, same, test), ("photos",), classes
    names = tuple(sorted(set(above)))
    numbers = np.array([names.index(name) for name in above], dtype=np.int64)
    return image_sets.Table(list(images), labels, numbers), names, classes
