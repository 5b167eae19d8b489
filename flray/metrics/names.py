"""Metric names: one convention, their parts in words, what MLflow accepts, and whether lower is better.

``<view>/<scope>/<metric>`` is a mean over clients or the value of the one global model, for example
``global/common/accuracy`` or ``personal/local/accuracy``; ``<view>/<scope>/<metric>/client/<name>``
is one client's value; ``time/<phase>`` (seconds), ``time/samples_per_second`` (of training, by all
clients together) and ``bytes/<direction>`` are costs.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence

from flray.errors import DataError

VIEWS_IN_WORDS: Mapping[str, str] = {
    "global/common": "the global model on the common test set",
    "global/local": "the global model on each client's test part, mean over clients; with the client's "
    "own running statistics where aggregation.buffers is local",
    "global/validation": "the global model on each client's validation samples, mean over clients "
    "(evaluation.validation keeps them)",
    "personal/local": "each client's own model on its test part, mean over clients",
    "personal/others": "each client's own model on the others' test parts, mean over clients (evaluation.others=true)",
    "personal/pooled": "each client's own model on all test parts together, mean over clients (evaluation.pooled=true)",
    "personal/validation": "each client's own model on its validation samples, mean over clients "
    "(evaluation.validation keeps them)",
    "global/unseen": "the global model on the test part of each client that takes no part in training, "
    "mean over them (participation.unseen keeps them out)",
    "adapted/unseen": "the global model after evaluation.adapt_steps optimiser steps on the training "
    "samples of each client that takes no part in training, on its test part, mean over them",
    "online/local": "a method's further model, such as Fed-CO2's online one, on each client's test part",
    "offline/local": "a method's further model, such as Fed-CO2's offline one, on each client's test part",
}
"""Whose models on which data."""
MEASURES_IN_WORDS: Mapping[str, str] = {
    "accuracy": "share of samples that are classified right",
    "loss": "mean loss; less is better",
    "r2": "regression: share of the variance that is explained; below 0 it is worse than the mean",
    "rmse": "regression: root of the mean squared error, of a table with data.scale: standard in standard deviations",
    "mae": "regression: mean absolute error, in the same unit",
    "topK": "share of samples whose class is among the K likeliest (evaluation.top_k=5: top5)",
    "auc": "two classes: area under the ROC curve; multi-label: mean over the labels, as of the next three",
    "sensitivity": "two classes: share of the positive class that is found (the report names it)",
    "specificity": "two classes: share of the other class that is left alone",
    "f1": "two classes: harmonic mean of precision and sensitivity, of the positive class",
    "dice": "segmentation: overlap with the true structure; dice_NAME of one of several",
    "hausdorff": "segmentation: largest distance of the borders; less is better; hausdorff_NAME of one of several",
    "hausdorff95": "segmentation: 95th percentile of that distance; less is better; hausdorff95_NAME of one of several",
}
"""Measures; the data set decides which of them apply."""
SUFFIXES_IN_WORDS: Mapping[str, str] = {
    "/std": "standard deviation over clients",
    "/worst": "the client that is served worst",
    "/worst10": "mean of the tenth of the clients that is served worst",
    "/client/NAME": "one client's value",
}
"""Suffixes of a mean over clients."""
OTHERS_IN_WORDS: Mapping[str, str] = {
    "auto": "the method's main test value: global/common or personal/local, in the task's first measure",
    "validation": "the same models and measure on validation samples; what a sweep that chooses takes by default",
    "train/NAME": "what is tracked in training, such as train/loss, mean over clients",
}
"""Other names that a sweep can choose by."""


def is_validation(metric: str) -> bool:
    """Return whether a metric is measured on validation samples."""
    return "validation" in metric.split("/")


def is_test(metric: str) -> bool:
    """Return whether a metric is measured on test data; ``auto`` is."""
    return metric == "auto" or (
        metric.split("/")[0] in ("global", "personal", "adapted", "online", "offline")
        and not is_validation(metric)
    )


VIEWS = tuple(VIEWS_IN_WORDS)
"""Whose models on which data: the start of the names of all evaluations, in the order of tables."""
TEST_VIEWS = tuple(view for view in VIEWS if not view.endswith("/validation"))
PRIMARY_VIEWS = {"global": "global/common", "personal": "personal/local"}
ALIKE = ("global/local", "personal/local")
"""How global and personal models are compared: each on every client's test part, mean over clients."""

