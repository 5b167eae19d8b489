"""What a client offers to hooks, how much and how fast it trains; public batches are the same for every participant."""

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flray import registry, rng, trees
from flray.algorithms.base import Algorithm
from flray.algorithms.client import Client, learning_rate
from flray.algorithms.common.client_parts import gradient_at
from flray.algorithms.common.samples import Batch, Samples
from flray.algorithms.types import Phase
from flray.config.experiment import Local, Participation
from flray.data.augment import augment_batch
from flray.federation import FederationSpec, checkpoint
from flray.models import build
from flray.runs.resume_checks import check_extendable
from tests.algorithms import helpers as tiny
from tests.helpers import cases
from tests.messages import refused

SEEN: list[Tensor] = []


@registry.register_algorithm("watching")
class Watching(Algorithm):
    """FedAvg that notes its batches."""

    def loss(self, client: Client, batch: Any) -> Tensor:
        SEEN.append(batch.x.clone())
        return super().loss(client, batch)


IMAGES: dict[str, Any] = {"model": "linear", "data": {"name": "small-images"}, "rounds": 2}


def batches(algorithm: str = "watching", **local: Any) -> list[Tensor]:
    SEEN.clear()
    tiny.run(algorithm, local={"batch_size": 8, **local}, **IMAGES)
    return list(SEEN)


def test_augmentation_is_keyed_and_moves_no_other_stream() -> None:
    plain, flipped, again = batches(), batches(augment="flip"), batches(augment="flip")
    assert len(plain) == len(flipped) == 2 * 2 * 2 and all(map(torch.equal, flipped, again))
    # The same samples in the same order, mirrored or not.
    pairs = list(zip(torch.cat(plain), torch.cat(flipped), strict=True))
    assert all(torch.equal(a, b) or torch.equal(a.flip(-1), b) for a, b in pairs)
    assert 0 < sum(not torch.equal(a, b) for a, b in pairs) < 64
    assert not torch.equal(flipped[0] == plain[0], flipped[4] == plain[4]), "every round draws anew"


@cases("size, sizes", "[5, [5, 5, 5, 1]], [8, [8, 8]], [20, [16]]")
def test_a_smaller_last_batch_may_be_left_out(size: int, sizes: list[int]) -> None:
    """Of both epochs, but never an only one; which samples make up the others does not depend on the setting."""
    whole, cut = (batches(batch_size=size, epochs=2, drop_last=how) for how in (False, True))
    assert [len(batch) for batch in whole] == sizes * 8
    full = [batch for batch in whole if len(batch) != 1]
    assert all(torch.equal(one, other) for one, other in zip(full, cut, strict=True))


@registry.register_algorithm("brief")
class Brief(Watching):
    """FedAvg with three steps a round of the batches of two epochs."""

    def phases(self, client: Client) -> tuple[Phase, ...]:
        return (Phase(epochs=2, steps=3),)


def test_a_phase_of_so_many_steps_takes_the_first_batches_of_its_passes() -> None:
    whole, found = batches(epochs=2), batches("brief")
    expected = [batch for place, batch in enumerate(whole) if place % 4 < 3]
    assert len(found) == len(expected) == 12 and all(map(torch.equal, found, expected))


ASIDE: list[dict[str, Any]] = []


@registry.register_algorithm("looking-aside")
class LookingAside(Algorithm):
    """FedAvg that looks at the gradient at twice its parameters before each step."""

    def loss(self, client: Client, batch: Any) -> Tensor:
        double = {name: 2 * w.detach() for name, w in client.parameters.items()}
        buffers = client.snapshot(frozenset(client.resident.entries) - client.parameters.keys())
        before = trees.clone(buffers)
        gradient_at(client, batch, double, buffers)
        ASIDE.append({"x": batch.x, "double": double, "before": before, "buffers": buffers})
        return super().loss(client, batch)


def test_a_batch_calls_the_network_if_that_is_more_than_its_parts() -> None:
    """Also features, asked for after the outputs, are those that the outputs were computed from."""
    x, seen = torch.randn(4, 3, 32, 32), list[str]()
    plain, hooked, other = (build("lenet", (3, 32, 32), 10, {}, 0) for _ in range(3))
    hooked.register_forward_hook(lambda *_: seen.append("hook"))
    other.forward = lambda x: 2 * type(other).forward(other, x)
    for network, times in ((plain, 1), (hooked, 1), (other, 2)):
        one = Batch(network, x, torch.zeros(4, dtype=torch.int64), 0, Phase())
        assert torch.equal(one.outputs, times * plain(x))
        assert torch.equal(one.features, plain.features(x))
        assert one.outputs.grad_fn is not None and one.features.grad_fn is not None
    assert seen == ["hook"]


