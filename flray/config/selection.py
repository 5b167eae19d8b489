"""Whether a sweep chooses settings, and whether it chooses by validation or by test data."""

from collections.abc import Collection, Mapping
from typing import Any

from flray.config.experiment import Config, Experiment
from flray.config.sections import SETS_VALIDATION_APART
from flray.metrics import AUTO, VALIDATION, is_test

VALIDATION_SHARE = 0.2
"""``evaluation.validation`` of sweeps that choose, unless their file has one."""

PLACES = ("data", "partition", "split", "shift", "subset", "evaluation")
"""Settings under which other numbers are asked for: nobody chooses among them."""


def chooses(config: Mapping[str, Any]) -> bool:
    """Return whether a sweep chooses anything.

    Arms, methods without further options, and data are compared and not chosen; a space of anything
    else, a scheduler and a search choose.

    Parameters
    ----------
    config : mapping
        The resolved configuration of the sweep.
    """
    sweep, space = config.get("sweep") or {}, config.get("space") or {}
    return bool(sweep.get("scheduler") or sweep.get("tune")) or any(
        _is_choice(path.removeprefix("experiment."), domain) for path, domain in space.items()
    )


def selects_on_test(config: Mapping[str, Any]) -> str:
    """Return a warning line if a sweep chooses by a test metric, otherwise an empty text.

    Parameters
    ----------
    config : mapping
        As for `chooses`.
    """
    sweep = config.get("sweep") or {}
    where = "sweep.tune.metric" if sweep.get("tune") else "sweep.metric"
    metric = str((sweep.get("tune") or sweep).get("metric", "auto"))
    if not chooses(config) or not is_test(metric):
        return ""
    return (
        f"this sweep selects on test data ({where}: {metric}), which makes the value of what it chooses too good; "
        f"evaluation.validation=0.2 keeps samples to choose by, with {where}=validation"
    )


def choice_line(config: Mapping[str, Any]) -> str:
    """Return a line that names the data a sweep chooses by; empty if it chooses nothing.

    Parameters
    ----------
    config : mapping
        As for `chooses`.
    """
    share = config["experiment"]["evaluation"]["validation"]
    if not chooses(config) or selects_on_test(config):
        return selects_on_test(config)
    kept = f", for which {share:.3g} of each client's training samples are kept" if share else ""
    return f"this sweep chooses by validation values{kept}, and reports test values"


def choose_on_validation(config: Config) -> Config:
    """Return a sweep that chooses by validation values if its file does not name a metric.

    If the sweep chooses and names no ``sweep.metric``, the metric becomes ``validation``. It needs a
    share of each client's training data: the file or its split sets the share, otherwise flray does.
    If arms or the space change the share, or the file sets it to 0, the sweep selects on test data
    and prints a line that says so.

    Parameters
    ----------
    config : Config
        The sweep.
    """
    named = (config.sweep.tune or config.sweep).model_fields_set
    if "metric" in named or not chooses(config.model_dump(mode="json")):
        return config
    experiment, metric = config.experiment, VALIDATION
    if not _keeps_validation(experiment) or _vary(config, ("split", "evaluation")):
        evaluation = experiment.evaluation
        given = "validation" in evaluation.model_fields_set or experiment.split != "official"
        if given or _vary(config, ("split", "evaluation")):
            metric = AUTO
        else:
            evaluation = evaluation.model_copy(update={"validation": VALIDATION_SHARE})
            experiment = experiment.model_copy(update={"evaluation": evaluation})
    change: dict[str, object] = {"metric": metric}
    if config.sweep.tune is not None:
        change = {"tune": config.sweep.tune.model_copy(update=change)}
    sweep = config.sweep.model_copy(update=change)
    return config.model_copy(update={"experiment": experiment, "sweep": sweep})


def _keeps_validation(experiment: Experiment) -> bool:
    split = experiment.split
    return (
        experiment.evaluation.validation > 0
        or split in SETS_VALIDATION_APART
        or (isinstance(split, tuple) and split[1] > 0)
    )


def _vary(config: Config, parts: tuple[str, ...]) -> bool:
    """Return whether arms, their combinations or the space change one of some parts of the experiment."""
    paths = [
        *config.space,
        *(path for one in config.arms.values() for arm in one.values() for path in arm),
        *(path for rule in config.sweep.where for path in rule.settings),
    ]
    return any(is_place(path, parts) for path in paths)


def is_place(path: str, parts: Collection[str] = PLACES) -> bool:
    """Return whether a path belongs to some parts of the experiment, by default to `PLACES`."""
    return path.removeprefix("experiment.").split(".")[0] in parts


def _is_choice(path: str, domain: Mapping[str, Any]) -> bool:
    if is_place(path):
        return False
    values = next(iter(domain.values()))
    if path not in ("algorithm", "algorithm.name") or len(values) < 2:
        return len(values) > 1
    names = [one["name"] if isinstance(one, Mapping) else one for one in values]
    return len(set(names)) < len(names)
