"""`variant: released` of FedSKC against whole loops of hwang52/FedSKC, in plain PyTorch and float64.

What its `local_train`, `infonce_lcl_loss`, `get_global_kn`, `average_parameters` and `period_review` do,
written anew; nothing of flray's formulas is used. Its proximal term compares a model with itself
and its weights by discrepancy are computed and then not used, so that neither is here; the
vectors that it begins with are not initialised, which as zeros add nothing to any gradient.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny
from tests.algorithms import released

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
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
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


@pytest.mark.parametrize(
    "change",
    [
        {"beta": 0.95},
        {"gate": True},
        {"normaliser": "distance"},
        {"positive_twice": False},
        {"lcl_weight": "constant"},
        {"without_prototype": "skip"},
        {"gda": True},
        {"knowledge": "after"},
        {"review_buffers": False},
        {"review_classes": "both"},
    ],
    ids=str,
)
def test_without_any_one_of_its_values_it_is_another_loop(change: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="not close"):
        compare(**change)
