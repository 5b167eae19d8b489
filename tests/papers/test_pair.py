"""The control of Fed-CO2's twin: two models that know nothing of each other, added up."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flray import registry, trees
from flray.config.start import load_plugins
from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny

PLUGIN = Path(__file__).parents[2] / "docs" / "results" / "pairs" / "pair.py"


@pytest.fixture(autouse=True)
def pair() -> Iterator[None]:
    load_plugins([str(PLUGIN)])
    yield
    del registry.algorithms._entries["pair"]


def seconds(federation: Federation) -> list[dict[str, torch.Tensor]]:
    return [tiny.state_of(federation, i)["second"] for i in range(3)]


@pytest.mark.parametrize("kind", ["local", "fedbn"])
def test_the_first_is_the_method_the_second_another_run_of_it(kind: str, tmp_path: Path) -> None:
    model = {"name": "two-layer"}
    pair = tiny.run({"name": "pair", "of": kind}, rounds=3, model=model)
    alone = tiny.run(kind, rounds=3, model=model)
    assert tiny.personal_sha(pair) == tiny.personal_sha(alone)
    assert tiny.models_sha(pair) == tiny.models_sha(alone)
    found, one = pair.evaluate(), alone.evaluate()
    assert found["first/local/loss"] == one["personal/local/loss"]
    assert len({found[f"{part}/local/loss"] for part in ("first", "second", "personal")}) == 3
    shared = set(pair.server.model) if kind == "fedbn" else set()
    second = pair.server.state.get("second", {})
    assert set(second) == {name for name in shared if "middle" not in name}
    for name, value in second.items():
        mean = torch.stack([weights[name] for weights in seconds(pair)]).mean(0)
        torch.testing.assert_close(value, mean, rtol=1e-12, atol=0)
    tiny.resumed_from_any_round(pair.spec, tmp_path)


def test_all_second_models_begin_at_one_point_that_is_not_the_first_ones() -> None:
    untrained = tiny.run({"name": "pair"}, rounds=1, local={"lr": 1e-300})
    first, *others = seconds(untrained)
    assert not torch.equal(first[tiny.W], untrained.server.model[tiny.W])
    for other in others:
        assert torch.equal(first[tiny.W], other[tiny.W])


def test_it_predicts_by_the_sum_of_both_models_outputs() -> None:
    federation = tiny.run({"name": "pair"}, rounds=2, model="one-layer")
    accuracy = 0.0
    for index, (x, y) in enumerate(tiny.gaussian_clients()):
        both = tiny.kept(federation, index)[tiny.V] + seconds(federation)[index][tiny.V]
        inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
        accuracy += float(((inputs @ both.T).argmax(1) == labels).double().mean()) / 3
    assert federation.evaluate()["personal/local/accuracy"] == pytest.approx(accuracy)
    assert trees.sha256(*seconds(federation)) != tiny.personal_sha(federation)