def test_looking_aside_moves_the_given_buffers_and_nothing_else() -> None:
    """Neither the model's statistics nor the units that dropout leaves out in the pass that follows."""
    ASIDE.clear()
    settings: dict[str, Any] = {"model": {"name": "two-layer", "dropout": 0.5}, "rounds": 2}
    one, other = (tiny.digest(name, **settings) for name in ("looking-aside", "fedavg"))
    assert one == other
    assert len(ASIDE) == 18
    for seen in ASIDE:
        mean = (seen["x"] @ seen["double"][tiny.W].T).mean(0)
        expected = 0.9 * seen["before"]["features.middle.running_mean"] + 0.1 * mean
        tiny.close(seen["buffers"], {"features.middle.running_mean": expected})


def test_default_generators_are_as_before_even_after_an_error() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    with contextlib.suppress(ZeroDivisionError), rng.default_generators_kept(torch.device("cpu")):
        rng.seed_default_generators(7, torch.device("cpu"))
        torch.rand(5)
        1 / 0  # noqa: B018
    assert torch.equal(torch.rand(2), wanted)


HALF = [0.4, 0.2 * (1 + math.sqrt(0.5)), 0.2, 0.2 * (1 - math.sqrt(0.5))]


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ({}, [0.4, 0.4, 0.4]),
        ({"lr_decay": 0.5}, [0.4, 0.4 * 0.5, 0.4 * 0.25]),
        ({"warmup": 2}, [0.2, 0.4, 0.4, 0.4]),
        ({"schedule": "cosine"}, HALF),
        ({"schedule": "cosine", "warmup": 2}, [0.2, 0.4, *HALF]),
    ],
    ids=str,
)
def test_the_learning_rate_of_each_round(local: dict[str, Any], expected: list[float]) -> None:
    settings = Local(lr=0.4, **local)
    rates = [learning_rate(settings, round, len(expected)) for round in range(len(expected))]
    exact = settings.schedule == "constant"
    assert rates == (expected if exact else pytest.approx(expected, rel=1e-15))


@cases(
    "sizes, local, steps",
    """[[12, 9, 15], {steps: 1}, 3], [[12, 9, 15], {steps: 2}, 6], [[12, 9, 15], {steps: 5}, 15],
    [[12], {epochs: 0.5}, 2], [[12], {epochs: 0.1}, 1], [[12], {epochs: 1.5}, 5],
    [[12], {epochs: 2.0}, 6], [[60], {epochs: 0.1, batch_size: 2}, 3],
    [[12, 12], {steps: 4, slow: 0.5}, 4]""",
)
def test_so_many_steps_are_taken(sizes: Any, local: dict[str, Any], steps: int) -> None:
    """Batches of 4: 12, 9 and 15 samples have 3, 2 (a last one of one sample is left out) and 4; begun ones count."""
    slow = {"stragglers": 1.0, "straggler_work": local.pop("slow", 1.0)}
    federation = tiny.run("fedavg", tiny.gaussian_clients(sizes), local=local, participation=slow)
    assert federation.wait_for_round().metrics["train/steps"] == steps


def test_as_many_steps_as_epochs_have_give_the_same_bits() -> None:
    clients = tiny.gaussian_clients((12, 12, 12))
    epochs, steps, fewer = (
        tiny.run("fedavg", clients, rounds=2, local=local).sha256()
        for local in ({"epochs": 2}, {"steps": 6}, {"steps": 5})
    )
    assert epochs == steps != fewer


def test_a_schedule_that_depends_on_the_number_of_rounds_is_not_extended() -> None:
    refused(check_extendable, tiny.spec_of("fedavg", rounds=4, local={"schedule": "cosine"}), 2)
    check_extendable(tiny.spec_of("fedavg", rounds=4, local={"warmup": 2}), 3)


FOUR, MANY = tiny.gaussian_clients((12,) * 4), tiny.gaussian_clients((4,) * 12)


