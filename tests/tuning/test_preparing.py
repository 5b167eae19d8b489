from typing import Any

import numpy as np
import pytest

from flray.config.loader import load
from flray.config.sweep import Grid
from flray.data.loading import load_dataset
from flray.federation.building import build_spec
from flray.federation.ray_backend import placement
from flray.federation.ray_backend.nodes import Gpu, ResourceSurvey
from flray.federation.spec import SharedDataset
from flray.tuning.resources import TrialResources
from flray.tuning.space import first_values
from tests.messages import refused
from tests.tuning.helpers import specs

GIB = 2**30


def _bundles(
    content: dict[str, Any],
    available: dict[str, float],
    trials: int,
    concurrency: int | str = "auto",
    **resources: Any,
) -> list[dict[str, float]]:
    content["experiment"]["resources"] = resources
    return TrialResources(available, trials, concurrency).bundles(load(content).experiment)


@pytest.mark.parametrize(
    ("cpus", "trials", "concurrency", "actors"),
    [
        (2, 8, "auto", 1),  # two trials at once, one actor each
        (2, 1, "auto", 2),  # the only trial gets all
        (16, 2, "auto", 4),  # eight would fit, four clients want no more
        (6, 2, "auto", 3),
        (8, 8, 2, 4),
        (1, 8, "auto", 1),
    ],
)
def test_the_machine_is_dealt_out_to_the_trials(
    content: dict[str, Any], cpus: int, trials: int, concurrency: int | str, actors: int
) -> None:
    assert _bundles(content, {"CPU": cpus}, trials, concurrency) == [
        *([{}] if actors > 1 else []),
        *[{"CPU": 1.0}] * actors,
    ]


def test_steps_of_many_trials_leave_the_driver_time(content: dict[str, Any]) -> None:
    content["experiment"]["resources"] = {"executor": "inline"}

    def seconds(cpus: int, trials: int, concurrency: int | str = "auto") -> float:
        resources = TrialResources({"CPU": cpus}, trials, concurrency)
        resources.bundles(load(content).experiment)
        return resources.step_seconds

    assert seconds(2, 10_000) == 1.0
    assert seconds(4_000, 10_000) == pytest.approx(4_000 * 0.03)
    assert seconds(4_000, 50) == seconds(4_000, 10_000, concurrency=50) == pytest.approx(1.5)


def test_bundles_of_a_trial_in_one_process_and_of_shared_gpus(content: dict[str, Any]) -> None:
    assert _bundles(content, {"CPU": 4}, 8, executor="inline") == [{"CPU": 1.0}]
    assert _bundles(content, {"CPU": 4}, 8) == [{"CPU": 1.0}]
    assert _bundles(content, {"CPU": 4}, 8, actors=1) == [{}, {"CPU": 1.0}]  # asked for
    assert _bundles(content, {"CPU": 16, "GPU": 1}, 8) == [{"CPU": 1.0, "GPU": 0.25}]
    halves = _bundles(content, {"CPU": 16, "GPU": 2}, 8, actors=2, gpus_per_actor=0.5)
    assert halves == [{}, *[{"CPU": 1.0, "GPU": 0.5}] * 2]
    content["experiment"]["faults"] = {"round_timeout": 60}  # nobody else could cut a client off
    assert _bundles(content, {"CPU": 4}, 8) == [{}, {"CPU": 1.0}]


def test_what_does_not_fit_is_refused_with_one_line_each(content: dict[str, Any]) -> None:
    content["space"] = {
        "participation.clients": {"grid": [2, 9]},
        "resources.actors": {"grid": [1, 3]},
    }
    content["experiment"]["resources"] = {}
    _, made = specs(content)
    refused(TrialResources({"CPU": 2.0}, len(made), "auto").check, made)


@pytest.mark.parametrize("searching", [False, True])
def test_a_batch_is_measured_unless_a_larger_one_serves_it(
    content: dict[str, Any], monkeypatch: pytest.MonkeyPatch, searching: bool
) -> None:
    """A search suggests settings while trials hold the GPUs, so there the largest batch serves all."""
    measured: list[int] = []

    def survey(spec: Any, nodes: Any) -> ResourceSurvey:
        measured.append(spec.config.local.batch_size)
        return ResourceSurvey(GIB, measured[-1] * GIB // 64, (Gpu("a", 0, 20 * GIB),), "", (1.0,))

    monkeypatch.setattr(placement, "survey_nodes", survey)
    monkeypatch.setattr(
        placement, "node_resources", lambda: [{"id": "a", "name": "a", "CPU": 8.0, "GPU": 1.0}]
    )
    sizes = [33, 64, 256, 1024]
    content |= {"space": {"local.batch_size": {"grid": sizes}}, "sweep": {"seeds": [0]}}
    content["experiment"]["resources"] = {}
    _, points = specs(content)
    resources = TrialResources({"CPU": 8.0, "GPU": 1.0}, 4, "auto", searching=searching)
    resources.check(points)
    assert measured == ([1024] if searching else [1024, 256, 64])
    shares = [resources.bundles(point.experiment)[-1]["GPU"] for point in points]
    assert shares == ([1.0] * 4 if searching else [0.25, 0.25, 0.25, 1.0])
    resources.replan(4, {"CPU": 4.0, "GPU": 1.0})
    assert measured[len(measured) // 2 :] == measured[: len(measured) // 2]


def test_the_largest_batch_of_a_search_is_checked_first() -> None:
    domains = {"local.batch_size": [16, 64, 32], "local.lr": [0.1, 0.2]}
    space = {path: Grid(grid=tuple(values)) for path, values in domains.items()}
    assert first_values(space) == {"local.batch_size": 64, "local.lr": 0.1}


def test_shared_data_make_the_same_world_without_a_copy(content: dict[str, Any]) -> None:
    experiment = load(content).experiment
    shared = SharedDataset.of(load_dataset(experiment.data.name, experiment.data.options))
    one, two = build_spec(experiment), build_spec(experiment, shared)
    assert two.data.x is shared.samples.x
    assert np.array_equal(one.data.x, two.data.x) and np.array_equal(one.data.y, two.data.y)
    assert one.data.fingerprint == two.data.fingerprint
    assert one.data.partition_fingerprint == two.data.partition_fingerprint
    assert all(domain.train_x.nbytes == 0 for domain in shared.outline.domains)
    apart = two.without_samples()
    assert apart.data.x.nbytes == 0 and apart.data.shape == two.data.shape
    assert apart.with_samples(shared.samples).data.x is shared.samples.x
