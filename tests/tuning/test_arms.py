"""Arms multiply with a space and the seeds; what stops and suggests settings compares and repeats them alike."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from flray.config.arms import flatten_setting, label
from flray.config.loader import check_single, load
from flray.config.suites import smoke
from flray.config.yaml_files import read_with_base
from flray.records import directory
from flray.tuning.space import TrialSpec, enumerate_settings, resolve_sweep, trial_specs
from flray.tuning.trial_store import TrialFolder
from flray.tuning.tuner import Asha, OptunaSearch
from tests.helpers import Settings
from tests.messages import refused
from tests.tuning.helpers import begin, specs
from tests.tuning.test_phases import run

CHOSEN = {"only": {"method": ["fccl", "prox"]}, "skip": [{"method": ["prox"], "data": ["iid"]}]}


@pytest.fixture
def armed(content: Settings) -> Settings:
    del content["space"]
    prox = {"algorithm": {"name": "fedprox", "mu": 0.5}, "local.lr": 0.2}
    iid, skewed = {"name": "iid", "clients": 3}, {"partition.clients_per_domain": 2}
    methods = {"fedavg": None, "prox": prox, "fccl": {"algorithm": "fcclplus"}}
    content["arms"] = {"method": methods, "data": {"iid": {"partition": iid}, "skewed": skewed}}
    return content


def test_arms_multiply_with_each_other_the_space_and_the_seeds(armed: Settings) -> None:
    _, made = specs({**armed, "space": {"local.epochs": {"grid": [1, 2]}}})
    assert len(made) == 3 * 2 * 2 * 2
    assert [p.setting["arms.method"] for p in made[::8]] == ["fedavg", "prox", "fccl"]
    prox, first = made[8 + 4].experiment, made[0].experiment
    assert prox.algorithm.name == "fedprox" and prox.algorithm.options["mu"] == 0.5
    assert prox.local.lr == 0.2 and first.local.lr == 0.05
    assert prox.partition.name == "domains" and prox.partition.options["clients_per_domain"] == 2
    assert first.partition.options["clients"] == 3
    assert label(made[-1].setting) == "fccl skewed epochs=2"
    flat = {"arms.method": "fedavg", "arms.data": "iid", "local.epochs": 1}
    assert flatten_setting(made[0].setting) == flat


def test_one_trials_settings_do_not_stay_for_the_next(armed: Settings) -> None:
    """Paths that lead into an arm's mapping change a copy of it."""
    config = resolve_sweep(load({**armed, "space": {"algorithm.mu": {"grid": [0.1, 0.2]}}}))
    chosen = config.sweep.model_copy(update={"only": {"method": ("prox",)}})
    config = config.model_copy(update={"sweep": chosen})
    before = config.model_dump()
    made = trial_specs(config, enumerate_settings(config))
    assert {one.experiment.algorithm.options["mu"] for one in made} == {0.1, 0.2}
    assert config.model_dump() == before


def test_only_and_skip_choose_among_the_arms(armed: Settings) -> None:
    armed["sweep"] |= CHOSEN
    found = [label(setting) for setting in enumerate_settings(resolve_sweep(load(armed)))]
    assert found == ["fccl iid", "fccl skewed", "prox skewed"]
    armed["sweep"]["skip"] = [{"data": ["iid", "skewed"]}]
    refused(resolve_sweep, load(armed))


def test_a_rule_changes_settings_of_the_combinations_it_names(armed: Settings) -> None:
    both = {"method": ["prox"], "data": ["skewed"]}
    armed["sweep"]["where"] = [
        {"arms": both, "settings": {"algorithm.mu": 5, "local.lr": 0.3}},
        {"arms": {"data": ["skewed"]}, "settings": {"local.momentum": 0.5}},
    ]

    def trials_of(*overrides: str, smaller: bool = False) -> dict[tuple[str, str], tuple[Any, ...]]:
        config, found = load(armed, overrides), {}
        for one in specs(smoke(config) if smaller else config)[1]:
            mu, local = one.experiment.algorithm.options.get("mu"), one.experiment.local
            key = one.setting["arms.method"], one.setting["arms.data"]
            found[key] = mu, local.lr, local.momentum
        return found

    found = trials_of()
    assert found["prox", "skewed"] == (5.0, 0.3, 0.5) and found["prox", "iid"] == (0.5, 0.2, 0.0)
    assert found["fedavg", "skewed"] == (None, 0.05, 0.5)
    assert trials_of("local.lr=0.4")["prox", "skewed"] == (5.0, 0.4, 0.5)
    assert trials_of("local.momentum=0.1")["prox", "skewed"] == (5.0, 0.3, 0.1)
    assert trials_of(smaller=True)["prox", "iid"][0] == 0.5
    rule = {"arms": {"method": ["fedavg"]}, "settings": {"algorithm": "scaffold"}}
    armed["sweep"]["where"], armed["arms"] = [rule], {"method": {"fedavg": None}}
    refused(load, armed, ["algorithm.mu=1"])


