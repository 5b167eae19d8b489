"""Every suite is expanded, and the first run of its smoke form is run, on stand-ins of the papers' data sets.

The stand-ins have the names, domains, classes and tasks of the real ones, so names of domains and
options of methods that a suite gets wrong are found without any download.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray import registry
from flray.config import suites
from flray.config.components import ModelChoice
from flray.config.experiment import Config, Experiment
from flray.config.loader import load
from flray.config.yaml_files import read_with_base
from flray.data.datasets import camelyon, digit_archives, domainnet, fundus, office_pacs_vlcs
from flray.data.types import DataSet, Domain
from flray.federation.building import build_spec
from flray.federation.federation import inline_federation
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs

FILES = suites.files(Path(__file__).parents[2] / "search_spaces" / "papers")
# Domains, classes, shape without the size.
SHAPES: dict[str, tuple[Sequence[str], int, tuple[int, ...]]] = {
    "digits5": (("mnist", "svhn", "usps", "synthdigits", "mnistm"), 10, (3, 28)),
    "digits5-local": (("mnist", "usps", "optdigits", "synth", "mnistm"), 10, (3, 32)),
    "mnist": (("mnist",), 10, (1, 28)),
    "cifar-10": (("cifar-10",), 10, (3, 32)),
    "cifar10-jpeg": (("cifar10-jpeg",), 10, (3, 32)),
    "cifar-100": (("cifar-100",), 100, (3, 32)),
    "tiny-imagenet": (("tiny-imagenet",), 200, (3, 64)),
    "fashion-mnist": (("fashion-mnist",), 10, (1, 28)),
    "emnist": (("emnist",), 47, (1, 28)),
    "fc100": (("fc100",), 100, (3, 32)),
    "office-caltech10": (("amazon", "caltech", "dslr", "webcam"), 10, (3, 64)),
    "office31": (("amazon", "dslr", "webcam"), 31, (3, 64)),
    "office-home": (("art", "clipart", "product", "real-world"), 65, (3, 64)),
    "domainnet": (("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), 10, (3, 64)),
    "camelyon17": (("centre0", "centre1", "centre2", "centre3", "centre4"), 2, (3, 32)),
    "fundus": (("domain1", "domain2", "domain3", "domain4", "domain5", "domain6"), 2, (3, 32)),
    "eeg": (("AlexMI", "BNCI2014_001", "BNCI2015_004", "Zhou2016"), 2, (36,)),
}
TASKS = {"fc100": "few-shot", "camelyon17": "binary", "eeg": "binary", "fundus": "segmentation"}


def _stand_in(name: str) -> Callable[..., DataSet]:
    names, classes, shape = SHAPES[name]
    task = TASKS.get(name, "classification")

    def dataset(
        root: Path,
        *,
        size: int = shape[-1],
        domains: tuple[str, ...] | None = None,
        samples: int = 130,
        seed: int = 0,
        path: str | None = None,
    ) -> DataSet:
        count = max(samples if samples < 1000 else 130, 4 * classes)
        full = (*shape[:-1], size, size) if len(shape) > 1 else shape
        made = []
        for domain in [one for one in names if domains is None or one in domains]:
            parts: list[Any] = []
            for part, n in (("train", 6 * count), ("test", count)):
                generator = np.random.default_rng([seed, len(made), part == "test"])
                x = (
                    generator.integers(0, 256, (n, *full), dtype=np.uint8)
                    if len(full) == 3
                    else generator.normal(size=(n, *full)).astype(np.float32)
                )
                y = np.arange(n, dtype=np.int64) % classes
                if task == "few-shot":  # classes of the test part do not occur in training
                    y = y % 60 if part == "train" else 60 + y % 40
                if task == "segmentation":
                    parts += [x, (generator.random((n, 2, size, size)) > 0.5).astype(np.uint8)]
                else:
                    parts += [x, y]
            made.append(Domain(domain, "random", *parts))
        coarse = tuple(label // 5 for label in range(classes)) if name == "cifar-100" else None
        channels = full[0] if len(full) == 3 else 1
        return DataSet(
            name,
            tuple(made),
            tuple(map(str, range(classes))),
            (0.5,) * channels,
            (0.5,) * channels,
            task=task,
            coarse=coarse,
        )

    dataset.__doc__ = "Return noise in the form of a paper's data set."
    return dataset


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put noise in the place of the papers' data sets."""
    registry.datasets.names()
    for name in SHAPES:
        monkeypatch.setitem(registry.datasets._entries, name, _stand_in(name))


def _loaded(name: str) -> Config:
    return resolve_sweep(load(FILES[name]))


def test_the_stand_ins_have_the_domains_of_the_real_sets() -> None:
    real: dict[str, Sequence[str]] = {
        "digits5": tuple(digit_archives.DOMAINS),
        "camelyon17": camelyon.CENTRES,
        "fundus": fundus.DOMAINS,
        "domainnet": tuple(domainnet.DOMAINS),
        "office31": tuple(office_pacs_vlcs.OFFICE31.domains),
        "office-caltech10": tuple(office_pacs_vlcs.OFFICE_CALTECH10.domains),
        "office-home": tuple(office_pacs_vlcs.OFFICE_HOME.domains),
    }
    assert {name: tuple(SHAPES[name][0]) for name in real} == {
        name: tuple(names) for name, names in real.items()
    }


@pytest.mark.parametrize("name", FILES)
def test_a_suite_is_expanded_to_as_many_runs_as_it_says(name: str) -> None:
    content = read_with_base(FILES[name])
    assert suites.unknown_names(content) == []
    assert set(suites.data_names(content)) <= set(SHAPES)
    config = _loaded(name)
    seeds = config.sweep.seeds
    config = config.model_copy(
        update={"sweep": config.sweep.model_copy(update={"seeds": seeds[:1]})}
    )
    made = trial_specs(config, enumerate_settings(config))
    assert len(made) * len(seeds) == suites.run_count(content)
    small = suites.smoke(config)
    axes = [
        set(one)
        for one in zip(
            *(p.setting.items() for p in trial_specs(small, enumerate_settings(small))), strict=True
        )
    ]
    assert axes == [set(one) for one in zip(*(p.setting.items() for p in made), strict=True)], (
        "smoke leaves arms out"
    )


def _narrow(experiment: Experiment) -> Experiment:
    """Return an experiment with narrow networks where they can be, and fewer samples where the domains are clients."""

    def choice(one: ModelChoice) -> ModelChoice:
        width = one.options.get("width")
        small = {} if width is None else {"width": 0.1 if isinstance(width, float) else 8}
        return one.model_copy(update={"options": {**one.options, **small}})

    subset = experiment.subset if experiment.partition.options.get("clients") else 30
    few = {"public_size": 16} if experiment.algorithm.options.get("public_size") else {}
    algorithm = experiment.algorithm.model_copy(
        update={"options": {**experiment.algorithm.options, **few}}
    )
    return experiment.model_copy(
        update={
            "subset": subset,
            "model": choice(experiment.model),
            "algorithm": algorithm,
            "models": {name: choice(one) for name, one in experiment.models.items()},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_the_first_run_of_a_suites_smoke_form(name: str) -> None:
    config = suites.smoke(_loaded(name))
    experiment = _narrow(trial_specs(config, enumerate_settings(config)[:1])[0].experiment)
    federation = inline_federation(build_spec(experiment), lambda line: None)
    try:
        metrics = federation.step().metrics
    finally:
        federation.close()
    assert metrics["train/steps"] > 0
    assert any(metric.startswith(("global/", "personal/")) for metric in metrics)
