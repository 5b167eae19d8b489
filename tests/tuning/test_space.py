"""From a space to trials: settings and draws, names, resources, and data that trials share."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray import registry
from flray.config.arms import flatten_setting, label
from flray.config.components import DatasetChoice
from flray.config.loader import check_single, load
from flray.config.suites import smoke
from flray.config.sweep import Grid
from flray.data.loading import load_dataset
from flray.federation import SharedDataset
from flray.federation.building import build_spec
from flray.federation.ray_backend import placement
from flray.federation.ray_backend.nodes import Gpu, ResourceSurvey
from flray.records import JOURNAL, directory, read_events, rounds_of
from flray.tuning import space as spaces
from flray.tuning.resources import TrialResources
from flray.tuning.space import TrialSpec, enumerate_settings, resolve_sweep, trial_specs
from flray.tuning.trial_store import begin_setting, complete_settings
from tests.helpers import Settings, cases
from tests.messages import refused
from tests.tuning.helpers import begun, leave, specs

SPACES = sorted((Path(__file__).parents[2] / "search_spaces").glob("*.yaml"))


def _settings(content: Settings, space: dict[str, Any], **sweep: Any) -> list[dict[str, Any]]:
    content["space"], content["sweep"] = space, sweep
    return enumerate_settings(resolve_sweep(load(content)))


def test_each_sample_draws_anew_and_has_every_grid_value_once(content: Settings) -> None:
    grids = {"local.lr": {"grid": [0.1, 0.2]}, "local.epochs": {"grid": [1, 2, 3]}}
    both = [{"local.lr": lr, "local.epochs": e} for lr in (0.1, 0.2) for e in (1, 2, 3)]
    assert _settings(content, grids) == both
    space = {"local.epochs": {"grid": [1, 2]}, "local.lr": {"loguniform": [0.001, 1.0]}}
    found = _settings(content, space, samples=3)
    assert [s["local.epochs"] for s in found] == [1, 2] * 3
    lrs = [s["local.lr"] for s in found]
    assert lrs[0] == lrs[1] and lrs[2] == lrs[3] and len(set(lrs)) == 3
    assert len(_settings(content, {"local.batch_size": {"choice": [8, 16]}}, samples=30)) == 2


def test_draws_depend_on_the_sweeps_seed_and_path_alone(content: Settings) -> None:
    space = {"local.lr": {"uniform": [0.1, 0.2]}}
    alone = _settings(content, space, samples=4, seed=7)
    assert alone == _settings(content, space, samples=4, seed=7)
    assert alone != _settings(content, space, samples=4, seed=8)
    beside = _settings(content, {"local.epochs": {"randint": [1, 100]}, **space}, samples=4, seed=7)
    assert [s["local.lr"] for s in beside] == [s["local.lr"] for s in alone]
    assert _settings(content, space, samples=6, seed=7)[:4] == alone


def test_draws_have_the_distributions_they_are_named_after(content: Settings) -> None:
    space = {"local.lr": {"loguniform": [1e-4, 1.0]}, "local.momentum": {"uniform": [0.2, 0.6]}}
    space |= {"local.epochs": {"randint": [1, 4]}, "local.batch_size": {"choice": [8, 16]}}
    found = _settings(content, space, samples=2000)
    logs = np.log10([s["local.lr"] for s in found])
    assert logs.min() > -4 and logs.max() < 0
    assert abs(logs.mean() + 2) < 0.1 and abs(logs.std() - 4 / 12**0.5) < 0.05
    momenta = np.array([s["local.momentum"] for s in found])
    assert momenta.min() > 0.2 and momenta.max() < 0.6 and abs(momenta.mean() - 0.4) < 0.01
    assert {s["local.epochs"] for s in found} == {1, 2, 3}
    assert abs(np.mean([s["local.batch_size"] == 8 for s in found]) - 0.5) < 0.05


def test_every_seed_of_every_setting_is_a_trial(content: Settings) -> None:
    _, made = specs(content)
    expected = [("0001", 0.02, 0), ("0002", 0.02, 1), ("0003", 0.1, 0), ("0004", 0.1, 1)]
    assert [(p.number, p.setting["local.lr"], p.seed) for p in made] == expected
    assert [(p.number, p.experiment.local.lr, p.experiment.seed) for p in made] == expected
    assert made[2].label == "lr=0.1 seed=0"


def test_without_seeds_the_experiments_own_is_used(content: Settings) -> None:
    content["experiment"]["seed"], content["sweep"] = 5, {}
    assert resolve_sweep(load(content)).sweep.seeds == (5,)
    again = load(load(content), ["seed=6"])
    assert again.sweep.seeds == () and resolve_sweep(again).sweep.seeds == (6,)


@pytest.mark.parametrize("change", ["rounds=5", "sweep.metric=global/common/loss"])
def test_a_checked_sweep_keeps_what_follows_from_its_file(content: Settings, change: str) -> None:
    """Metric, validation samples and tunings are chosen unless they are written."""
    for sweep in ({}, {"tune": {}, "seeds": [0, 1, 2, 3]}):
        content["sweep"] = sweep
        assert resolve_sweep(load(load(content), [change])) == resolve_sweep(load(content, change))
        back = load(load(content, change), ["sweep.metric=auto"])
        assert resolve_sweep(back).sweep.mode == "max"


def test_one_run_of_a_sweeps_file_takes_the_way_that_is_said(content: Settings) -> None:
    content["experiment"]["seed"], several = 5, ["space={}", "sweep.seeds=[]"]
    for seeds, way in (([0, 5], several), ([7], several), ([5], ["space={}"])):
        content["sweep"] = {"seeds": seeds}
        refused(check_single, load(content), "x.yaml")
        check_single(load(content, way), "x.yaml")


def test_whole_components_can_vary(content: Settings) -> None:
    partitions = {"grid": ["domains", {"name": "iid", "clients": 3}]}
    content["space"] = {"partition": partitions, "model": {"grid": ["lenet"]}}
    _, made = specs(content)
    assert made[2].experiment.partition.options["clients"] == 3
    flat = {"partition": "iid", "partition.clients": 3, "model": "lenet"}
    assert flatten_setting(made[2].setting) == flat
    setting = {"algorithm": {"name": "fedprox", "mu": 0.1}, "local.lr": 0.123456}
    assert label(setting) == "fedprox mu=0.1 lr=0.1235"


def test_sweeps_that_make_no_sense_are_refused_in_one_line(content: Settings) -> None:
    for space in (
        *({"seed": {"grid": [1, 2]}}, {"output": {"grid": ["a", "b"]}}),
        *({"experiment.seed": {"grid": [1, 2]}}, {"experiment.tracking.uri": {"grid": [None]}}),
        {"local.lr": {"grid": [0.1]}, "experiment.local.lr": {"grid": [0.2]}},
    ):
        refused(_settings, content, space)
    refused(_settings, content, {"local.lr": {"uniform": [0.1, 0.2]}}, search="grid")
    refused(_settings, content, {"local.lr": {"grid": [0.1]}}, samples=4)
    refused(_settings, content, {}, search="optuna", samples=3)
    for scheduler in ("pbt", "ashaa", {"name": "median", "min_samples": 1}):
        given = {"scheduler": scheduler}
        for sweep in (given, {"tune": given}):
            refused(load, {**content, "sweep": sweep})
    # One line for each setting that is bad.
    content["space"] = {"local.momentum": {"grid": [0.0, 0.9]}, "local.lr": {"grid": [0.1]}}
    settings = [{"local.momentum": 1.5}, {"local.momentum": 0.5}, {"local.lr": -1.0}]
    refused(trial_specs, resolve_sweep(load({**content, "sweep": {"seeds": [0, 1]}})), settings)


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_every_space_that_comes_with_flray_can_be_run(path: Path) -> None:
    """Every setting is allowed, and drawn or listed once; the first and the last fit other digits."""
    config, made = specs(path)
    assert config.experiment.name == path.stem and path.read_text().startswith("# ")
    assert path.stem in ("quickstart", "tuned") or config.experiment.algorithm.name == path.stem
    assert len({point.experiment.model_dump_json() for point in made}) == len(made) >= 2
    # The only digits that need no file; they have no public data.
    digits = {"data": DatasetChoice.model_validate("digits-sklearn")}
    for point in (made[0], made[-1]):
        if "public" not in registry.algorithms.get(point.experiment.algorithm.name).needs:
            build_spec(point.experiment.model_copy(update=digits))
    small = smoke(config, ["digits5-local"])
    few = trial_specs(small, enumerate_settings(small))
    assert few and {one.experiment.rounds for one in few} == {2}
    for one in few:
        assert any(one.setting.items() <= other.setting.items() for other in made)


def varied(point: TrialSpec) -> dict[str, str]:
    """Return the parameters that sort first: the labels of arms."""
    return {name: v for name, v in spaces.setting_params(point).items() if name.startswith("_")}


def test_a_trial_is_called_by_method_data_what_differs_and_seed(content: Settings) -> None:
    content["experiment"]["partition"] = {"name": "dirichlet", "alpha": 0.2, "clients": 3}
    content["experiment"]["algorithm"] = "fedskc"
    config, made = specs(content)
    name = "fedskc · digits-sklearn · α=0.2 · lr=0.02"
    assert varied(made[1]) == {}
    assert spaces.setting_params(made[1])["seed"] == "1"
    tags = {"method": "fedskc", "data": "digits-sklearn", "variant": "paper", "setting": name}
    tags |= {"flray.phase": "comparison", "flray.varied": '{"local.lr": 0.02}'}
    assert spaces.setting_tags(config, made[1]) == tags


def test_arms_give_the_name_and_say_what_differs(content: Settings) -> None:
    content["space"] = {}
    content["paper"] = {"name": "fedskc", "table": "table5", "title": "x"}
    content["experiment"]["partition"] = {"name": "dirichlet", "alpha": 0.2, "clients": 3}
    variant = {"algorithm": {"name": "fedskc", "gda": False, "gpr": False}}
    fedavg, domains = {"method": {"fedavg": {}}}, {"Digits": {"partition": "domains"}}
    skew = {"skew": {"α = 0.3": {"partition.alpha": 0.3}}}
    for arms, name in (
        ({"method": {"LCL alone": variant}, "data": domains}, "LCL alone · Digits"),
        ({**fedavg, **skew}, "fedavg · digits-sklearn · α = 0.3"),
        (fedavg, "fedavg · digits-sklearn · α=0.2"),
    ):
        config, (point, *_) = specs({**content, "arms": arms})
        assert spaces.setting_title(point) == name
        assert spaces.sweep_tags(config) == {"paper": "fedskc", "table": "table5"}
        if "data" in arms:
            assert varied(point) == {"_method": "LCL alone", "_data": "Digits"}


@pytest.mark.parametrize("left", ["", '{"type":"start","ti'])
def test_a_resume_names_a_killed_setting(content: Settings, tmp_path: Path, left: str) -> None:
    config, (point, *_) = begun(content, tmp_path)
    journal = tmp_path / "settings" / point.key / JOURNAL
    journal.parent.mkdir(parents=True)
    journal.write_text(left)
    for _ in range(2):
        begin_setting(tmp_path, point, directory.read(tmp_path), config)
        assert [one["type"] for one in read_events(journal)] == ["start"]


def test_a_setting_s_last_means_are_the_table_s(content: Settings, tmp_path: Path) -> None:
    """Seeds may end at different rounds; then there is no mean of what a round costs."""
    content["sweep"] = {"seeds": [0, 1, 2]}
    config, points = begun(content, folder := tmp_path / "sweep")
    ends = [[0.2], [0.2, 0.4, 0.6], [0.3, 0.9]], ["finished", "finished", "failed"]
    for point, scores, status in zip(points, *ends, strict=False):
        rounds = [{"score": one, "bytes/up": 1.0} for one in scores]
        leave(folder, point, config, rounds, status=status)
    complete_settings(folder)
    means = rounds_of(read_events(folder / "settings" / points[0].key / JOURNAL))
    assert [means[n]["score"] for n in (1, 2, 3)] == pytest.approx([0.7 / 3, 0.5, 0.4])
    assert "bytes/up" in means[1] and "bytes/up" not in means[3]


GIB = 2**30


def _bundles(
    content: Settings, available: dict[str, float], trials: int = 8, **resources: Any
) -> list[dict[str, float]]:
    together = resources.pop("concurrency", "auto")
    content["experiment"]["resources"] = resources
    return TrialResources(available, trials, together).bundles(load(content).experiment)


@cases(
    "cpus, trials, concurrency, actors",
    "[2, 8, auto, 1], [2, 1, auto, 2], [16, 2, auto, 4], [6, 2, auto, 3], [8, 8, 2, 4], [1, 8, auto, 1]",
)
def test_the_machine_is_dealt_out_to_the_trials(
    content: Settings, cpus: int, trials: int, concurrency: int | str, actors: int
) -> None:
    """Two trials at once get an actor each, an only one all; and none more than its four clients want."""
    found = _bundles(content, {"CPU": cpus}, trials, concurrency=concurrency)
    assert found == [{}] * (actors > 1) + [{"CPU": 1.0}] * actors


def test_steps_of_many_trials_leave_the_driver_time(content: Settings) -> None:
    content["experiment"]["resources"] = {"executor": "inline"}

    def seconds(cpus: int, trials: int, concurrency: int | str = "auto") -> float:
        resources = TrialResources({"CPU": cpus}, trials, concurrency)
        resources.bundles(load(content).experiment)
        return resources.step_seconds

    assert seconds(2, 10_000) == 1.0
    assert seconds(4_000, 10_000) == pytest.approx(4_000 * 0.03)
    assert seconds(4_000, 50) == seconds(4_000, 10_000, concurrency=50) == pytest.approx(1.5)


def test_bundles_of_a_trial_in_one_process_and_of_shared_gpus(content: Settings) -> None:
    assert _bundles(content, {"CPU": 4}, executor="inline") == [{"CPU": 1.0}]
    assert _bundles(content, {"CPU": 4}) == [{"CPU": 1.0}]
    assert _bundles(content, {"CPU": 4}, actors=1) == [{}, {"CPU": 1.0}]  # asked for
    assert _bundles(content, {"CPU": 16, "GPU": 1}) == [{"CPU": 1.0, "GPU": 0.25}]
    halves = _bundles(content, {"CPU": 16, "GPU": 2}, actors=2, gpus_per_actor=0.5)
    assert halves == [{}, *[{"CPU": 1.0, "GPU": 0.5}] * 2]
    content["experiment"]["faults"] = {"round_timeout": 60}  # nobody else could cut a client off
    assert _bundles(content, {"CPU": 4}) == [{}, {"CPU": 1.0}]


def test_what_does_not_fit_is_refused_with_one_line_each(content: Settings) -> None:
    actors = {"resources.actors": {"grid": [1, 3]}}
    content["space"] = {"participation.clients": {"grid": [2, 9]}, **actors}
    content["experiment"]["resources"] = {}
    _, made = specs(content)
    refused(TrialResources({"CPU": 2.0}, len(made), "auto").check, made)


def test_an_unknown_metric_is_said_of_the_setting_that_names_it(content: Settings) -> None:
    _, made = specs(content)
    metrics = {"sweep.metric": "auto", "sweep.tune.metric": "accuracy"}
    refused(TrialResources({"CPU": 2.0}, len(made), "auto", metrics).check, made)


def test_the_end_that_is_not_drawn_may_be_beyond_the_setting(content: Settings) -> None:
    content["space"] = {"resources.queued": {"randint": [1, 17]}}  # at most 16
    assert load(content).space
    content["space"] = {"resources.queued": {"randint": [1, 18]}}
    refused(load, content)


@pytest.mark.parametrize("searching", [False, True])
def test_a_batch_is_measured_unless_a_larger_one_serves_it(
    content: Settings, monkeypatch: pytest.MonkeyPatch, searching: bool
) -> None:
    """A search suggests settings while trials hold the GPUs, so there the largest batch serves all."""
    measured: list[int] = []

    def survey(spec: Any, nodes: Any) -> ResourceSurvey:
        measured.append(spec.config.local.batch_size)
        return ResourceSurvey(GIB, measured[-1] * GIB // 64, (Gpu("a", 0, 20 * GIB),), "", (1.0,))

    node = {"id": "a", "name": "a", "CPU": 8.0, "GPU": 1.0}
    monkeypatch.setattr(placement, "survey_nodes", survey)
    monkeypatch.setattr(placement, "node_resources", lambda: [node])
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
    space = {"local.batch_size": Grid(grid=(16, 64, 32)), "local.lr": Grid(grid=(0.1, 0.2))}
    assert spaces.first_values(space) == {"local.batch_size": 64, "local.lr": 0.1}


def test_shared_data_make_the_same_world_without_a_copy(content: Settings) -> None:
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
