"""FedSKC: its rounds by hand, its ablations, and every row in which paper and released code differ."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from flray.errors import ConfigError
from tests.algorithms import helpers as tiny

FULL: dict[str, Any] = {"model": "one-layer", "local": {"batch_size": 100, "epochs": 1, "lr": 0.01}}
W = "classifier.weight"
OFF = {"lcl": False, "gda": False, "gpr": False}


def knowledge(w: Tensor, x: Tensor, y: Tensor, gate: bool = True) -> dict[int, Tensor]:
    """Return c_k^j of the classes that are there, from loops."""
    found = {}
    for j in range(3):
        if bool((y == j).any()):
            c = (x[y == j] @ w.T).mean(0)
            found[j] = c * torch.sigmoid(c) if gate else c
    return found


def merged(all_: list[dict[int, Tensor]], neighbours: int = 1) -> dict[int, Tensor]:
    """Eq. 1 from loops."""
    result = {}
    for j in range(3):
        holders = [one[j] for one in all_ if j in one]
        if not holders:
            continue
        smoothed = []
        for i, c in enumerate(holders):
            others = sorted(
                (h for k, h in enumerate(holders) if k != i), key=lambda h: float((h - c).norm())
            )
            group = [c, *others[:neighbours]]
            smoothed.append(sum(group) / len(group))
        result[j] = sum(smoothed) / len(smoothed)
    return result


def lcl(
    logits: Tensor,
    y: Tensor,
    known: dict[int, Tensor],
    tau: float = 0.08,
    normalised: bool = True,
    twice: bool = False,
    own: bool = False,
) -> Tensor:
    """Eq. 2-3 from loops, with the released code's differences."""
    mean_distance = {
        j: (logits.detach() - c).norm(dim=1).mean() if normalised else 1.0 for j, c in known.items()
    }
    terms = []
    for row, label in zip(logits, y.tolist(), strict=True):
        scores = {
            j: torch.cosine_similarity(row, c, dim=0) / mean_distance[j] / tau
            for j, c in known.items()
        }
        if label in known:
            parts = [*scores.values(), *([scores[label]] if twice else [])]
            terms.append(torch.logsumexp(torch.stack(parts), 0) - scores[label])
        elif own:
            positive = torch.cosine_similarity(row, row.detach(), dim=0) / tau
            terms.append(torch.logsumexp(torch.stack([*scores.values(), positive]), 0) - positive)
    return torch.stack(terms).mean()


def trained(
    w: Tensor,
    x: Tensor,
    y: Tensor,
    known: dict[int, Tensor],
    lr: float = 0.01,
    weight: float = 1.0,
    **options: Any,
) -> Tensor:
    """One full-batch step of CE + weight LCL; CE alone without knowledge."""
    gradient = tiny.softmax_gradient(w, x, y)
    if known:
        variable = w.clone().requires_grad_(True)
        (extra,) = torch.autograd.grad(lcl(x @ variable.T, y, known, **options), variable)
        gradient = gradient + weight * extra
    return w - lr * gradient


def e_k(sizes: list[int], distances: list[float], scaled: bool) -> list[float]:
    """Eq. 4, in Python's floats."""
    total, whole = sum(sizes), sum(distances)
    values = []
    for n, d in zip(sizes, distances, strict=True):
        argument = (n / total if scaled else n) - d / whole * d + n / total
        values.append(1 / (1 + math.exp(-argument)))
    return [v / sum(values) for v in values]


