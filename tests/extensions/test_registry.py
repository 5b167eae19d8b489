"""The user's components are the user's in every process."""

import importlib

import pytest
from torch import Tensor

from flray import registry


def own(outputs: Tensor, targets: Tensor) -> Tensor:
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
