"""Mistakes of a user's method are named."""

from pathlib import Path
from typing import Any

import pytest

from flray import register_algorithm, registry
from flray.algorithms import Algorithm
from flray.config.loader import load
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import BUILT_IN
from tests.messages import refused

SAMPLER = """
from flray import register_sampler

@register_sampler("of-two-files")
def pick(round, clients, count):
    return clients[:count]
"""


@register_algorithm("no-stages")
class NoStages(Algorithm):
    """Forgets to yield."""

    def exchanges(self, server: Any) -> Any:
        """Return nothing."""


def test_stages_that_are_not_yielded_are_named() -> None:
    refused(tiny.run, "no-stages")


@register_algorithm("misspelt")
class Misspelt(Algorithm):
    """Sends its weights under another name."""

    def report(self, client: Any) -> Any:
        """Return them."""
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


NAMES: dict[str, str] = {}


@register_algorithm("logs")
class Logs(Algorithm):
    """Tracks a number of a client and one of the server under some name."""

    def begin(self, client: Any) -> None:
        """Track the client's."""
        client.log(NAMES["client"], 1.0)

    def refine(self, server: Any) -> None:
        """Track the server's."""
        server.log(NAMES["server"], 1.0)


def test_numbers_that_flray_tracks_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "server", "logs/loss")
    for name in ("loss", "steps", "seconds", "work"):
        monkeypatch.setitem(NAMES, "client", name)
        refused(tiny.run, "logs")
    monkeypatch.setitem(NAMES, "client", "logs/loss")
    for name in ("train/loss", "bytes/up", "cohort/size", "global/common/accuracy"):
        monkeypatch.setitem(NAMES, "server", name)
        refused(tiny.run, "logs")
    monkeypatch.setitem(NAMES, "server", "logs/loss")
    found = tiny.run("logs").wait_for_round().metrics
    assert found["train/logs/loss"] == found["logs/loss"] == 1


def test_two_plug_ins_under_one_name_are_refused(
    digits: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