def spread(known: dict[int, Tensor], classes: set[int]) -> float:
    return float(sum(known[j].var(unbiased=False) for j in classes))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"review": "interpolate"},
        {"sample_scale": "fraction"},
        {"neighbours": 2, "tau": 0.5},
        {"neighbours": 0},
        {"beta": 0.7, "gate": False},
        {"gda": False},
        {"lcl": False},
        {"gpr": False},
    ],
    ids=str,
)
def test_four_rounds_by_hand(options: dict[str, Any]) -> None:
    """Clients without a class and a cohort of two: classes come and go in the global knowledge."""
    clients = tiny.gaussian_clients((10, 9, 12), skew=True)
    federation = tiny.fresh(
        {"name": "fedskc", **options}, clients, participation={"clients": 2}, **FULL
    )
    w, data, known = federation.server.model[W].clone(), tiny.as_tensors(clients), {}
    beta = options.get("beta", 0.95)
    absent = 0
    for _ in range(4):
        metrics = federation.step().metrics
        cohort = federation.server.cohort
        before, previous = known, w
        use = known if options.get("lcl", True) else {}
        models = [trained(w, *data[i], use, tau=options.get("tau", 0.08)) for i in cohort]
        sent = [
            knowledge(m, *data[i], gate=options.get("gate", True))
            for m, i in zip(models, cohort, strict=True)
        ]
        known = merged(sent, options.get("neighbours", 1))
        absent += 3 - len(known)
        distances = [sum(float((c - known[j]).norm()) for j, c in one.items()) for one in sent]
        sizes = [len(data[i][1]) for i in cohort]
        weights = e_k(sizes, distances, options.get("sample_scale") == "fraction")
        for i, d, e in zip(cohort, distances, weights, strict=True):
            assert metrics[f"fedskc/d_k/client/client{i}"] == pytest.approx(d, rel=1e-9)
            assert metrics[f"fedskc/e_k/client/client{i}"] == pytest.approx(e, rel=1e-9)
        if not options.get("gda", True):
            weights = [n / sum(sizes) for n in sizes]
        w = sum(e * m for e, m in zip(weights, models, strict=True))
        both = set(known) & set(before)
        if both:
            rho = (spread(known, both) - spread(before, both)) / spread(before, both)
            assert metrics["fedskc/rho"] == pytest.approx(rho, rel=1e-8)
        if both and options.get("gpr", True):
            kept = 1.0 if options.get("review") == "interpolate" else beta
            w = kept * w + (1 - beta) * rho * (previous - w)
        tiny.close(federation.server.model[W], w)
        state = federation.server.state["knowledge"]
        assert state["present"].tolist() == [j in known for j in range(3)]
        for j, c in known.items():
            tiny.close(state["vectors"][j], c)
    assert absent == 0


def test_a_class_that_nobody_held_this_round_is_absent() -> None:
    clients = tiny.gaussian_clients((10, 9, 12), skew=True)
    federation = tiny.fresh("fedskc", clients, participation={"clients": 1}, **FULL)
    federation.step()
    (client,) = federation.server.cohort
    assert federation.server.state["knowledge"]["present"].tolist() == [
        j != client for j in range(3)
    ]


def test_everything_off_is_fedavg() -> None:
    settings = {"model": {"name": "two-layer", "dropout": 0.3}, "rounds": 3}
    plain, off = (tiny.run("fedavg", **settings), tiny.run({"name": "fedskc", **OFF}, **settings))
    assert plain.sha256() == off.sha256()
    both = [f.step().metrics for f in (plain, off)]
    assert (
        both[0]["bytes/up"] == both[1]["bytes/up"]
        and both[0]["bytes/down"] == both[1]["bytes/down"]
    )


def test_sizes_that_saturate_the_sigmoid_make_the_average_uniform() -> None:
    """N_k of 45 and more: every sigmoid is 1 to the last bit, whatever the discrepancies."""
    clients, options = (
        tiny.gaussian_clients((45, 60, 50)),
        {"name": "fedskc", "lcl": False, "gpr": False},
    )
    uniform = tiny.run("fedavg", clients, rounds=2, aggregation={"weights": "uniform"})
    assert tiny.digest(options, clients, rounds=2) == tiny.models_sha(uniform)
    assert tiny.digest({**options, "gda": False}, clients, rounds=2) != tiny.models_sha(uniform)


def test_equal_sizes_and_discrepancies_make_the_average_uniform() -> None:
    """Classes that only one client holds have its own knowledge: every d_k is 0, though the models differ."""
    clients = [(x, y % 2 + 2 * i) for i, (x, y) in enumerate(tiny.gaussian_clients((12, 12, 12)))]
    options = {"name": "fedskc", "lcl": False, "gpr": False, "sample_scale": "fraction"}
    found = tiny.run(options, clients, rounds=3, classes=6)
    assert {v for name, v in found.step().metrics.items() if "d_k/" in name} == {0.0}
    assert tiny.models_sha(found) == tiny.digest(
        "fedavg", clients, rounds=4, classes=6, aggregation={"weights": "uniform"}
    )


@pytest.mark.parametrize("module", ["lcl", "gda", "gpr"])
def test_each_module_makes_a_difference(module: str) -> None:
    clients, settings = tiny.gaussian_clients((6, 9, 15)), {"rounds": 3, "local": {"lr": 0.01}}
    alone = tiny.run({"name": "fedskc", **OFF, module: True}, clients, **settings)
    assert tiny.models_sha(alone) != tiny.digest("fedavg", clients, **settings)


def test_knowledge_travels_only_where_a_module_needs_it() -> None:
    def round_two(**options: Any) -> dict[str, float]:
        return tiny.run({"name": "fedskc", **OFF, **options}).step().metrics

    plain, lcl_only, gda_only = round_two(), round_two(lcl=True), round_two(gda=True)
    assert lcl_only["bytes/down"] - plain["bytes/down"] == 3 * (9 * 8 + 3)
    assert gda_only["bytes/down"] == plain["bytes/down"]
    assert gda_only["bytes/up"] - plain["bytes/up"] == 3 * (9 * 8 + 3 * 8)


