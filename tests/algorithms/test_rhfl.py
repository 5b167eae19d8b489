"""RHFL: the staged exchange against all participants in one loop, confidences, identities, the variant."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from flray import trees
from tests.algorithms import helpers as tiny

ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 0.05, "batch_size": 100, "epochs": 2}
CLIENTS = tiny.gaussian_clients((10, 9, 12))
DATA = tiny.as_tensors(CLIENTS)
W = "classifier.weight"


def sce(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return 0.1 CE + RCE, written out."""
    p = torch.softmax(x @ w.T, 1)
    own = p[torch.arange(len(y)), y]
    return (-0.1 * own.log() + math.log(1e4) * (1 - own)).mean()


@pytest.mark.parametrize(
    "options",
    [{}, {"public_optimizer": "fresh"}, {"eta": 3.0}, {"private_epochs": "balanced"}],
    ids=str,
)
def test_stages_compute_what_all_participants_in_one_loop_do(options: dict[str, Any]) -> None:
    """Linear networks without bias, Adam, three public batches a round, full private batches, three rounds."""
    federation = tiny.fresh(
        {"name": "rhfl", "public_batch_size": 8, **options}, CLIENTS, local=ADAM, model="one-layer"
    )
    algorithm, public = federation.spec.algorithm, torch.from_numpy(federation.spec.data.public)
    weights = [federation.server.model[W].clone().requires_grad_() for _ in CLIENTS]
    before: list[float] = []
    for number in range(3):
        metrics = federation.step().metrics
        losses = [float(sce(w.detach(), x, y)) for w, (x, y) in zip(weights, DATA, strict=True)]
        gains = [(b - now) / now for b, now in zip(before, losses, strict=False)]
        total = sum(gains)
        if not before:
            omega = [0.5] * 3
        elif total <= 0:
            omega = [1 / 3] * 3
        else:
            raw = [math.exp(0.5 + options.get("eta", 0.5) * gain / total) for gain in gains]
            omega = [r / sum(raw) for r in raw]
        before = losses
        for i, share in enumerate(omega):
            assert metrics[f"rhfl/confidence/client/client{i}"] == pytest.approx(share, rel=1e-9)
        optimizers = [torch.optim.Adam([w], lr=0.05) for w in weights]
        batches = algorithm.public_order(0, number, len(public))
        assert [len(b) for b in batches] == [8, 8, 8]
        for positions in batches:
            x = public[positions]
            said = [torch.softmax(x @ w.detach().T, 1) for w in weights]
            if options.get("public_optimizer") == "fresh":
                optimizers = [torch.optim.Adam([w], lr=0.05) for w in weights]
            for i, w in enumerate(weights):
                log_own = torch.log_softmax(x @ w.T, 1)
                divergences = [(p * (p.log() - log_own)).sum(1).mean() for p in said]
                loss = sum((omega[j] * divergences[j] for j in {0, 1, 2} - {i}), torch.zeros(()))
                tiny.descend(optimizers[i], loss)
        for w, (x, y) in zip(weights, DATA, strict=True):
            optimizer = torch.optim.Adam([w], lr=0.05)
            for _ in range(max(24 // len(y), 1) if "private_epochs" in options else 2):
                tiny.descend(optimizer, sce(w, x, y))
        for i, w in enumerate(weights):
            tiny.close(tiny.kept(federation, i)[W], w.detach())


def test_who_joins_later_counts_as_neither_improving_nor_worsening() -> None:
    federation = tiny.fresh("rhfl", model="one-layer", participation={"clients": 2}, rounds=6)
    seen: set[int] = set()
    late = 0
    for _ in range(6):
        known = dict(federation.server.state.get("losses", {}))
        metrics = federation.step().metrics
        cohort, losses = federation.server.cohort, federation.server.state["losses"]
        now = {c: float(losses[str(c)]) for c in cohort}
        gains = {c: float(known.get(str(c), now[c])) / now[c] - 1 for c in cohort}
        if seen and not set(cohort) <= seen:
            late += 1
            (joined,) = set(cohort) - seen
            assert gains[joined] == 0
        total = sum(gains.values())
        raw = {c: math.exp(1 + 0.5 * (g / total if total > 0 else 0)) for c, g in gains.items()}
        for c in cohort:
            expected = raw[c] / sum(raw.values()) if seen else 1.0
            assert metrics[f"rhfl/confidence/client/client{c}"] == pytest.approx(expected, rel=1e-9)
        seen |= set(cohort)
    assert late == 1 and len(seen) == 3


def test_participants_may_have_different_networks_and_may_be_averaged_where_they_do_not() -> None:
    wide = {"client1": {"name": "two-layer", "width": 7}}
    assert len(tiny.run("rhfl", models=wide, rounds=2).server.models) == 2
    federation = tiny.run({"name": "rhfl", "average": True}, rounds=1, local={"epochs": 0})
    assert len({trees.sha256(tiny.kept(federation, i)) for i in range(3)}) == 1
