"""``local.loss``: formulas, each method that minimises the loss of the task, refusals, identity."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray import register_algorithm, register_loss, registry
from flray.algorithms import Algorithm
from flray.config.components import LossChoice
from flray.config.loader import load
from flray.runs import identity, resume_checks
from flray.tasks.base import bound_loss
from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import BUILT_IN
from tests.end_to_end.test_tasks import SMALL_FUNDUS, SMALL_GLYPHS
from tests.helpers import built, printed, small, written
from tests.messages import mistyped, refused

CALLS: list[int] = []


@register_loss("counted-loss")
def counted(outputs: Tensor, targets: Tensor, *, times: float = 1.0) -> Tensor:
    CALLS.append(len(targets))
    return times * F.cross_entropy(outputs, targets)


@register_loss("pair-loss")
def pair(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:1] - outputs[1:]).square().mean()


WRONG: dict[str, Callable[..., Any]] = {
    "takes-nothing": lambda: 1.0,
    "a-number": lambda outputs, targets: 1.0,
    "each-sample": lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
    "of-nothing": lambda outputs, targets: torch.tensor(1.0),
    "raises": lambda outputs, targets: outputs @ targets,
}
for name, function in WRONG.items():
    register_loss(f"wrong-{name}")(function)


@register_algorithm("hinge-by-hand")
class Hinge(Algorithm):
    """A method that never asks the task."""

    def loss(self, client: Any, batch: Any) -> Tensor:
        return F.multi_margin_loss(batch.outputs, batch.y)


@register_algorithm("step-by-hand")
class ByHand(Algorithm):
    """A method whose own step never asks the task."""

    def step(self, client: Any, batch: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(batch.outputs, batch.y)
        loss.backward()
        optimizer.step()
        client.record_loss(loss)


@register_algorithm("loop-by-hand")
class Loop(Algorithm):
    """A method whose own loop asks it."""

    def train_phase(self, client: Any, phase: Any) -> None:
        for batch, optimizer in client.run(phase):
            optimizer.zero_grad()
            self.loss(client, batch).backward()
            optimizer.step()


def value(loss: Any, outputs: Tensor, targets: Tensor, counts: list[int]) -> Tensor:
    made = bound_loss(LossChoice.model_validate(loss), lambda: torch.tensor(counts))
    return made(outputs, targets)


def test_focal_and_weighted_losses_are_their_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(8, 3, generator=generator, dtype=torch.float64) * 3
    targets = torch.tensor([0, 1, 1, 2, 0, 0, 1, 2])
    p = outputs.softmax(1)[torch.arange(8), targets]
    call = functools.partial(value, outputs=outputs, targets=targets, counts=[6, 2, 0])
    tiny.close(call({"name": "focal", "gamma": 1.5}), (-((1 - p) ** 1.5) * p.log()).mean())
    tiny.close(call({"name": "focal", "gamma": 0}), F.cross_entropy(outputs, targets))
    w = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)[targets]
    given = {"name": "focal", "gamma": 2, "weights": [0.5, 2.0, 1.0]}
    tiny.close(call(given), (-w * (1 - p) ** 2 * p.log()).sum() / w.sum())
    # 8 samples of 2 classes: weights 8 / (2 * 6), 8 / (2 * 2), and none of a class that nobody has.
    balanced = torch.tensor([8 / 12, 2.0, 0.0], dtype=torch.float64)[targets]
    found = call({"name": "cross-entropy", "weights": "balanced"})
    tiny.close(found, (-balanced * p.log()).sum() / balanced.sum())
    smooth = call({"name": "cross-entropy", "smoothing": 0.3})
    spread = -outputs.log_softmax(1).mean()
    tiny.close(smooth, 0.7 * F.cross_entropy(outputs, targets) + 0.3 * spread)


def test_a_certain_sample_has_no_infinite_slope() -> None:
    outputs = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]], requires_grad=True)
    for gamma in (0, 0.5, 1, 2):
        loss = value({"name": "focal", "gamma": gamma}, outputs, torch.tensor([0, 0]), [1, 1])
        (slope,) = torch.autograd.grad(loss, outputs)
        assert bool(torch.isfinite(loss)) and bool(torch.isfinite(slope).all()), gamma


def weighted(weights: Any, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return F.cross_entropy(x @ weights[tiny.V].T, y, w)


def test_a_step_of_fedavg_and_of_fedprox_follow_the_loss() -> None:
    """One step on all samples, by hand; each client's own counts weigh its classes."""
    clients = tiny.gaussian_clients(skew=True)
    loss = {"name": "cross-entropy", "weights": "balanced"}
    for method in ("fedavg", "fedprox", "fedbn"):
        made = tiny.fresh(method, clients, **tiny.full(loss=loss))
        start = tiny.start(made)
        made.step()
        steps = []
        for x, y in ((torch.from_numpy(x), torch.from_numpy(y)) for x, y in clients):
            counts = torch.bincount(y, minlength=3).double()
            held = counts > 0
            w = torch.where(held, counts.sum() / (held.sum() * counts.clamp(min=1)), 0.0)
            of = functools.partial(weighted, x=x, y=y, w=w)
            steps.append(tiny.gradient_step(start, of))
        sizes = [1, 1, 1] if made.spec.weighting == "uniform" else tiny.SIZES
        tiny.close(dict(made.server.model), tiny.mean_of(steps, sizes))


