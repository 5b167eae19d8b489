"""FedSKC: its rounds in plain PyTorch, as the paper has them and as the released code does."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny
from tests.algorithms import released
from tests.helpers import cases

OFF = {"lcl": False, "gda": False, "gpr": False}
Knowledge = dict[int, Tensor]


def test_knowledge_travels_only_where_a_module_needs_it() -> None:
    def round_two(name: str = "fedskc", **options: Any) -> tuple[float, float]:
        metrics = tiny.run({"name": name, **options}).step().metrics
        return metrics["bytes/down"], metrics["bytes/up"]

    down, up = round_two("fedavg")
    assert round_two(**OFF) == (down, up)
    assert round_two(**{**OFF, "lcl": True})[0] == down + 3 * (9 * 8 + 3)
    assert round_two(**{**OFF, "gda": True}) == (down, up + 3 * (9 * 8 + 3 * 8))


# What `local_train`, `infonce_lcl_loss`, `get_global_kn`, `average_parameters` and `period_review` of hwang52/FedSKC
# do, and what the paper's equations say where they differ from it, in plain PyTorch and float64; nothing of flray's
# formulas is used. The released proximal term compares a model with itself and its weights by discrepancy are computed
# and then not used, so that neither is here; the vectors that it begins with are not initialised, which as zeros add
# nothing to any gradient.


# A class is at one or two clients only, two of which take part: classes come and go.
CLIENTS = tiny.gaussian_clients((11, 10, 14, 7), classes=4, skew=True)[:3] + [
    (x[y == 3], y[y == 3]) for x, y in tiny.gaussian_clients((16,), classes=4)
]
LR, BATCH, EPOCHS = 0.01, 4, 2


class Loop:
    """One model, sent to a cohort in every round; `hp` says in which of the two ways."""

    def __init__(self, federation: Federation, hp: Any) -> None:
        self.federation, self.hp = federation, hp
        self.model = released.networks(federation)[0]
        self.knowledge: Knowledge = {}
        self.tracked: dict[str, float] = {}

    def run(self, number: int) -> None:
        cohort, self.tracked = self.federation.server.cohort, {}
        hp, before, known = self.hp, copy.deepcopy(self.model.state_dict()), self.knowledge
        replies = [self.train(i, number) for i in cohort]
        sizes = [len(released.private(self.federation, i)[1]) for i in cohort]
        self.knowledge = now = merged([one for _, one in replies], hp.neighbours)
        distances = [sum(float((c - now[j]).norm()) for j, c in one.items()) for _, one in replies]
        weights = e_k(sizes, distances, hp.sample_scale == "fraction")
        for i, d, e in zip(cohort, distances, weights, strict=True):
            self.tracked |= {f"d_k/client/client{i}": d, f"e_k/client/client{i}": e}
        mean = tiny.mean_of([state for state, _ in replies], weights if hp.gda else sizes)
        both = set(now) & set(known)
        if both:
            each = hp.review_classes == "each"
            spreads = [spread(one, set(one) if each else both) for one in (now, known)]
            rho = self.tracked["rho"] = spreads[0] / spreads[1] - 1
            if hp.gpr:
                beta, names = hp.beta, dict(self.model.named_parameters())
                kept = 1.0 if hp.review == "interpolate" else beta
                mean = {
                    n: kept * w + (1 - beta) * rho * (before[n] - w)
                    if hp.review_buffers or n in names
                    else w
                    for n, w in mean.items()
                }
        self.model.load_state_dict(mean)

    def train(self, i: int, number: int) -> tuple[dict[str, Tensor], Knowledge]:
        model: Any = copy.deepcopy(self.model).train()
        x, y = released.private(self.federation, i)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.hp.lr or LR)
        orders = released.private_batches(self.federation, i, number, BATCH, EPOCHS)
        for batches in orders:
            seen = []
            for rows in batches:
                outputs = model(x[rows])
                loss = nn.functional.cross_entropy(outputs, y[rows])
                if self.knowledge and self.hp.lcl:
                    weight = (number + 1) / 100 if self.hp.lcl_weight == "ramp" else 1
                    loss = loss + weight * self.contrast(outputs, y[rows])
                tiny.descend(optimizer, loss)
                seen.append((outputs.detach(), y[rows]))
        logits, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
        state = copy.deepcopy(model.state_dict())
        if self.hp.knowledge == "after":
            logits, labels = model.eval()(x).detach(), y
        found = {}
        for j in set(labels.tolist()):
            c = logits[labels == j].mean(0)
            found[j] = c * torch.sigmoid(c) if self.hp.gate else c
        return state, found

    def contrast(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Eq. 2-3. The positive is a class's vector or, released, the output itself and one more in the sum."""
        vectors, classes = torch.stack([*self.knowledge.values()]), [*self.knowledge]
        unit = nn.functional.normalize(outputs, dim=1)
        cosines = unit @ nn.functional.normalize(vectors, dim=1).T
        if self.hp.normaliser == "distance":
            distances = [(outputs.detach() - c).norm(dim=1).mean() for c in vectors]
            cosines = cosines / torch.stack(distances)
        terms = list[Tensor]()
        for row, label in enumerate(labels.tolist()):
            if label in classes:
                positive = cosines[row, classes.index(label)]
            elif self.hp.without_prototype == "own":
                positive = unit[row] @ unit[row].detach()
            else:
                continue
            first = [positive] if self.hp.positive_twice else []
            scores = torch.stack([*first, *cosines[row]]) / self.hp.tau
            terms.append(torch.logsumexp(scores, 0) - positive / self.hp.tau)
        return torch.stack(terms).mean() if terms else outputs.sum() * 0