def test_mistakes_are_refused(armed: Settings) -> None:
    for path, value in (
        ("sweep.where", [{"arms": {"method": ["fcc"]}, "settings": {"local.lr": 1}}]),
        ("sweep.where", [{"arms": {"method": ["fccl"]}, "settings": {"output": "x"}}]),
        *(("sweep.only", {"metod": ["fccl"]}), ("sweep.only", {"method": ["fcc"]})),
        *(("arms.method.prox.algorithm.nu", 1), ("arms.method.prox.nothing", 1)),
        *(("arms.method.prox.output", "x"), ("sweep.search", "optuna")),
        ("arms.method.prox.space", {"local.lr": {"grid": [0.1]}}),
        *(("arms.empty", {}), ("algorithm.mu", 1)),
        *(("sweep.only", {"method": []}), ("sweep.skip", [{"method": []}])),
        ("sweep.where", [{"arms": {"method": []}, "settings": {"local.lr": 1}}]),
        ("arms.method.prox.local.lr.decay", 1),
    ):
        refused(specs, armed, [(path, value)])


def test_the_command_line_wins_over_the_arms(armed: Settings) -> None:
    _, made = specs(armed, ["local.lr=0.3", "arms.method.prox.algorithm.mu=2", "sweep.seeds=[5]"])
    assert {p.experiment.local.lr for p in made} == {0.3} and {p.seed for p in made} == {5}
    prox = [p.experiment for p in made if p.setting["arms.method"] == "prox"]
    assert {experiment.algorithm.options["mu"] for experiment in prox} == {2.0}


def test_files_of_sweeps_and_trials_load_alike(armed: Settings, tmp_path: Path) -> None:
    """Also as the file of a single run, which a trial's is."""
    where = [{"arms": {"data": ["skewed"]}, "settings": {"local.momentum": 0.5}}]
    armed["sweep"] |= {**CHOSEN, "where": where, "scheduler": "asha"}
    config, made = specs(armed)
    saved = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    assert [p.experiment for p in specs(yaml.safe_load(saved))[1]] == [p.experiment for p in made]
    for spec in made:
        trial = TrialFolder(tmp_path, spec.number)
        trial.create(spec, config)
        alone = load(trial.path / "config.yaml")
        check_single(alone, "")
        assert alone.experiment == spec.experiment


def test_a_file_lies_over_its_base(armed: Settings, tmp_path: Path) -> None:
    (tmp_path / "common.yaml").write_text(yaml.safe_dump(armed))
    file = tmp_path / "suite.yaml"
    file.write_text(
        "base: common.yaml\nexperiment: {rounds: 7, model: {name: mlp}}\n"
        "arms: {method: {fccl: null, prox: {algorithm: {name: moon}}}}\n"
    )
    config = load(file)
    assert config.experiment.rounds == 7 and config.experiment.local.lr == 0.05
    assert list(config.arms["method"]) == ["fedavg", "prox"]
    assert list(config.arms["data"]) == ["iid", "skewed"]
    assert config.arms["method"]["prox"] == {"algorithm": {"name": "moon"}, "local.lr": 0.2}
    paper = "paper: {name: fedskc, departures: [other data]}\nexperiment: {rounds: 2}\n"
    (tmp_path / "common.yaml").write_text(paper)
    file.write_text("base: common.yaml\npaper: {departures: [fewer rounds]}\n")
    assert read_with_base(file)["paper"]["departures"] == ["other data", "fewer rounds"]
    file.write_text("base: suite.yaml\n")
    refused(load, file)


def test_smoke_is_small_and_has_every_arm(armed: Settings) -> None:
    armed["experiment"] |= {"rounds": 100, "local": {"epochs": 10, "batch_size": 64}}
    armed["sweep"] |= {"seeds": [0, 1], "repeat": {"data": 2}}
    armed["arms"]["method"]["prox"] |= {"rounds": 300, "local.epochs": 20}
    armed["arms"]["data"]["iid"]["partition"]["clients"] = 30
    _, made = specs(smoke(load(armed)))
    names = ["fedavg iid", "fedavg skewed", "prox iid", "fccl iid"]
    assert [label(p.setting) for p in made] == names
    sizes = {(p.experiment.rounds, p.experiment.local.epochs, p.experiment.subset) for p in made}
    assert sizes == {(2, 1, 900)}
    assert made[-1].experiment.algorithm.options["public_size"] == 64
    assert made[-1].experiment.name == "small-smoke"
    # Validation samples stay where an arm's split had set them apart.
    armed["arms"]["data"]["iid"] |= {"split": "fedbn-office", "evaluation.protocol": "best"}
    _, made = specs(smoke(load(armed)))
    assert {one.experiment.split for one in made} == {"official"}
    assert {one.experiment.evaluation.validation for one in made} == {0.2}
    # Also an option that is off by default, if an arm sets it.
    armed["arms"]["method"]["fccl"] |= {"algorithm": {"name": "fcclplus", "pretrain_epochs": 50}}
    _, made = specs(smoke(resolve_sweep(load(armed))))
    assert made[-1].experiment.algorithm.options["pretrain_epochs"] == 1