def test_plain_cross_entropy_is_the_default_to_the_bit_and_others_are_not() -> None:
    default = tiny.run("fedavg", rounds=2).sha256()
    assert tiny.run("fedavg", rounds=2, local={"loss": "cross-entropy"}).sha256() == default
    assert tiny.run("fedavg", rounds=2, local={"loss": "focal"}).sha256() != default
    rod = {"name": "fedrod", "generic_loss": "ce"}  # which takes it then
    assert tiny.run(rod, local={"loss": "focal"}).sha256() != tiny.run(rod).sha256()


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_method_minimises_the_loss_or_refuses_it(name: str) -> None:
    settings = tiny.settings_for(name)
    method = registry.algorithms.get(name)()
    if method.own_loss():
        assert name in ("fedrod", "rhfl")
        refused(tiny.spec_of, name, local={"loss": "counted-loss"}, **settings)
        return
    shas = set()
    for times in (1.0, 0.25):
        loss = {"name": "counted-loss", "times": times}
        made = tiny.fresh(name, local={"loss": loss}, **settings)
        CALLS.clear()
        made.step()
        assert len(CALLS) >= 3, "no client asked for it"
        made.step()
        shas.add(f"{made.sha256()} {[tiny.state_of(made, client) for client in range(3)]}")
    assert len(shas) == 2, "it changes nothing"


def test_what_is_no_loss_or_does_not_fit_is_refused_before_the_first_round() -> None:
    for name in sorted(WRONG):
        refused(tiny.spec_of, "fedavg", local={"loss": f"wrong-{name}"})
    refused(tiny.spec_of, "hinge-by-hand", local={"loss": "focal"})
    refused(tiny.spec_of, "step-by-hand", local={"loss": "focal"})
    assert tiny.spec_of("loop-by-hand", local={"loss": "focal"})
    refused(tiny.spec_of, "fedavg", local={"loss": {"name": "focal", "weights": [1.0, 2.0]}})
    refused(built, SMALL_FUNDUS, local={"loss": "focal"})
    refused(built, SMALL_GLYPHS, local={"loss": "cross-entropy"})
    assert built(SMALL_GLYPHS, local={"loss": "pair-loss"})  # the user's own
    block = {"aggregation": {"block": 3}, "local": {"loss": "focal", "clients_per_step": 3}}
    refused(tiny.spec_of, "fedavg", model={"name": "two-layer", "norm": False}, **block)


def test_settings_of_a_loss_are_refused_in_one_line(tmp_cwd: Path) -> None:
    wrong = ["focall", {"name": "focal", "gama": 2}, {"name": "focal", "gamma": -1}, 7]
    weights = ("even", [1, 0, 1], [1, float("inf")], 2)
    wrong += [{"name": "focal", "weights": one} for one in weights]
    for loss in (*wrong, {"name": "cross-entropy", "smoothing": 1}):
        mistyped("run", written(small(local={"loss": loss})))


def test_without_a_loss_settings_and_identity_are_the_former_ones() -> None:
    plain, other = (load({"experiment": small(local=one)}) for one in ({}, {"loss": "focal"}))
    before = resume_checks.settings_text(plain, "run")
    assert not [key for key in before if key.startswith("local.loss")]
    after = resume_checks.settings_text(other, "run")
    added = {"name": "focal", "gamma": "2.0", "weights": "None"}
    assert after == before | {f"local.loss.{name}": value for name, value in added.items()}
    one, two = (identity.run_identity(c.experiment, "auto", "x") for c in (plain, other))
    assert one["settings"] != two["settings"] and one["code"] == two["code"]


OWN = '''
import torch.nn.functional as F
from flray import register_loss

@register_loss("sharp")
def sharp(outputs, targets, *, heat: float = 2.0):
    """Poisson regression of outputs times the heat."""
    return F.poisson_nll_loss(heat * outputs, targets.to(outputs.dtype))
'''


def test_a_plug_in_is_listed_and_belongs_to_the_identity(tmp_cwd: Path) -> None:
    Path("own_loss.py").write_text(OWN)
    shown = printed("list", "losses", "--plugins", "own_loss.py")
    assert "sharp (own)" in shown and "focal" in shown and "cross-entropy" in shown
    assert "heat" in printed("list", "losses", "sharp", "--plugins", "own_loss.py")
    assert "local.loss" in printed("list", "settings", "local")
    settings = small(plugins=["own_loss.py"], local={"loss": {"name": "sharp", "heat": 3}})
    found = identity.code_of(load({"experiment": settings}).experiment)
    assert [Path(file).name for file in found["files"]] == ["own_loss.py"]