#: MLflow's longest name of a metric, parameter or tag, in characters.
LONGEST_NAME = 250
_REFUSED = re.compile(r"[^/\w.\- :]")


def clean_name(name: str) -> str:
    """Return `name` as MLflow takes it; a name that is fine comes back unchanged.

    Refused characters become ``_``, empty and dotted path steps go, and a name that is too long
    ends in eight hexadecimal digits of its hash so that two long names stay different.

    Parameters
    ----------
    name : str
        Steps joined by ``/``.

    Raises
    ------
    ValueError
        If the cleaned name is empty.
    """
    steps = [step for step in _REFUSED.sub("_", name).split("/") if step and set(step) != {"."}]
    cleaned = "/".join(steps)
    if not cleaned:
        raise ValueError(f"a metric needs a name; found {name!r}")
    if len(cleaned) > LONGEST_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        cleaned = f"{cleaned[: LONGEST_NAME - 9]}_{digest}"
    return cleaned


def primary_metric_name(views: tuple[str, ...], metric: str, common: bool = True) -> str:
    """Return the name of a method's primary metric, which progress, early stopping and tables use.

    Parameters
    ----------
    views : tuple of str
        The views that the method evaluates, the primary one first: ``global`` or ``personal``.
    metric : str
        The task's metric.
    common : bool
        Whether all clients test the same global model; if not, each one tests it with its local
        statistics.
    """
    view = PRIMARY_VIEWS[views[0]] if common or views[0] != "global" else ALIKE[0]
    return f"{view}/{metric}"


def check_clients(names: Sequence[str]) -> None:
    """Refuse clients that would share the names of their metrics.

    Parameters
    ----------
    names : sequence of str
        The clients', which are made of their domains'.

    Raises
    ------
    DataError
        Naming the first two that MLflow takes for one.
    """
    first: dict[str, str] = {}
    for name in names:
        cleaned = clean_name(f"client/{name}")
        if cleaned in first:
            raise DataError(
                f"the clients {first[cleaned]!r} and {name!r} have one name in MLflow, "
                f"{cleaned.removeprefix('client/')!r}: a metric's name holds letters, digits, "
                "spaces and _ - . : alone; rename one of their domains"
            )
        first[cleaned] = name


_SCOPES = {
    **dict.fromkeys(("global", "personal", "adapted", "online", "offline"), 2),
    **dict.fromkeys(("train", "own", "others", "pooled"), 1),
}
"""Steps before the measure in a metric's name, by its first step."""
_SHARES = ("accuracy", "top", "auc", "sensitivity", "specificity", "f1", "dice")
_LOWER = ("loss", "hausdorff", "hours", "seconds", "time", "bytes", "memory")
_LOWER_ENDS = ("error", "loss", "rmse", "mae")


def measure_name(metric: str) -> str:
    """Return a metric's measure: ``"dice"`` of ``"personal/local/dice/client/A"``."""
    parts = metric.split("/")
    if parts[0] in ("own", "others", "pooled") and len(parts) > 1 and parts[1] in _SCOPES:
        return measure_name("/".join(parts[1:]))
    return parts[min(_SCOPES.get(parts[0], 0), len(parts) - 1)]


def lower_is_better(metric: str) -> bool:
    """Tell whether a metric, by its tracked name or its measure alone, is better the lower it is."""
    measure = measure_name(metric)
    return ">=" in metric or measure.startswith(_LOWER) or measure.endswith(_LOWER_ENDS)


def is_share(metric: str) -> bool:
    """Tell whether a metric, by its tracked name or its measure alone, is a share, which is shown in percent.

    A measure of an evaluation is a share unless lower is better. Other tracked metrics, such as
    ``train/...`` and ``time/...``, are shares only if they are named after such a measure.
    """
    if lower_is_better(metric):
        return False
    evaluated = "/" not in metric or _SCOPES.get(metric.split("/")[0], 0) == 2
    parts = metric.split("/")
    own = parts[0] in ("own", "others", "pooled") and parts[1] not in _SCOPES
    return evaluated or own or measure_name(metric).startswith(_SHARES)
