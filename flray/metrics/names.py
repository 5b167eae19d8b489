"""Metric names: one convention, their parts in words, what MLflow accepts, and whether lower is better.

``<view>/<scope>/<metric>`` is a mean over clients or the value of the one global model, for example
``global/common/accuracy`` or ``personal/local/accuracy``; ``<view>/<scope>/<metric>/client/<name>``
is one client's value; ``time/<phase>`` (seconds), ``time/samples_per_second`` (of training, by all
clients together) and ``bytes/<direction>`` are costs.
"""

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from flray.errors import DataError

_WORDS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
VIEWS_IN_WORDS, MEASURES_IN_WORDS = _WORDS["views"], _WORDS["measures"]
SUFFIXES_IN_WORDS, OTHERS_IN_WORDS = _WORDS["suffixes"], _WORDS["others"]


def is_validation(metric: str) -> bool:
    """Return whether a metric is measured on validation samples."""
    return "validation" in metric.split("/")


def is_test(metric: str) -> bool:
    """Return whether a metric is measured on test data; ``auto`` is."""
    return metric == "auto" or (_steps_before(metric) == 2 and not is_validation(metric))


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
        Whether all clients test the same global model; if not, each one tests that of its network, or
        with its local statistics.
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
"""Steps before the measure in a metric's name, by its first step; of a method's further models, NAME/local, two."""
_SHARES = ("accuracy", "top", "auc", "sensitivity", "specificity", "f1", "dice")
_LOWER_ENDS = ("error", "loss", "rmse", "mae")
_LOWER = (*_LOWER_ENDS, "hausdorff", "hours", "seconds", "time", "bytes", "memory")


def _steps_before(metric: str) -> int:
    first, *rest = metric.split("/")
    return _SCOPES.get(first, 2 if rest[:1] == ["local"] else 0)


def measure_name(metric: str) -> str:
    """Return a metric's measure: ``"dice"`` of ``"personal/local/dice/client/A"``."""
    parts = metric.split("/")
    if parts[0] in ("own", "others", "pooled") and len(parts) > 1 and parts[1] in _SCOPES:
        return measure_name("/".join(parts[1:]))
    return parts[min(_steps_before(metric), len(parts) - 1)]


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
    evaluated = "/" not in metric or _steps_before(metric) == 2
    parts = metric.split("/")
    own = parts[0] in ("own", "others", "pooled") and parts[1] not in _SCOPES
    return evaluated or own or measure_name(metric).startswith(_SHARES)
