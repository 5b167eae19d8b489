"""Mistakes of a user's method are named."""

from pathlib import Path
from typing import Any

import pytest

from flray import register_algorithm, registry
from flray.algorithms import Algorithm
from flray.config.loader import load
from flray.federation.federation import Federation
from flray.federation.unused import UNUSED
from flray.federation.worker.client_runner import InlineExecutor
from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import BUILT_IN
from tests.helpers import Settings, cases
from tests.messages import refused

SAMPLER = """
from flray import register_sampler

@register_sampler("of-two-files")
def pick(round, clients, count):
    return clients[:count]
"""


@register_algorithm("no-stages")
class NoStages(Algorithm):
    def exchanges(self, server: Any) -> Any:
        """Return nothing."""


@register_algorithm("unused-unknown")
class UnusedUnknown(Algorithm):
    def unused(self) -> dict[str, str]:
        return {"local.rate": "has none"}


def test_stages_that_are_not_yielded_and_settings_that_are_not_there_are_named() -> None:
    for name in ("no-stages", "unused-unknown"):
        refused(tiny.run, name)


@register_algorithm("misspelt")
class Misspelt(Algorithm):
    """Sends its weights under another name."""

    def report(self, client: Any) -> Any:
        return {"weight": client.weights()}


def test_a_method_whose_weights_do_not_arrive_is_told_once() -> None:
    told: list[str] = []
    for name in ("misspelt", *BUILT_IN):
        spec = tiny.spec_of(name, **tiny.settings_for(name))
        federation = Federation(spec, InlineExecutor(spec), told.append)
        federation.step()
        federation.step()
    (line,) = [one for one in told if "weights" in one]
    assert line.startswith('misspelt: no reply of stage train has "weights"')


@cases(
    "name, settings, line",
    """[fedavg, {local: {clip_norm: 1.0}}, ""],
    [local, {aggregation: {weights: uniform}}, "aggregation.weights=uniform (local averages no clients' weights)"],
    [fedavg, {local: {public_augment: none}}, local.public_augment=none (fedavg uses no public data)],
    [fedavg, {local: {optimizer: adam, momentum: 0.5}}, local.momentum=0.5 (SGD alone has it)],
    [fedavg, {local: {betas: [0.5, 0.9]}}, "local.betas=(0.5, 0.9) (Adam and AdamW alone have them)"],
    [fedavg, {local: {epochs: 2, steps: 1}}, local.epochs=2 (local.steps counts)],
    [fedavg, {participation: {straggler_work: 0.2}}, participation.straggler_work=0.2 (stragglers is 0)],
    [fedavg, {participation: {sampler: power-of-choice}},
     participation.sampler=power-of-choice (all clients take part)],
    [pooled, {participation: {dropout: 0.5}}, participation.dropout=0.5 (pooled has no cohort)],
    [fedavg, {stop: {target: 1, min_delta: 0.1}}, stop.min_delta=0.1 (stop.patience is null)]""",
)
def test_a_run_says_which_settings_have_no_effect(name: str, settings: Any, line: str) -> None:
    told: list[str] = []
    spec = tiny.spec_of(name, **settings)
    Federation(spec, InlineExecutor(spec), told.append).reset()
    assert [one for one in told if one.startswith(UNUSED)] == [f"{UNUSED}{line}"] * bool(line)


NAMES: dict[str, str] = {}


@register_algorithm("logs")
class Logs(Algorithm):
    """Tracks a number of a client and one of the server under some name."""

    def begin(self, client: Any) -> None:
        client.log(NAMES["client"], 1.0)

    def refine(self, server: Any) -> None:
        server.log(NAMES["server"], 1.0)


def test_numbers_that_flray_tracks_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "server", "logs/loss")
    for name in ("loss", "steps", "seconds", "work"):
        monkeypatch.setitem(NAMES, "client", name)
        refused(tiny.run, "logs")
    monkeypatch.setitem(NAMES, "client", "logs/loss")
    measured = ("train/loss", "bytes/up", "cohort/size", "global/common/accuracy")
    for name in (*measured, "round", "score"):
        monkeypatch.setitem(NAMES, "server", name)
        refused(tiny.run, "logs")
    monkeypatch.setitem(NAMES, "server", "logs/loss")
    found = tiny.run("logs").wait_for_round().metrics
    assert found["train/logs/loss"] == found["logs/loss"] == 1


def test_two_of_one_name(digits: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a file whose name for the component was left as it was: the first one would never run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("newer").mkdir()
    for file in ("one.py", "two.py", "newer/one.py"):
        Path(file).write_text(SAMPLER)
    Path("user.py").write_text("import one")  # the same file, under its module's name

    def given(*files: str) -> Any:
        return load({"experiment": {**digits, "plugins": [*files]}})

    for second in ("two.py", "newer/one.py"):
        refused(given, "one.py", second)
        given(second)
    given("one.py", "user.py", "one.py")
    del registry.samplers._entries["of-two-files"]
