"""Noise in the form of the papers' data sets: what ``--smoke`` runs on where the data are not here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from flray.data.datasets import class_folders, digits5, eeg, fundus, small_images
from flray.data.datasets.embedded import ChosenDomains, Seed, select_domains
from flray.data.types import Array, DataSet, Domain
from flray.errors import ConfigError, nearest
from flray.registry import register_dataset
from flray.rng import numpy_generator


@dataclass(frozen=True)
class Form:
    """The form of a data set: its domains, classes and shapes.

    Attributes
    ----------
    domains : sequence of str
        The names of the domains.
    classes : int
        The number of classes.
    shape : tuple of int
        The shape of a sample: channels, height and width of an image, or the length of a vector.
    task : str
        The learning task.
    public : bool
        Whether the set has public samples.
    """

    domains: Sequence[str]
    classes: int
    shape: tuple[int, ...]
    task: str = "classification"
    public: bool = False


FORMS: dict[str, Form] = {
    "camelyon17": Form(class_folders.CENTRES, 2, (3, 32, 32), "binary"),
    "cifar-10": Form(("cifar-10",), 10, (3, 32, 32)),
    "cifar-100": Form(("cifar-100",), 100, (3, 32, 32)),
    "cifar10-jpeg": Form(("cifar10-jpeg",), 10, (3, 32, 32)),
    "digits4": Form(small_images.FOUR, 10, (3, 32, 32)),
    "digits5": Form(tuple(small_images.DOMAINS), 10, (3, 28, 28)),
    "digits5-local": Form(tuple(digits5.ORIGINS), 10, (3, 32, 32), public=True),
    "domainnet": Form(tuple(class_folders.DOMAINNET.domains), 10, (3, 64, 64)),
    "eeg": Form(eeg.SOURCES, 2, (36,), "binary"),
    "emnist": Form(("emnist",), 47, (1, 28, 28)),
    "fashion-mnist": Form(("fashion-mnist",), 10, (1, 28, 28)),
    "fc100": Form(("fc100",), 100, (3, 32, 32), "few-shot"),
    "fundus": Form(fundus.DOMAINS, 2, (3, 32, 32), "segmentation"),
    "mnist": Form(("mnist",), 10, (1, 28, 28)),
    "office-caltech10": Form(tuple(class_folders.OFFICE_CALTECH10.domains), 10, (3, 64, 64)),
    "office-home": Form(tuple(class_folders.OFFICE_HOME.domains), 65, (3, 64, 64)),
    "office31": Form(tuple(class_folders.OFFICE31.domains), 31, (3, 64, 64)),
    "tiny-imagenet": Form(("tiny-imagenet",), 200, (3, 64, 64)),
}
"""By name; sizes of images are those that training is quick with."""
_TESTS, _PUBLIC = 130, 200
_UNSEEN = 40
"""Classes of a few-shot task that are for tests alone."""


@register_dataset("stand-in")
def stand_in(
    root: Path,
    *,
    of: Annotated[str, Field(description="the data set whose form it has")],
    size: Annotated[int | None, Field(ge=1, description="height and width of images")] = None,
    domains: ChosenDomains = None,
    samples: Annotated[
        int, Field(ge=1, description="training samples of each domain, at least")
    ] = 600,
    seed: Seed = 0,
) -> DataSet:
    """Return noise in the form of one of the papers' data sets: its domains, classes and task, nothing to learn.

    Parameters
    ----------
    root : Path
        Data cache; not used.
    of : str
        The other data set.
    size : int, optional
        Height and width of its images, by default small.
    domains : list of str, optional
        The domains to take.
    samples : int
        Training samples of each domain; more if it has many classes.
    seed : int
        The seed of the noise.
    """
    if of not in FORMS:
        raise ConfigError(
            "dataset.stand-in.of", repr(of), f"one of {', '.join(FORMS)}{nearest(of, FORMS)}"
        )
    form = FORMS[of]
    shape = form.shape if size is None or len(form.shape) == 1 else (form.shape[0], size, size)
    tests = max(_TESTS, 4 * form.classes)
    made = []
    for name in select_domains("stand-in", form.domains, domains):
        parts: list[Array] = []
        for part, n in (("train", max(samples, 6 * tests)), ("test", tests)):
            draw = numpy_generator(seed, "data", extra=f"stand-in/{of}/{name}/{part}")
            labels = np.arange(n, dtype=np.int64) % form.classes
            if form.task == "few-shot":
                seen = form.classes - _UNSEEN
                labels = labels % seen if part == "train" else seen + labels % _UNSEEN
            masks = (n, form.classes, *shape[1:])
            if len(shape) == 3:
                parts.append(draw.integers(0, 256, (n, *shape), dtype=np.uint8))
            else:
                parts.append(draw.standard_normal((n, *shape), dtype=np.float32))
            masked = form.task == "segmentation"
            parts.append((draw.random(masks) > 0.5).astype(np.uint8) if masked else labels)
        made.append(Domain(name, "random", *parts))
    drawn = numpy_generator(seed, "data", extra=f"stand-in/{of}/public")
    public = drawn.integers(0, 256, (_PUBLIC, *shape), dtype=np.uint8) if form.public else None
    channels = shape[0] if len(shape) == 3 else 1
    return DataSet(
        f"stand-in of {of}",
        tuple(made),
        tuple(map(str, range(form.classes))),
        (0.5,) * channels,
        (0.5,) * channels,
        public=public,
        task=form.task,
        coarse=tuple(label // 5 for label in range(form.classes)) if of == "cifar-100" else None,
    )