def merged(all_: list[Knowledge], neighbours: int) -> Knowledge:
    """Eq. 1 from loops: each holder's vector with the nearest other ones, of all holders the mean."""
    result = {}
    for j in sorted({j for one in all_ for j in one}):
        holders = [one[j] for one in all_ if j in one]
        smoothed = []
        for i, c in enumerate(holders):
            others = [h for k, h in enumerate(holders) if k != i]
            others.sort(key=lambda h, c=c: float((h - c).norm()))  # type: ignore[misc]
            smoothed.append(torch.stack([c, *others[:neighbours]]).mean(0))
        result[j] = torch.stack(smoothed).mean(0)
    return result


def e_k(sizes: list[int], distances: list[float], scaled: bool) -> list[float]:
    """Eq. 4, in Python's floats."""
    total, whole = sum(sizes), sum(distances)
    values = []
    for n, d in zip(sizes, distances, strict=True):
        argument = (n / total if scaled else n) - d / whole * d + n / total
        values.append(1 / (1 + math.exp(-argument)))
    return [v / sum(values) for v in values]


def spread(known: Knowledge, classes: set[int]) -> float:
    return float(sum(known[j].var(unbiased=False) for j in classes))


def compare(other: Mapping[str, Any] | None = None, **options: Any) -> list[set[int]]:
    """Run both, and compare after every round; return the classes known after each.

    `other` are options that the loop does not have.
    """
    settings: dict[str, Any] = {"clients": CLIENTS, "participation": {"clients": 2}}
    settings["local"] = {"batch_size": BATCH, "epochs": EPOCHS, "lr": LR}
    # Of these cohorts no client's logits come near zero, where their direction is noise.
    settings["seed"], classes = 3, list[set[int]]()
    steps = released.side_by_side("fedskc", Loop, options, other, **settings)
    for federation, loop, metrics in steps:
        released.assert_same(federation.server.model, loop.model, counters=False, atol=1e-11)
        classes.append(set(loop.knowledge))
        known = federation.server.state["knowledge"]
        assert known["present"].tolist() == [j in classes[-1] for j in range(4)], "not equal"
        for j, vector in loop.knowledge.items():
            tiny.close(known["vectors"][j], vector, rtol=1e-9)
        for name, value in loop.tracked.items():
            assert metrics[f"fedskc/{name}"] == pytest.approx(value, rel=1e-8), "not close"
    return classes


def test_whole_loops_of_the_released_code() -> None:
    classes = compare()
    assert len({tuple(sorted(known)) for known in classes}) > 1, "classes come and go"


@cases(
    "options",
    """{}, {review: interpolate}, {sample_scale: fraction}, {neighbours: 2, tau: 0.5},
    {neighbours: 0}, {beta: 0.7, gate: false}, {gda: false}, {lcl: false}, {gpr: false}""",
)
def test_whole_loops_of_the_paper(options: dict[str, Any]) -> None:
    compare(variant="paper", **options)