def works(source: Any) -> dict[str, float]:
    """Return what a round, the next of a federation, tracks of each client's share of the work."""
    metrics = source if isinstance(source, dict) else source.step().metrics
    prefix = "train/work/client/"
    return {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}


def test_single_clients_do_their_share_of_the_epochs() -> None:
    """12 samples in batches of 4: 3 steps an epoch; a product such as 0.1 * 30 gains no step."""
    work = {"client0": 0.1, "client1": 0.3, "client2": 0.7}
    federation = tiny.fresh("fedavg", FOUR, local={"epochs": 10}, participation={"work": work})
    metrics = federation.step().metrics
    assert metrics["train/steps"] == 3 + 9 + 21 + 30
    assert metrics["cohort/slow"] == 3 and metrics["cohort/dropped"] == 0
    assert works(metrics) == works(federation) == {**work, "client3": 1.0}
    settings: Any = {}, {"work": {"client0": 1.0}}
    plain, same = (tiny.run("fedavg", FOUR, participation=one) for one in settings)
    assert plain.sha256() == same.sha256()
    found = plain.step().metrics
    assert not [name for name in found if "work" in name or name == "cohort/slow"]


def test_a_round_in_which_all_do_everything_counts_in_means_over_seeds_too() -> None:
    metrics = tiny.fresh("fedavg", participation={"stragglers": 1e-9}).step().metrics
    names = ("train/work", "train/work/client/client2", "cohort/slow", "cohort/dropped")
    assert [metrics[name] for name in names] == [1, 1, 0, 0]
    pooled = tiny.fresh("pooled", participation={"stragglers": 1e-9}).step().metrics
    assert "train/work" not in pooled


def test_single_clients_do_epochs_of_their_own() -> None:
    """12 samples in batches of 4: 3 steps an epoch; as many as local.epochs are the bits of none of their own."""
    own = {"client0": {"epochs": 2}, "client1": {"epochs": 20}, "client2": {"epochs": 0.5}}
    federation = tiny.fresh("fedavg", FOUR, local={"epochs": 5}, participation={"work": own})
    metrics = federation.step().metrics
    assert metrics["train/steps"] == 6 + 60 + 2 + 15 and metrics["cohort/slow"] == 2
    assert works(federation) == {"client0": 0.4, "client1": 4.0, "client2": 0.1, "client3": 1.0}
    for epochs in (2, 5, 7):
        all_of_them = {"work": {f"client{number}": {"epochs": epochs} for number in range(4)}}
        run = tiny.run("scaffold", FOUR, local={"epochs": 5}, participation=all_of_them)
        assert run.sha256() == tiny.run("scaffold", FOUR, local={"epochs": epochs}).sha256()
    more = {"work": {"client1": {"epochs": 20}}}
    found = tiny.fresh("fedavg", FOUR, participation=more).step().metrics
    assert found["train/work/client/client1"] == 20 and found["cohort/slow"] == 0


def test_slow_clients_draw_whole_epochs_as_fedprox_has_it(tmp_path: Path) -> None:
    """A tenth of 5 epochs never happens; each number of epochs does, anew in each round, and again at a resume."""
    drawn = {"stragglers": 0.9, "straggler_work": "drawn"}
    settings = {"local": {"epochs": 5}, "participation": drawn}
    federation, again = (tiny.fresh("fedprox", MANY, **settings) for _ in range(2))
    rounds = [works(federation) for _ in range(4)]
    seen = {share for each in rounds for share in each.values()}
    assert seen == {0.2, 0.4, 0.6, 0.8, 1.0} and rounds[0] != rounds[1]
    assert [works(again) for _ in range(2)] == rounds[:2]
    checkpoint.save(again, tmp_path)
    resumed = tiny.federation_of(again.spec)
    assert checkpoint.restore(resumed, tmp_path) == 2
    assert [works(resumed) for _ in range(2)] == rounds[2:]
    assert resumed.sha256() == federation.sha256()
    fewer = {**drawn, "straggler_work": 0.5}
    assert set(works(tiny.fresh("fedprox", MANY, participation=fewer)).values()) <= {0.5, 1.0}