CONTINUE, STOP = TrialScheduler.CONTINUE, TrialScheduler.STOP


class _Trial:
    def __init__(self, number: str) -> None:
        self.number, self.trial_id = number, f"id-{number}"

    def __str__(self) -> str:
        return self.number


def _rule(content: Settings, past: dict[str, Any], **asha: Any) -> Asha:
    content["sweep"] |= {"scheduler": {"name": "asha", "reduction_factor": 2, **asha}}
    config, made = specs(content)
    return Asha(config, {point.number: point for point in made}, past)


def _decisions(rule: Asha, *reported: tuple[str, float]) -> list[str]:
    """Return the decision on each trial, given its number and its score at round 1."""
    results = [(number, {"training_iteration": 1, "score": score}) for number, score in reported]
    return [rule.on_trial_result(None, _Trial(number), result) for number, result in results]


def test_settings_compete_and_seeds_and_methods_do_not(content: Settings) -> None:
    content["space"]["algorithm"] = {"grid": ["fedavg", "local"]}
    # 0001, 0002 are fedavg at (0.02, seed 0), (0.02, 1); 0003, 0004 are local; then the rate is 0.1.
    scores = [("0001", 0.5), ("0002", 0.1), ("0003", 0.1), ("0005", 0.4), ("0006", 0.2)]
    assert _decisions(_rule(content, {}), *scores) == [CONTINUE, CONTINUE, CONTINUE, STOP, CONTINUE]
    rule = _rule(content, {}, compared="all")
    assert _decisions(rule, ("0001", 0.5), ("0002", 0.4)) == [CONTINUE, STOP]


def test_a_resumed_sweep_remembers_what_others_reached(content: Settings) -> None:
    """Nothing is compared with itself."""
    content["sweep"]["seeds"] = [0]
    pasts = {}, {"0001": [(1, 0.9), (2, 0.95)]}, {"0002": [(1, 0.9)]}
    for past, decision in zip(pasts, (CONTINUE, STOP, CONTINUE), strict=True):
        assert _decisions(_rule(content, past), ("0002", 0.1)) == [decision], past


@pytest.mark.parametrize("seed", range(6))
def test_it_decides_as_tune_s_own_rule(content: Settings, seed: int) -> None:
    chance = random.Random(seed)
    content["experiment"]["rounds"] = rounds = chance.choice([7, 9, 27])
    content["space"]["local.lr"] = {"grid": [0.01 + k / 100 for k in range(12)]}
    mode, factor, grace = chance.choice(["max", "min"]), chance.choice([2, 3, 1.5]), seed % 3 + 1
    content["sweep"] |= {"seeds": [0], "mode": mode}
    mine = _rule(content, {}, reduction_factor=factor, grace_period=grace)
    tune = ASHAScheduler("training_iteration", "score", mode, rounds, grace, factor)
    trials = {_Trial(f"{k + 1:04d}"): 0 for k in range(12)}
    for trial in trials:
        tune.on_trial_add(None, trial)
    decided = []
    while trials:
        trial = chance.choice(list(trials))
        trials[trial] += 1
        score = math.nan if chance.random() < 0.1 else chance.random()
        result = {"training_iteration": trials[trial], "score": score}
        if trials[trial] == rounds:  # done
            tune.on_trial_complete(None, trial, result)
            del trials[trial]
            continue
        decided.append(mine.on_trial_result(None, trial, result))
        assert decided[-1] == tune.on_trial_result(None, trial, result)
        if decided[-1] == STOP:
            tune.on_trial_complete(None, trial, result)
            del trials[trial]
    assert {CONTINUE, STOP} == set(decided)


Values = dict[str, Any]


