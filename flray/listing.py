"""The table behind ``flray list papers``: what each suite runs, whether its data are there, how long it takes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flray import registry, suites
from flray.config import Experiment
from flray.data.cache import data_root
from flray.errors import FlrayError
from flray.loading import load
from flray.reading import read_with_base
from flray.tuning.space import Point, points, resolved, settings

_SUBSET = 256
"""Training samples per domain of a timed round."""


@dataclass(frozen=True)
class Suite:
    """One suite.

    Attributes
    ----------
    name, title : str
        ``fedco2/table1`` and what it shows.
    runs : int
        Settings times seeds.
    data : tuple of str
        Data sets by name.
    problem : str
        Why it cannot be run now, empty if it can.
    hours : float or None
        Of all runs one after another on this machine; None where not timed.
    """

    name: str
    title: str
    runs: int
    data: tuple[str, ...]
    problem: str
    hours: float | None = None


def listed(names: str | None = None, timed: bool = False) -> Iterator[Suite]:
    """Yield the suites.

    Parameters
    ----------
    names : str, optional
        Only those whose name starts with this.
    timed : bool
        Play a small round of every suite that can be run, to estimate its hours.
    """
    for name, path in suites.files().items():
        if names is None or name.startswith(names):
            yield _described(name, path, timed)


def _described(name: str, path: Path, timed: bool) -> Suite:
    content = read_with_base(path)
    title = str((content.get("paper") or {}).get("title") or "the paper's question on data that can be had offline")
    runs, named = suites.run_count(content), tuple(suites.data_names(content))
    missing = suites.unknown_names(content)
    if missing:
        return Suite(name, title, runs, named, f"unknown here: {', '.join(missing)}")
    try:
        config = resolved(load(path))
        trials = points(config, settings(config))
    except FlrayError as error:
        return Suite(name, title, runs, named, str(error).splitlines()[0])
    data = {trial.experiment.data.name: trial.experiment for trial in trials}
    problem = next((text for one in data.values() if (text := _absent(_key(one)))), "")
    hours = estimate(trials) if timed and not problem else None
    return Suite(name, title, len(trials), tuple(data), problem, hours)


def estimate(trials: list[Point]) -> float:
    """Return the hours of all runs of a sweep one after another, from one small round of its first run.

    The round has few samples; its seconds per training sample times the samples of all rounds of all runs are the
    estimate. Methods that do more per sample than the first one take longer.
    """
    from flray.federation.cluster import InlineFederation
    from flray.federation.world import make_world

    small = trials[0].experiment.model_copy(update={"subset": _SUBSET, "rounds": 2})
    world = make_world(small)
    federation = InlineFederation(world, lambda line: None)
    try:
        federation.step()  # the first round also loads and compiles
        begun = time.perf_counter()
        steps = federation.step().metrics["train/steps"]
        seconds = time.perf_counter() - begun
    finally:
        federation.close()
    per_sample = seconds / max(1.0, steps * small.local.batch_size)
    return per_sample * sum(map(_samples, trials)) / 3600


def _samples(trial: Point) -> float:
    """Return how many training samples a run goes through."""
    from flray.federation.world import dataset_of

    experiment = trial.experiment
    dataset = dataset_of(experiment)
    share = experiment.participation.fraction if experiment.participation.clients is None else 1.0
    size = sum(len(domain.train_y) for domain in dataset.domains)
    return float(size * share * experiment.local.epochs * experiment.rounds)


def _key(experiment: Experiment) -> tuple[str, str]:
    return experiment.data.name, experiment.data.model_dump_json()


@cache
def _absent(key: tuple[str, str]) -> str:
    """Return the data set's own message where its files are not there."""
    name, options = key[0], {k: v for k, v in json.loads(key[1]).items() if k != "name"}
    try:
        registry.datasets.get(name)(data_root(), **options)
    except FlrayError as error:
        return str(error).splitlines()[0]
    return ""
