"""Names and tags of trials in MLflow: ``fedskc · digits5 · α=0.2 · seed 1``."""

from __future__ import annotations

from collections.abc import Mapping

from flray.config import arms
from flray.config.arms import flatten_setting, format_value, registry_paths
from flray.config.experiment import Config, Experiment
from flray.records.events import FIRST, PHASE, TUNED
from flray.tuning.space import TrialSpec


def title(point: TrialSpec) -> str:
    """Return a trial's name: that of its setting, and the seed."""
    return f"{setting_title(point)} · seed {point.seed}"


def setting_title(point: TrialSpec) -> str:
    """Return the name of a trial's setting: method, data, other varied settings."""
    named = {
        path.removeprefix(arms.PREFIX): str(value)
        for path, value in point.setting.items()
        if path.startswith(arms.PREFIX)
    }
    experiment = point.experiment
    method = named.pop("method", experiment.algorithm.name)
    parts = [method, *([] if "data" in named else [experiment.data.name]), *named.values()]
    rest = {
        path: value
        for path, value in flatten_setting(point.setting).items()
        if not path.startswith(arms.PREFIX) and path not in registry_paths()
    }
    said = set(named) or any(
        path.startswith("partition") for path in rest
    )  # arms besides the method name the differences
    if not said:
        parts += partition_label(experiment)
    parts += [f"{path.rsplit('.', 1)[-1]}={format_value(value)}" for path, value in rest.items()]
    return " · ".join(dict.fromkeys(parts))


def partition_label(experiment: Experiment) -> list[str]:
    """Return a short label of the partition, empty for one client per domain."""
    name, options = experiment.partition.name, experiment.partition.options
    if "alpha" in options:
        return [f"α={options['alpha']:g}"]
    if "classes_per_client" in options:
        return [f"{options['classes_per_client']} classes each"]
    return [] if name == "domains" else [name]


def tags(config: Config, experiment: Experiment | None = None) -> dict[str, str]:
    """Return tags to find runs by: paper and table of the sweep, method, variant and data of a trial."""
    found: dict[str, str] = {}
    if config.paper is not None:
        found |= {"paper": config.paper.name, "table": config.paper.table}
    if experiment is not None:
        found |= {"method": experiment.algorithm.name, "data": experiment.data.name}
        if "variant" in experiment.algorithm.options:
            found["variant"] = str(experiment.algorithm.options["variant"])
    return found


def phase_tags(point: TrialSpec) -> dict[str, str]:
    """Return tags that tell tuning from comparison, and which parameters were tuned."""
    found: dict[str, str] = {PHASE: point.phase}
    if point.compared is not None:
        tuned = {path: v for path, v in point.setting.items() if path not in point.compared}
        found[TUNED] = ",".join(flatten_setting(tuned))
    return found


def varied_params(setting: Mapping[str, object]) -> dict[str, str]:
    """Return a trial's setting as parameters that sort first."""
    return {
        f"{FIRST}{path.removeprefix(arms.PREFIX)}": str(value)
        for path, value in flatten_setting(setting).items()
    }
