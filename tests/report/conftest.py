"""A sweep's folder as two methods on two partitions with two seeds leave it, made by hand: every number is known."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from flray.config.loader import load
from flray.metrics import score_metric
from flray.records import directory
from flray.results import ResultSet, Trial
from flray.results.export import export_runs, kept_results, read_export
from flray.results.load import load_folder
from flray.results.study import Study
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs
from tests.helpers import Settings
from tests.tuning.helpers import begin, leave


def studied(values: dict[str, dict[int, float]], place: str = "") -> Study:
    return Study(place, "global/common/accuracy", values)


FINAL = {("none", "CIFAR-10"): (0.70, 0.72), ("full", "CIFAR-10"): (0.80, 0.84)}
FINAL |= {("none", "CIFAR-100"): (0.50, 0.52), ("full", "CIFAR-100"): (0.50, 0.50)}


SETTINGS = """
paper:
  {name: fedskc, table: table5, title: modules, rows: modules, clients: null,
   measures: {top1: auto}, departures: [other data], printed: {
     modules: {
       none: {method: fedavg, setting: "dirichlet:0.2,ablation:none"},
       full: {method: fedskc, setting: "dirichlet:0.2,ablation:lcl+gda+gpr"}},
     data: {CIFAR-10: {dataset: cifar10}, CIFAR-100: {dataset: cifar100}}}}
experiment:
  {name: made, rounds: 4, data: digits-sklearn, model: lenet, algorithm: fedskc,
   partition: {name: iid, clients: 2}, tracking: {uri: null}}
arms:
  modules: {none: {algorithm: {name: fedskc, lcl: false}}, full: {}}
  data: {CIFAR-10: {}, CIFAR-100: {partition.clients: 3}}
sweep: {seeds: [0, 1]}
"""
Edited = Callable[[Callable[[dict[str, Any]], object]], ResultSet]


def plain(config: Settings) -> None:
    """Take the paper's table out of a configuration, so that the sweep has a row per setting."""
    config["paper"] = None


def kept_copy(source: ResultSet, folder: Path) -> ResultSet:
    """Keep the runs in a file, and return its results."""
    export_runs(source, folder / "kept.csv")
    return kept_results(read_export(folder / "kept.csv"))


@pytest.fixture
def content() -> Settings:
    return settings()


def settings() -> Settings:
    return dict(yaml.safe_load(SETTINGS))


@pytest.fixture
def sweep(swept: Path, tmp_path: Path) -> Path:
    """The sweep's folder, for one test; accuracy rises by 0.1 a round to the values of `FINAL`."""
    return shutil.copytree(swept, tmp_path / "made" / "001")


@pytest.fixture
def source(sweep: Path) -> ResultSet:
    return load_folder(sweep)


@pytest.fixture
def edited(sweep: Path) -> Edited:
    """A function that reads the sweep again with another configuration."""

    def edit(change: Callable[[dict[str, Any]], object]) -> ResultSet:
        path = sweep / directory.CONFIG
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        change(config)
        path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        return load_folder(sweep)

    return edit


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sweep(tmp_path_factory.mktemp("made"), settings())


def make_sweep(folder: Path, content: Settings) -> Path:
    """Write a sweep's trials into an empty folder, and return the folder."""
    config = resolve_sweep(load(content))
    begin(config, folder)
    directory.update(folder, status="finished")
    metric = score_metric(config.sweep.metric, "global/common/accuracy")
    for point in trial_specs(config, enumerate_settings(config)):
        final = FINAL[point.setting["arms.modules"], point.setting["arms.data"]][point.seed]
        rounds = [metrics_of(final - 0.1 * before) for before in (3, 2, 1, 0)]
        _beside(leave(folder, point, config, rounds, metric=metric, sha256="ab" * 32).path)
    return folder


def metrics_of(value: float) -> dict[str, float]:
    """Return the metrics of a round with a mean accuracy."""
    accuracies = dict.fromkeys(("score", "global/common/accuracy", "global/local/accuracy"), value)
    clients = {"a": value + 0.05, "b": value - 0.05}
    each = {f"global/local/accuracy/client/{name}": one for name, one in clients.items()}
    of_method = {"fedskc/e_k/client/a": 0.6, "fedskc/e_k/client/b": 0.4, "train/steps": 300.0}
    costs = {"bytes/up": 1e6, "bytes/down": 2e6, "time/round": 1.5, "memory/client": 2.0**20 * 100}
    return accuracies | each | of_method | costs


def _beside(folder: Path) -> None:
    """Write what is kept beside the metrics."""
    random = np.random.default_rng(0)
    own = {"domain": "d", "test": 2}
    clients = [{**own, "name": "a", "train": [5, 1]}, {**own, "name": "b", "train": [1, 9]}]
    origins = {"dataset": "digits-sklearn", "classes": ["0", "1"], "origins": {"d": "real"}}
    (folder / "partition.json").write_text(json.dumps({**origins, "clients": clients}))
    correlation, labels = np.eye(2, dtype=np.float16)[None].repeat(2, 0), np.tile([0, 1], 12)
    np.savez(folder / "portrait-before.npz", correlation=correlation * 0)
    arrays = {"correlation": correlation, "names": np.array(["a", "b"])}
    arrays |= {"client": np.repeat([0, 1], 12), **dict.fromkeys(("labels", "predicted"), labels)}
    arrays |= {"features": random.normal(size=(24, 4)).astype(np.float16)}
    arrays |= {"layers": np.array(["features.conv", "classifier"]), "personal": np.zeros(2, bool)}
    arrays |= {"distance": np.array([[0.1, 0.2], [0.3, 0.4]], dtype=np.float32)}
    np.savez(folder / "portrait.npz", **arrays)


def one_round(method: str, seed: int, metric: str, **values: float) -> Trial:
    history = pd.DataFrame({"round": [1], **{name: [value] for name, value in values.items()}})
    named = f"{method}{seed}", {"algorithm": method}, seed
    return Trial(*named, "finished", metric, history, method, Path())


def of_trials(trials: list[Trial]) -> ResultSet:
    experiment = {"data": "random", "model": "mlp", "algorithm": "fedavg"}
    return ResultSet("x", trials, load({"experiment": experiment}).model_dump(mode="json"))
