"""FedSKC: its rounds by hand, and its ablations, and whole loops of the released code."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny
from tests.algorithms import released
from tests.algorithms.helpers import V as W

FULL = tiny.full(lr=0.01)
OFF = {"lcl": False, "gda": False, "gpr": False}


def knowledge(w: Tensor, x: Tensor, y: Tensor, gate: bool = True) -> dict[int, Tensor]:
    """Return c_k^j of the classes that are there, from loops."""
    found = {}
    for j in set(y.tolist()):
        c = (x[y == j] @ w.T).mean(0)
        found[j] = c * torch.sigmoid(c) if gate else c
    return found


def merged(all_: list[dict[int, Tensor]], neighbours: int = 1) -> dict[int, Tensor]:
    """Eq. 1 from loops."""
    result = {}
    for j in {j for one in all_ for j in one}:
        holders = [one[j] for one in all_ if j in one]
        smoothed = []
        for i, c in enumerate(holders):
            others = [h for k, h in enumerate(holders) if k != i]
            others.sort(key=lambda h, c=c: float((h - c).norm()))  # type: ignore[misc]
            smoothed.append(torch.stack([c, *others[:neighbours]]).mean(0))
        result[j] = torch.stack(smoothed).mean(0)
    return result


def lcl(logits: Tensor, y: Tensor, known: dict[int, Tensor], tau: float) -> Tensor:
    """Eq. 2-3 from loops."""
    mean_distance = {j: (logits.detach() - c).norm(dim=1).mean() for j, c in known.items()}
    terms = []
    for row, label in zip(logits, y.tolist(), strict=True):
        scores = {
            j: torch.cosine_similarity(row, c, dim=0) / mean_distance[j] / tau
            for j, c in known.items()
        }
        if label in known:
            terms.append(torch.logsumexp(torch.stack([*scores.values()]), 0) - scores[label])
    return torch.stack(terms).mean()


def trained(w: Tensor, x: Tensor, y: Tensor, known: dict[int, Tensor], tau: float) -> Tensor:
    """One full-batch step of CE + LCL; CE alone without knowledge."""
    gradient = tiny.softmax_gradient(w, x, y)
    if known:
        variable = w.clone().requires_grad_(True)
        gradient += torch.autograd.grad(lcl(x @ variable.T, y, known, tau), variable)[0]
    return w - 0.01 * gradient


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
    options = {"name": "fedskc", **options}
    federation = tiny.fresh(options, clients, participation={"clients": 2}, **FULL)
    w, data, known = federation.server.model[W].clone(), tiny.as_tensors(clients), {}
    beta = options.get("beta", 0.95)
    for _ in range(4):
        metrics = federation.step().metrics
        cohort = federation.server.cohort
        before, previous = known, w
        use = known if options.get("lcl", True) else {}
        models = [trained(w, *data[i], use, options.get("tau", 0.08)) for i in cohort]
        pairs = zip(models, cohort, strict=True)
        sent = [knowledge(m, *data[i], gate=options.get("gate", True)) for m, i in pairs]
        known = merged(sent, options.get("neighbours", 1))
        assert len(known) == 3
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
        tiny.close(state["vectors"], torch.stack([known[j] for j in range(3)]))


def test_a_class_that_nobody_held_this_round_is_absent() -> None:
    clients = tiny.gaussian_clients((10, 9, 12), skew=True)
    server = tiny.run("fedskc", clients, participation={"clients": 1}, **FULL).server
    present = server.state["knowledge"]["present"].tolist()
    assert present == [j != server.cohort[0] for j in range(3)]


def test_sizes_that_saturate_the_sigmoid_make_the_average_uniform() -> None:
    """N_k of 45 and more: every sigmoid is 1 to the last bit, whatever the discrepancies."""
    clients = tiny.gaussian_clients((45, 60, 50))
    uniform = tiny.digest("fedavg", clients, rounds=2, aggregation={"weights": "uniform"})
    for gda in (True, False):
        found = tiny.digest({"name": "fedskc", **OFF, "gda": gda}, clients, rounds=2)
        assert (found == uniform) == gda


def test_equal_sizes_and_discrepancies_make_the_average_uniform() -> None:
    """Classes that only one client holds have its own knowledge: every d_k is 0, though the models differ."""
    equal = enumerate(tiny.gaussian_clients((12, 12, 12)))
    clients = [(x, y % 2 + 2 * i) for i, (x, y) in equal]
    settings: dict[str, Any] = {"clients": clients, "classes": 6, "rounds": 3}
    options = {"name": "fedskc", **OFF, "gda": True, "sample_scale": "fraction"}
    found = tiny.run(options, **settings)
    plain = tiny.digest("fedavg", aggregation={"weights": "uniform"}, **settings)
    assert tiny.models_sha(found) == plain
    assert {v for name, v in found.step().metrics.items() if "d_k/" in name} == {0.0}


def test_each_module_makes_a_difference() -> None:
    clients = tiny.gaussian_clients((6, 9, 15))
    settings: dict[str, Any] = {"clients": clients, "rounds": 3, "local": {"lr": 0.01}}
    plain = tiny.digest("fedavg", **settings)
    found = [tiny.digest({"name": "fedskc", **OFF, module: True}, **settings) for module in OFF]
    assert len({plain, *found}) == 4


def test_knowledge_travels_only_where_a_module_needs_it() -> None:
    def round_two(name: str = "fedskc", **options: Any) -> tuple[float, float]:
        metrics = tiny.run({"name": name, **options}).step().metrics
        return metrics["bytes/down"], metrics["bytes/up"]

    down, up = round_two("fedavg")
    assert round_two(**OFF) == (down, up)
    assert round_two(**{**OFF, "lcl": True})[0] == down + 3 * (9 * 8 + 3)
    assert round_two(**{**OFF, "gda": True}) == (down, up + 3 * (9 * 8 + 3 * 8))


@pytest.mark.parametrize("buffers", [True, False])
def test_period_review_leaves_statistics_alone_in_the_paper_s_reading(buffers: bool) -> None:
    """Local training cannot differ before round 2's review, so only the review tells the two runs apart."""
    options = {"name": "fedskc", "review_buffers": buffers, "lcl": False}
    reviewed, plain = (
        tiny.run({**options, "gpr": gpr}, rounds=2).server.model for gpr in (True, False)
    )
    same = {name: torch.equal(w, plain[name]) for name, w in reviewed.items()}
    assert same["features.middle.running_var"] is not buffers and not same[W]
    assert same["features.middle.num_batches_tracked"]


