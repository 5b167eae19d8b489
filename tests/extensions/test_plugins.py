"""Plug-ins: found by a package's entry point, refused in one line, what they may remember; metrics of the user's."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score

from flray import register_algorithm, register_metric, registry, trees
from flray.algorithms import Algorithm
from flray.algorithms.client import load_optimizer_state, optimizer_state
from flray.config import loader
from flray.config.loader import load
from flray.metrics import is_share, is_test, lower_is_better
from flray.records.directory import PARTITION
from flray.results.load import load_folder
from flray.runs import runner
from flray.runs.identity import code_of
from tests.algorithms import helpers as tiny
from tests.helpers import Settings, inline
from tests.messages import refused

METRIC = """
from flray.registry import register_metric
from tests_pack import FACTOR

@register_metric("scaled")
def scaled(targets, outputs):
    return FACTOR * float((outputs.argmax(1) == targets).mean())
"""
POINTS = """[flray.plugins]
scaling = tests_pack.scaled
gone = tests_pack.gone
broken = tests_broken.scaled
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    for name, content in (
        ("tests_pack/__init__.py", "FACTOR = 0.5"),
        ("tests_pack/scaled.py", METRIC),
        ("tests_broken/__init__.py", "raise RuntimeError('no licence')"),
        ("tests_pack-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tests_pack\nVersion: 1"),
        ("tests_pack-1.dist-info/entry_points.txt", POINTS),
    ):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    return site


def named(digits: Settings, *plugins: str) -> dict[str, Any]:
    measured = {"evaluation": {"metrics": ["scaled"]}}
    return {"experiment": {**digits, **measured, "plugins": list(plugins), "rounds": 1}}


def test_a_package_is_named_by_its_entry_point(digits: Settings, installed: Path) -> None:
    experiment = load(named(digits, "scaling")).experiment
    folder = installed.resolve() / "tests_pack"
    module, package = str(folder / "scaled.py"), str(folder / "__init__.py")
    assert experiment.plugins == (module,)
    assert {module, package} <= {*code_of(experiment)["files"]}
    last = runner.run(inline(named(digits, "scaling")["experiment"])).history.iloc[-1]
    assert last["global/common/scaled"] == pytest.approx(last["global/common/accuracy"] / 2)


def test_other_names_are_refused(digits: Settings) -> None:
    for name in ("scalling", "gone", "broken", "../scaling", ""):
        assert "\n" not in str(refused(load, {"experiment": {**digits, "plugins": [name]}}))
    Path("scaling").write_text("raise RuntimeError('this one')")
    refused(load, named(digits, "scaling"))  # a file of that name comes first


METHOD = """
from flray import register_algorithm
from tests_base import Base

@register_algorithm("scheduled")
class Scheduled(Base):
    pass
"""
BASE = """
from flray.algorithms import Algorithm

class Base(Algorithm):
    def begin(self, client):
        client.log("left", 1 - client.round / client.config.rounds)
"""


