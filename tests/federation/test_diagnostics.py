from pathlib import Path

import numpy as np
import pytest

from flray import registry
from flray.federation.evaluation import collect_diagnostics
from flray.federation.spec import partition_summary
from flray.federation.worker.diagnostics import encode, evenly_spaced, save_encoded
from tests.algorithms.helpers import federation_of, gaussian_clients, settings_for, spec_of

BUILT_IN = sorted(set(registry.algorithms.names()) - set(registry.algorithms.added()))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_portrait_of_every_method_changes_nothing(name: str) -> None:
    federation = federation_of(spec_of(name, gaussian_clients(), **settings_for(name)))
    federation.step()
    before = federation.sha256()
    found = collect_diagnostics(federation)
    assert federation.sha256() == before
    assert found["correlation"].shape == (3, 3, 3) and np.isfinite(found["correlation"]).all()
    assert np.abs(found["correlation"]).max() <= 1.01
    assert (
        len(found["labels"])
        == len(found["predicted"])
        == len(found["features"])
        == len(found["client"])
    )
    assert found["distance"].shape == (3, len(found["layers"]))
    assert set(collect_diagnostics(federation, final=False)) == {"correlation"}


def test_a_global_model_is_nowhere_away_from_itself_and_a_local_one_is() -> None:
    for name, away in (("fedavg", False), ("local", True), ("lgmix", True)):
        federation = federation_of(spec_of(name, gaussian_clients()))
        federation.step()
        found = collect_diagnostics(federation)
        assert (found["distance"].max() > 1e-3) == away
        assert found["personal"].all() == (name == "local")


def test_a_portrait_travels_as_text(tmp_path: Path) -> None:
    save_encoded(encode({"a": np.arange(4.0), "names": np.array(["x", "yy"])}), tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz", allow_pickle=False) as found:
        assert found["a"].tolist() == [0, 1, 2, 3] and found["names"].tolist() == ["x", "yy"]


def test_chosen_rows_are_spread_evenly() -> None:
    assert evenly_spaced(np.arange(10), 4).tolist() == [0, 3, 6, 9]
    assert evenly_spaced(np.arange(3), 4).tolist() == [0, 1, 2]


def test_who_holds_what() -> None:
    spec = spec_of("fedavg", gaussian_clients())
    found = partition_summary(spec)
    assert [sum(client["train"]) for client in found["clients"]] == [
        len(c.train) for c in spec.data.clients
    ]