# --- the released code -----------------------------------------------------------------------------
# Whole loops of hwang52/FedSKC, in plain PyTorch and float64: what its `local_train`, `infonce_lcl_loss`,
# `get_global_kn`, `average_parameters` and `period_review` do, written anew; nothing of flray's formulas is used. Its
# proximal term compares a model with itself and its weights by discrepancy are computed and then not used, so that
# neither is here; the vectors that it begins with are not initialised, which as zeros add nothing to any gradient.


# A class is at one or two clients only, two of which take part: classes come and go.
CLIENTS = tiny.gaussian_clients((11, 10, 14, 7), classes=4, skew=True)[:3] + [
    (x[y == 3], y[y == 3]) for x, y in tiny.gaussian_clients((16,), classes=4)
]
LR, BATCH, EPOCHS, ROUNDS, TAU, BETA = 0.1, 4, 2, 3, 0.08, 0.99
Knowledge = dict[int, Tensor]


class ReleasedLoop:
    """One model, sent to a cohort in every round."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.model = federation, released.networks(federation)[0]
        self.knowledge: Knowledge = {}

    def run(self, number: int, cohort: list[int]) -> None:
        before, known = copy.deepcopy(self.model.state_dict()), self.knowledge
        replies = [self.train(i, number) for i in cohort]
        sizes = [len(released.private(self.federation, i)[1]) for i in cohort]
        self.knowledge = merge([kn for _, kn in replies])
        now = tiny.mean_of([state for state, _ in replies], sizes)
        if number:
            variances = [
                sum(float(torch.var(vector)) for vector in kn.values())
                for kn in (self.knowledge, known)
            ]
            rho = (variances[0] - variances[1]) / variances[1]
            now = {
                name: BETA * w + (1 - BETA) * rho * (before[name] - w) for name, w in now.items()
            }
        self.model.load_state_dict(now)

    def train(self, i: int, number: int) -> tuple[dict[str, Tensor], Knowledge]:
        model: Any = copy.deepcopy(self.model).train()
        x, y = released.private(self.federation, i)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        seen: dict[int, list[Tensor]] = {}
        orders = released.private_batches(self.federation, i, number, BATCH, EPOCHS)
        for epoch, batches in enumerate(orders):
            for rows in batches:
                outputs, labels = model(x[rows]), y[rows]
                loss = nn.functional.cross_entropy(outputs, labels)
                if self.knowledge:
                    weight = (number + 1) / 100
                    loss = loss + weight * self.contrast(outputs, labels)
                tiny.descend(optimizer, loss)
                if epoch == EPOCHS - 1:
                    for label, output in zip(labels.tolist(), outputs.detach(), strict=True):
                        seen.setdefault(label, []).append(output)
        return model.state_dict(), {c: torch.stack(z).mean(0) for c, z in seen.items()}

    def contrast(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The positive is a class's vector, or the output itself, and stands before all vectors."""
        unit = nn.functional.normalize(outputs, dim=1)
        vectors = nn.functional.normalize(torch.stack(list(self.knowledge.values())), dim=1)
        pairs = zip(labels.tolist(), outputs.detach(), strict=True)
        own = torch.stack([self.knowledge.get(label, output) for label, output in pairs])
        positive = (unit * nn.functional.normalize(own, dim=1)).sum(1, keepdim=True)
        logits = torch.cat([positive, unit @ vectors.T], 1) / TAU
        return nn.functional.cross_entropy(logits, torch.zeros_like(labels))


def merge(local: list[Knowledge]) -> Knowledge:
    """Each holder's vector and the nearest other one's, halved; of all holders the mean."""
    merged = {}
    for label in sorted({label for kn in local for label in kn}):
        held = [kn[label] for kn in local if label in kn]
        pairs = []
        for k, one in enumerate(held):
            others = [other for j, other in enumerate(held) if j != k] or [one]
            nearest = min(others, key=lambda other, one=one: float((other - one).norm()))  # type: ignore[misc]
            pairs.append((one + nearest) / 2)
        merged[label] = torch.stack(pairs).mean(0)
    return merged


def compare(**changes: Any) -> list[set[int]]:
    """Run both, and compare after every round; return the classes known after each."""
    federation = released.fresh(
        {"name": "fedskc", **changes},
        clients=CLIENTS,
        local={"batch_size": BATCH, "epochs": EPOCHS, "lr": 0.01},
        participation={"clients": 2},
        seed=3,  # of these cohorts no client's logits come near zero, where their direction is noise
    )
    loop, classes = ReleasedLoop(federation), []
    for number in range(ROUNDS):
        federation.step()
        loop.run(number, federation.server.cohort)
        released.assert_same(federation.server.model, loop.model, counters=False)
        classes.append(set(loop.knowledge))
    return classes


def test_whole_loops_of_the_released_code() -> None:
    classes = compare()
    assert len({tuple(sorted(known)) for known in classes}) > 1, "classes come and go"