def test_slow_clients_draw_whole_epochs_of_their_own() -> None:
    """Of 3 or 8 epochs of their own, of a half of 6, and of 2.5, which has whole ones up to 2."""
    slow = {"stragglers": 1 - 1e-9, "straggler_work": "drawn"}
    own: dict[str, Any] = {"client0": {"epochs": 3}, "client1": {"epochs": 8}}
    own |= {"client2": 0.5, "client3": {"epochs": 2.5}}
    federation, little = (
        tiny.fresh("fedavg", MANY[:4], local={"epochs": 6}, participation={**slow, "work": work})
        for work in (own, {"client0": {"epochs": 0.5}})
    )
    seen = [works(federation) for _ in range(60)]
    for number, most in enumerate((3, 8, 3, 2)):
        found = {round(6 * one[f"client{number}"], 6) for one in seen}
        assert found == set(range(1, most + 1))
    assert works(little)["client0"] == pytest.approx(0.5 / 6)


def test_who_dropped_out_is_tracked() -> None:
    metrics = tiny.fresh("fedavg", MANY, participation={"dropout": 0.5}).step().metrics
    dropped = [name for name, share in works(metrics).items() if not share]
    assert metrics["cohort/dropped"] == len(dropped) == 12 - metrics["cohort/size"] > 0


def test_shares_that_mean_nothing_are_refused() -> None:
    refused(tiny.spec_of, "fedavg", participation={"work": {"client7": 0.5}})
    refused(tiny.spec_of, "pooled", participation={"work": {"client1": 0.5}})
    drawn = {"straggler_work": "drawn", "stragglers": 0.5}
    for epochs in (1, 2.5):
        refused(tiny.spec_of, "fedavg", local={"epochs": epochs}, participation=drawn)
    for wrong in ({"work": {"client0": 0}}, {"work": {"client0": 1.5}}, {"work": 0.5}):
        refused(tiny.spec_of, "fedavg", participation=wrong)
    refused(tiny.spec_of, "fedavg", participation={"straggler_work": "draw"})
    for epochs in (0, "many", None):
        refused(tiny.spec_of, "fedavg", participation={"work": {"client0": {"epochs": epochs}}})
    own = {"work": {"client0": {"epochs": 2}}}
    for local in ({"epochs": 0}, {"epochs": 0.5}, {"steps": 4}):
        refused(tiny.spec_of, "fedavg", local=local, participation=own)


def test_without_shares_settings_are_the_former_ones_and_whole_numbers_stay_so() -> None:
    settings = [Local(epochs=value).model_dump(mode="json") for value in (2, 2.0)]
    assert settings[0] == settings[1] and repr(settings[0]["epochs"]) == "2"
    assert "work" not in Participation().model_dump(mode="json")
    assert Participation(work={"a": 0.5}).model_dump(mode="json")["work"] == {"a": 0.5}
    own = Participation(work={"a": {"epochs": 2.0}})  # type: ignore[dict-item]
    assert repr(own.model_dump(mode="json")["work"]) == "{'a': {'epochs': 2}}"
    assert Participation().model_dump(mode="json")["straggler_work"] == 0.5


Seen = dict[tuple[int, int], list[Tensor]]
AUGMENTATIONS = ("none", "crop", "weak", "strong")


def spec_with(algorithm: str, local: dict[str, Any], **options: Any) -> FederationSpec:
    data, networks = {"name": "digits-sklearn", "samples": 16}, {"rotated": "simple-cnn"}
    settings = {"data": data, "model": "lenet", "models": networks, "rounds": 1}
    local = {"precision": "float32", "lr": 0.01, "batch_size": 32, **local}
    return tiny.spec_of({"name": algorithm, "public_size": 30, **options}, local=local, **settings)