class _Sweep:
    """A sweep of a search, whose trials bring scores at once."""

    def __init__(self, content: Settings, folder: Path, known: list[Values]) -> None:
        self.config = resolve_sweep(load(content))
        self.folder = folder
        begin(self.config, folder)
        given = trial_specs(self.config, known)
        self.points = {point.number: point for point in given}
        self.create(given)

    def create(self, points: Any) -> None:
        for point in points:
            TrialFolder(self.folder, point.number).create(point, self.config)

    def search(self) -> OptunaSearch:
        told = lambda point: {"number": point.number}  # noqa: E731
        return OptunaSearch(self.config, self.folder, self.points, self.create, told)

    def end(self, number: str, score: float | None = None) -> None:
        """End a trial; without a score as one that failed."""
        point = self.points[number]
        value = _value(point) if score is None else score
        run(self.folder, point, self.config, point.experiment.rounds, lambda point, round_: value)
        if math.isnan(value):
            directory.update(self.folder / "trials" / number, status="failed")

    def run(self, search: OptunaSearch, trials: int) -> None:
        for i in range(trials):
            self.end(search.suggest(f"t{i}")["point"]["number"])


def _value(point: TrialSpec) -> float:
    return -abs(math.log10(point.setting["local.lr"]) + 1)


Search = Callable[[str, list[Values]], _Sweep]
METHODS = {"algorithm": {"choice": ["fedavg", "local"]}}


@pytest.fixture
def searched(content: Settings, tmp_path: Path) -> Search:
    content["experiment"]["rounds"] = 1
    content["space"] = {"local.lr": {"loguniform": [0.001, 1.0]}, **METHODS}
    content["sweep"] = {"search": "optuna", "samples": 12, "seeds": [0, 1]}
    return lambda name, known: _Sweep(content, tmp_path / name, known)


def test_suggestions_get_every_seed_and_once_resumed_go_on_alike(searched: Search) -> None:
    whole = searched("whole", [])
    search = whole.search()
    whole.run(search, 24)
    made = list(whole.points.values())
    numbers = [f"{i:04d}" for i in range(1, 25)]
    assert [(p.number, p.seed) for p in made] == [*zip(numbers, [0, 1] * 12, strict=True)]
    assert search.suggest("one more") == "FINISHED"
    assert search.past() == [(p.setting, _value(p)) for p in made[::2]]
    settings = [p.setting for p in made[::2]]
    assert len({str(setting) for setting in settings}) == 12  # none comes twice
    for before in (1, 3, 11):
        resumed = searched(str(before), settings[:before])
        for number in list(resumed.points):
            resumed.end(number)
        resumed.run(resumed.search(), 24 - 2 * before)
        assert [p.setting for p in list(resumed.points.values())[::2]] == settings


def test_a_search_tries_no_setting_twice(content: Settings, tmp_path: Path) -> None:
    """Otherwise the values of one would count as those of further seeds."""
    content["space"] = {"local.lr": {"grid": [0.1, 0.2]}, **METHODS}
    content["sweep"] = {"search": "optuna", "samples": 12, "seeds": [0, 1]}
    sweep = _Sweep(content, tmp_path / "few", [])
    search = sweep.search()
    sweep.run(search, 8)
    assert not search.exhausted
    assert search.suggest("one more") == "FINISHED" and search.exhausted
    assert len({str(point.values) for point in sweep.points.values()}) == 8


def test_a_search_gives_up_if_all_is_infeasible(content: Settings, tmp_path: Path) -> None:
    methods = {"choice": ["fedprox", *["fedavg"] * 999]}
    content["space"] = {"algorithm": methods, "algorithm.mu": {"choice": [0.1, 0.2]}}
    content["sweep"] = {"search": "optuna", "samples": 12, "seeds": [0]}
    known = [{"algorithm": "fedprox", "algorithm.mu": 0.1}]
    search = _Sweep(content, tmp_path / "given", known).search()
    assert search.suggest("known") == {"point": {"number": "0001"}}
    refused(search.suggest, "next")


def test_a_resumed_search_reads_folders(searched: Search) -> None:
    known = [{"local.lr": rate, "algorithm": "fedavg"} for rate in (0.01, 0.02, 0.03)]
    sweep = searched("resumed", known)
    for number, score in (("0001", 0.5), ("0002", 0.7), ("0005", 0.25)):
        sweep.end(number, score)
    for number in ("0003", "0004"):
        sweep.end(number, math.nan)
    search = sweep.search()
    assert str([score for _, score in search.past()]) == "[0.6, nan, None]"
    assert search.suggest("a") == {"point": {"number": "0006"}}
    sweep.end("0006", 0.75)
    assert search.past()[2] == (known[2], 0.5)
    assert search.suggest("b") == {"point": {"number": "0007"}}
    assert sweep.points["0007"].setting not in known
    sweep.end("0007", math.nan)
    assert search.suggest("c") == {"point": {"number": "0008"}}
    assert search.past()[3][1] is None  # one of its seeds still runs
    sweep.end("0008", math.nan)
    assert str(search.past()[3][1]) == "nan"