# --- the rows in which paper and released code differ ---------------------------------------------

RELEASED = {
    "lr": 0.1,
    "beta": 0.99,
    "gate": False,
    "normaliser": "none",
    "positive_twice": True,
    "lcl_weight": "ramp",
    "without_prototype": "own",
    "gda": False,
    "knowledge": "last_epoch",
    "review_buffers": True,
}


def test_all_values_set_alone_are_the_switch() -> None:
    clients = tiny.gaussian_clients((10, 9, 12), skew=True)
    settings = {"rounds": 3, "participation": {"clients": 2}, "local": {"epochs": 2, "lr": 0.01}}
    switch = tiny.run({"name": "fedskc", "variant": "released"}, clients, **settings)
    values = tiny.run({"name": "fedskc", **RELEASED}, clients, **settings)
    assert switch.sha256() == values.sha256()
    assert switch.sha256() != tiny.run("fedskc", clients, **settings).sha256()


def test_learning_rate_of_the_released_code() -> None:
    off = {"name": "fedskc", "variant": "released", "lcl": False, "gpr": False}
    found = tiny.run(off, local={"lr": 0.01})
    assert tiny.models_sha(found) == tiny.digest("fedavg", local={"lr": 0.1})


def test_learning_rate_that_would_be_ignored_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.lr: 0\.05"):
        tiny.spec_of({"name": "fedskc", "variant": "released"}, local={"lr": 0.05})
    tiny.spec_of("fedskc", local={"lr": 0.05})


@pytest.mark.parametrize(
    ("options", "by_hand"),
    [
        ({"normaliser": "none"}, {"normalised": False}),
        ({"positive_twice": True}, {"twice": True}),
        ({"without_prototype": "own"}, {"own": True}),
        ({"lcl_weight": "ramp"}, {"weight": 0.02}),
        (
            {
                "normaliser": "none",
                "positive_twice": True,
                "without_prototype": "own",
                "lcl_weight": "ramp",
            },
            {"normalised": False, "twice": True, "own": True, "weight": 0.02},
        ),
    ],
    ids=str,
)
def test_local_loss_of_the_second_round_by_hand(
    options: dict[str, Any], by_hand: dict[str, Any]
) -> None:
    """One client a round: the second one's class may have no prototype; the ramp is 2 / 100 in round 2."""
    clients = tiny.gaussian_clients((10, 9, 12), skew=True)
    federation = tiny.fresh(
        {"name": "fedskc", "gpr": False, **options}, clients, participation={"clients": 1}, **FULL
    )
    w, data, known, missing = (
        federation.server.model[W].clone(),
        tiny.as_tensors(clients),
        {},
        False,
    )
    for _ in range(2):
        federation.step()
        (client,) = federation.server.cohort
        missing = bool(known) and not set(data[client][1].tolist()) <= set(known)
        w = trained(w, *data[client], known, **by_hand)
        known = knowledge(w, *data[client])
    assert missing, "the two cohorts hold the same classes: this tests nothing"
    tiny.close(federation.server.model[W], w)


def test_knowledge_of_the_last_epoch_is_taken_from_the_steps_logits() -> None:
    """Two full-batch epochs: the last one's logits are those before the second step."""
    (client,) = tiny.gaussian_clients((12,))
    ((x, y),) = tiny.as_tensors([client])
    federation = tiny.fresh(
        {"name": "fedskc", "knowledge": "last_epoch"},
        [client],
        model="one-layer",
        local={"batch_size": 100, "epochs": 2, "lr": 0.01},
    )
    w = federation.server.model[W].clone()
    federation.step()
    expected = knowledge(w - 0.01 * tiny.softmax_gradient(w, x, y), x, y)
    found = federation.server.state["knowledge"]["vectors"]
    for j, c in expected.items():
        tiny.close(found[j], c)


@pytest.mark.parametrize("buffers", [True, False])
def test_period_review_leaves_statistics_alone_in_the_paper_s_reading(buffers: bool) -> None:
    """Local training cannot differ before round 2's review, so only the review tells the two runs apart."""
    options = {"name": "fedskc", "review_buffers": buffers, "lcl": False}
    apply_period_review = tiny.run(options, rounds=2).server.model
    plain = tiny.run({**options, "gpr": False}, rounds=2).server.model
    statistics = "features.middle.running_var"
    assert torch.equal(apply_period_review[statistics], plain[statistics]) is not buffers
    assert not torch.equal(apply_period_review["classifier.weight"], plain["classifier.weight"])
    counter = "features.middle.num_batches_tracked"
    assert torch.equal(apply_period_review[counter], plain[counter])