def seen(augment: str, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Return the public batches of one round by client and number, each time a client looked at one."""
    spec, batches = spec_with("fcclplus", {"augment": augment}, public_batch_size=15), Seen()
    kind = type(spec.algorithm)
    original = kind.public_batch

    def watched(self: Any, client: Client, index: int) -> Tensor:
        batch = original(self, client, index)
        batches.setdefault((client.id, index), []).append(batch.clone())
        return batch

    with monkeypatch.context() as patch:
        patch.setattr(kind, "public_batch", watched)
        tiny.federation_of(spec).step()
    return batches


def test_public_batches_are_the_same_for_all_participants(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Seen = {}
    for augment in AUGMENTATIONS:
        batches = seen(augment, monkeypatch)
        plain = plain or batches
        assert sorted(batches) == [(client, index) for client in range(4) for index in range(2)]
        for (_, index), found in batches.items():
            assert len(found) == 2, "once for the outputs, once for the step"
            assert all(torch.equal(batch, batches[0, index][0]) for batch in found)
        assert not torch.equal(batches[0, 0][0], batches[0, 1][0])
        assert torch.equal(batches[0, 0][0], plain[0, 0][0]) is (augment == "none")


def changed(spec: FederationSpec, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Tell whether a round trains on private and on public images that are not those stored."""
    found = {"private": False, "public": False}

    def stored(samples: Samples, x: Tensor) -> bool:
        known, _ = samples.take(torch.arange(len(samples)))
        rows = {one.contiguous().numpy().tobytes() for one in known}
        return all(one.contiguous().numpy().tobytes() in rows for one in x)

    kind = type(spec.algorithm)
    loss = kind.loss

    def watched_loss(self: Any, client: Client, batch: Batch) -> Tensor:
        labelled = bool((batch.y >= 0).all()) and batch.phase.tag != "digest"
        found["private"] |= labelled and not stored(client.train, batch.x)
        return loss(self, client, batch)

    def watched(images: Tensor, how: Any, *rest: Any) -> Tensor:
        augmented = augment_batch(images, how, *rest)
        found["public"] |= not torch.equal(images, augmented)
        return augmented

    with monkeypatch.context() as patch:
        patch.setattr(kind, "loss", watched_loss)
        for place in ("common.public_exchange", "fedmatch"):
            patch.setattr(f"flray.algorithms.{place}.augment_batch", watched)
        tiny.federation_of(spec).step()
    return [found["private"], found["public"]]


BATCHES: dict[str, Any] = {"public_batch_size": 15}


def learnt(*arguments: Any, **options: Any) -> str:
    federation = tiny.federation_of(spec_with(*arguments, **options))
    federation.step()
    return federation.sha256()


@cases(
    "name, options, local, wanted",
    """[fcclplus, {}, {}, [false, false]], [fcclplus, {}, {augment: flip}, [true, true]],
    [fcclplus, {}, {public_augment: weak}, [false, true]],
    [fcclplus, {}, {public_augment: [{name: rotation, degrees: 30}]}, [false, true]],
    [fcclplus, {}, {augment: flip, public_augment: none}, [true, false]],
    [fccl, {pretrain_epochs: 1}, {augment: flip, public_augment: none}, [true, false]],
    [rhfl, {}, {augment: flip, public_augment: none}, [true, false]],
    [feddf, {mode: peer}, {augment: flip, public_augment: none}, [true, false]],
    [fedmatch, {average: false, strong: none}, {augment: flip, public_augment: none}, [true, false]],
    [fedmatch, {average: false, strong: none}, {public_augment: weak}, [false, true]],
    [fcclplus, {variant: released, pretrain_epochs: 1}, {}, [false, true]],
    [fccl, {variant: released, pretrain_epochs: 1}, {}, [false, true]]""",
)
def test_private_and_public_images_are_augmented_apart(
    name: str, options: Any, local: Any, wanted: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method's options and the experiment's; FedMatch's public augmentation is its weak view."""
    spec = spec_with(name, local, **{**BATCHES, **options} if name != "fedmatch" else options)
    assert changed(spec, monkeypatch) == wanted


def test_fedmd_compares_scores_of_images_as_they_are() -> None:
    assert learnt("fedmd", {}) == learnt("fedmd", {"public_augment": "strong"})


def test_a_methods_own_augmentation_comes_before_the_experiments() -> None:
    """In the order: the method's own of public images, the experiment's, that of private images."""
    public, private, none = {"public_augment": "flip"}, {"augment": "flip"}, dict[str, Any]()
    pairs = ((public, {"augment": "none"}), (none, public), (public, public))
    digests = [
        learnt("fcclplus", local, **BATCHES, **options)
        for options, local in (*pairs, (private, none), (none, private), (none, none))
    ]
    assert digests[0] == digests[1] == digests[2] and digests[3] == digests[4]
    assert len(set(digests)) == 3


@pytest.mark.parametrize("name", ["apfl", "fedskc", "lgmix", "rhfl"])
def test_methods_that_compute_nothing_of_a_diverged_model_say_so(name: str) -> None:
    refused(tiny.run, name, rounds=3, local={"lr": 1e30})