@pytest.mark.parametrize("in_file", [True, False])
def test_a_method_that_may_read_the_number_of_rounds_gets_no_more(
    digits: Settings, in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("tests_base.py").write_text(BASE)
    Path("method.py").write_text(METHOD)
    named = {"algorithm": "scheduled", "plugins": ["method.py"], "rounds": 1}
    begun = runner.run(inline(digits, **named))
    if not in_file:  # as in a notebook
        monkeypatch.setattr(loader, "load_plugins", lambda *_: [Path("method.py")])
        monkeypatch.setattr(registry.algorithms.get("scheduled"), "__module__", "__main__")
        monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    refused(runner.resume, begun.folder, rounds=2)
    del registry.algorithms._entries["scheduled"]  # a later sweep's processes lack its base


def test_a_file_is_read_anew(digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by byte code of a file of the same second and size, and none is left beside it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    ran: list[int] = []
    monkeypatch.setattr(sys, "ran", ran, raising=False)
    for number in (1, 2):
        Path("mine.py").write_text(f"import sys; sys.ran.append({number})")
        os.utime("mine.py", (1e9, 1e9))
        load({"experiment": {**digits, "plugins": ["mine.py"]}})
    assert ran[0] == 1 and ran[-1] == 2 and not Path("__pycache__").exists()


@register_algorithm("personal-first")
class PersonalFirst(Algorithm):
    """Trains as FedAvg does; what counts are the clients' models."""

    views = ("personal", "global")

    def report(self, client: Any) -> Any:
        client.state["own"] = client.snapshot()
        return super().report(client)

    def predictor(self, client: Any, view: Any) -> Any:
        client.load(client.state["own"])
        return client.model


@register_algorithm("taken-name")
class TakenName(Algorithm):
    """Keeps the trained model under a name that flray uses where not all of the model travels."""

    def report(self, client: Any) -> Any:
        client.state["personal"] = client.snapshot()
        return super().report(client)


def test_a_name_in_a_clients_memory_that_flray_uses_is_refused() -> None:
    assert tiny.state_of(tiny.run("taken-name"), 0)["personal"]
    refused(tiny.run, "taken-name", aggregation={"buffers": "local"})


@register_algorithm("personal-eval")
class PersonalEval(PersonalFirst):
    def predictor(self, client: Any, view: Any) -> Any:
        return super().predictor(client, view).eval()


@pytest.mark.parametrize("views", [("personal", "global"), ("personal",)])
def test_models_are_in_eval_mode(views: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PersonalFirst, "views", views)
    names = ("personal-first", "personal-eval")
    one, other = (tiny.fresh(name, model=tiny.DROPOUT) for name in names)
    metrics = [federation.step().metrics for federation in (one, other)]
    measured = [name for name in metrics[0] if name.startswith("personal/")]
    assert [metrics[0][name] for name in measured] == [metrics[1][name] for name in measured]


@pytest.mark.parametrize("views", [("personal", "global"), ("personal",)])
def test_a_report_without_the_plug_in_is_of_the_methods_measure(
    digits: Settings, views: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PersonalFirst, "views", views)
    ran = runner.run(inline(digits, algorithm="personal-first", rounds=1))
    monkeypatch.delitem(registry.algorithms._entries, "personal-first")
    assert load_folder(ran.folder).trials[0].metric == ran.metric == "personal/local/accuracy"
    if views == ("personal",):  # as in the folder of a run of an older flray
        held = json.loads((ran.folder / PARTITION).read_text())
        del held["primary"]
        (ran.folder / PARTITION).write_text(json.dumps(held))
        assert load_folder(ran.folder).trials[0].metric == ran.metric


def test_imports_are_read_anew_too(digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by way of another one: in a notebook that runs the same plug-in again after an edit."""
    monkeypatch.syspath_prepend(str(Path.cwd()))
    ran: list[int] = []
    monkeypatch.setattr(sys, "ran", ran, raising=False)
    Path("mine.py").write_text("import sys, tests_middle; sys.ran.append(tests_middle.VALUE)")
    Path("tests_middle.py").write_text("from tests_edited import VALUE")
    digests = set()
    for number in (1, 1, 22):
        Path("tests_edited.py").write_text(f"VALUE = {number}")
        experiment = load({"experiment": {**digits, "plugins": ["mine.py"]}}).experiment
        digests.add(json.dumps(code_of(experiment)["files"]))
    assert ran == [1, 1, 22] and len(digests) == 2
    Path("tests_edited.py").rename("tests_moved.py")
    Path("tests_middle.py").write_text("from tests_moved import VALUE")
    moved = load({"experiment": {**digits, "plugins": ["mine.py"]}}).experiment
    names = {Path(file).name for file in code_of(moved)["files"]}
    assert ran[-1] == 22 and names == {"mine.py", "tests_middle.py", "tests_moved.py"}


@register_algorithm("server-in-self")
class ServerInSelf(Algorithm):
    def refine(self, server: Any) -> None:
        self.rounds = 1


@register_algorithm("client-in-self")
class ClientInSelf(Algorithm):
    def begin(self, client: Any) -> None:
        self.tasks = 1


@register_algorithm("by-client")
class ByClient(Algorithm):
    def __init__(self, hp: Any = None) -> None:
        super().__init__(hp)
        self.memory: dict[int, Any] = {}


@register_algorithm("of-the-class")
class OfTheClass(Algorithm):
    memory: ClassVar[list[Any]] = []


@register_algorithm("constants")
class Constants(Algorithm):
    """Keeps what follows from its settings."""

    def __init__(self, hp: Any = None) -> None:
        super().__init__(hp)
        self.table = {"lr": 0.5}

    def weigh(self, server: Any, reply: Any) -> float:
        return self.table["lr"]


def test_a_memory_in_self_is_refused_and_constants_are_not() -> None:
    for name in ("server-in-self", "client-in-self", "by-client", "of-the-class"):
        refused(tiny.run, name)
    assert tiny.digest("constants") == tiny.digest("fedavg", aggregation={"weights": "uniform"})


@register_algorithm("in-place")
class InPlace(PersonalFirst):
    """Changes a tensor that it was given: of its memory, of the common message, or of its memory in a test."""

    class Params(registry.Params):
        where: str = registry.hyper("", "the place", "our choice")

    hp: Params

    def begin(self, client: Any) -> None:
        if self.hp.where == "state" and client.state:
            client.state["own"][tiny.V].add_(1)
        if self.hp.where == "message":
            client.message["weights"][tiny.V].mul_(0.5)
        client.message["weights"].clear()  # is the task's own

    def predictor(self, client: Any, view: Any) -> Any:
        if self.hp.where == "test":
            client.state["own"][tiny.V].mul_(0.5)
        return super().predictor(client, view)


def test_a_change_in_place_is_refused_and_dicts_of_a_message_are_the_tasks_own() -> None:
    for where in ("state", "message", "test"):
        refused(tiny.run, {"name": "in-place", "where": where}, rounds=2)
    assert tiny.digest("in-place") == tiny.digest("personal-first")


def test_a_declaration_that_would_have_no_effect_is_refused() -> None:
    wrong = {"weighting": "num_samples", "sent": "gradient", "views": ("local",)}
    for name, found in {**wrong, "needs": frozenset({"batchnorm"})}.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Constants, name, found)
            refused(tiny.spec_of, "constants")


class Counts(torch.optim.Optimizer):
    """Counts its steps, of each parameter and of each group, in plain numbers."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for value in group["params"]:
                self.state[value]["step"] = self.state[value].get("step", 0) + 1
                value -= group["lr"] / group["steps"] / self.state[value]["step"]


def test_an_optimisers_plain_numbers_stay_between_public_steps() -> None:
    whole, parts = ({"w": torch.nn.Parameter(torch.zeros(2))} for _ in range(2))
    one, kept = Counts(whole.values()), {}
    for _ in range(3):
        one.step()
        fresh = Counts(parts.values())
        load_optimizer_state(fresh, parts, kept)
        fresh.step()
        kept = trees.unpack(trees.pack(optimizer_state(fresh, parts)))
    assert torch.equal(parts["w"], whole["w"]) and whole["w"][0] == -(1 + 1 / 4 + 1 / 9)


def test_each_public_step_has_its_rounds_rate_and_the_memory_of_an_older_run_counts() -> None:
    w, bias = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    first, fresh = (
        torch.optim.SGD([{"params": [w]}, {"params": [bias], "lr": lr / 10}], lr, momentum=0.9)
        for lr in (1.0, 0.5)
    )
    w.grad = bias.grad = torch.ones(2)
    first.step()
    kept = optimizer_state(first, {"w": w, "bias": bias})
    for one in (kept, kept["parameters"]):
        load_optimizer_state(fresh, {"w": w, "bias": bias}, one)
        assert [group["lr"] for group in fresh.param_groups] == [0.5, 0.05]
        assert torch.equal(fresh.state.pop(w)["momentum_buffer"], torch.ones(2))


@register_metric("hits")
def hits(targets: Any, outputs: Any, *, times: float = 1.0) -> float:
    return times * float((outputs.argmax(1) == targets).mean())


@register_metric("spoils")
def spoils(targets: Any, outputs: Any) -> float:
    outputs[:], targets[:] = 0, 0
    return 0.0


@register_metric("raises")
def raises(targets: Any, outputs: Any) -> float:
    raise ValueError("no such luck")


register_metric("takes-nothing")(lambda: 1.0)
register_metric("wrong-result")(lambda targets, outputs: "much")


def test_builtin_metrics_are_those_of_other_libraries() -> None:
    generator = np.random.default_rng(0)
    targets, outputs = generator.integers(0, 4, 200), generator.normal(size=(200, 4))
    found = outputs.argmax(1)
    call = registry.metrics.call
    assert call("balanced-accuracy", targets, outputs) == balanced_accuracy_score(targets, found)
    assert call("macro-f1", targets, outputs) == f1_score(targets, found, average="macro")
    # By hand: confidences 0.9 (right), 0.9 (wrong) and 0.6 (right) in bins (0.8, 1] and (0.5, 0.6].
    shares = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    gap = (2 * abs(0.5 - 0.9) + 1 * abs(1.0 - 0.6)) / 3
    got = call("calibration-error", np.array([0, 1, 0]), np.log(shares), bins=10)
    assert got == pytest.approx(gap, abs=1e-12)
    shares[1] = np.nan
    assert call("calibration-error", np.array([0, 1, 0]), np.log(shares)) == np.inf
    assert lower_is_better("personal/local/calibration-error/worst")
    assert not lower_is_better("global/common/macro-f1")


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedco2"])
def test_a_metric_has_every_view_that_accuracy_has_and_the_bits_stay(method: str) -> None:
    views = {"others": True, "validation": 0.25}
    measured = {**views, "pooled": True, "metrics": [{"name": "hits", "times": 2}], "top_k": 2}
    clients, both = tiny.gaussian_clients(classes=4), (views, measured)
    plain, federation = (tiny.fresh(method, clients, classes=4, evaluation=e) for e in both)
    plain.step()
    federation.step()
    before, metrics = plain.evaluate(), federation.evaluate()
    assert {name: metrics[name] for name in before} == before
    twice = {name: 2 * value for name, value in metrics.items() if "/accuracy" in name}
    assert len(twice) > 12
    found = {name: metrics[name.replace("accuracy", "hits")] for name in twice}
    assert found == pytest.approx(twice, rel=1e-12)
    top = {name: metrics[name.replace("accuracy", "top2")] for name in twice if "/std" not in name}
    assert all(twice[name] / 2 <= value <= 1 for name, value in top.items())
    assert any(twice[name] / 2 < value for name, value in top.items())
    added = {name for name in metrics if "/pooled/" in name}
    added |= {name.replace("accuracy", other) for name in twice for other in ("hits", "top2")}
    assert metrics.keys() - before.keys() == added
    assert bool({name for name in added if "/pooled/" in name}) == (method != "fedavg")
    assert plain.sha256() == federation.sha256()


def test_a_metric_that_writes_into_its_arrays_changes_no_other() -> None:
    every = (["calibration-error"], ["spoils", "calibration-error"])
    plain, spoilt = (tiny.fresh("fedavg", evaluation={"metrics": names}) for names in every)
    plain.step()
    spoilt.step()
    before, metrics = plain.evaluate(), spoilt.evaluate()
    assert {name: metrics[name] for name in before} == before


def test_what_cannot_be_measured_is_refused_and_a_metric_that_fails_is_named() -> None:
    wrong: list[list[Any]] = [["accuracy"], ["hits", "hits"], ["takes-nothing"]]
    for names in (*wrong, [{"name": "hits", "time": 2}]):
        refused(tiny.spec_of, "fedavg", evaluation={"metrics": names})
    for name in ("wrong-result", "raises"):
        refused(tiny.fresh("fedavg", evaluation={"metrics": [name]}).step)


@pytest.mark.parametrize("name", ["error-rate", "loss-of-tail", "rmse-of-age", "mae-days"])
def test_a_name_that_begins_or_ends_so_is_better_the_lower(name: str) -> None:
    ends = "-".join(reversed(name.split("-", 1)))
    assert lower_is_better(f"personal/local/{name}") and lower_is_better(ends)
    assert not lower_is_better(f"personal/local/no-{name}")


@register_algorithm("with-head")
class WithHead(PersonalFirst):
    def parts(self, client: Any) -> Any:
        return {"head": client.model}


def test_a_further_model_of_a_method_is_a_test_metric_to_stop_by() -> None:
    stop = {"metric": "head/local/loss", "target": 0.1}
    assert tiny.spec_of("with-head", stop=stop)
    refused(tiny.spec_of, "fedavg", stop=stop)
    assert lower_is_better("head/local/loss") and not lower_is_better("head/local/accuracy")
    assert is_test("head/local/loss/client/A") and is_share("head/local/accuracy")


def own(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError


def test_what_takes_the_place_of_a_built_in_one_does_so_in_all_processes() -> None:
    """A trial's process is given it, and gives it on to its client actors."""
    losses = registry.losses
    losses.load()
    kept = dict(losses._entries), set(losses._builtin)
    try:
        losses.add({"focal": own})
        assert losses.get("focal") is own and losses.is_own("focal")
        assert losses.added()["focal"] is own
    finally:
        losses._entries, losses._builtin = kept


def test_an_import_that_was_interrupted_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ctrl-C in a notebook; all names would be unknown there."""
    fresh, asked = registry.Registry("metric", "flray.metrics.builtin"), list[str]()

    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fresh.load()
    monkeypatch.setattr(importlib, "import_module", asked.append)
    fresh.load()
    fresh.load()
    assert asked == ["flray.metrics.builtin"]
