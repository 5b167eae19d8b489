"""Splits, shifts and noise; samples hold their own number, so that a leak shows in the samples themselves."""

import errno
import itertools
import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flray.config.experiment import Config
from flray.config.loader import load
from flray.config.sections import Shift
from flray.data import DataSet, Domain, FederatedData, federate, load_dataset, splits
from flray.data.augment import sample_noise
from flray.data.sources import images
from flray.federation import partition_summary
from flray.federation.worker.resources import WorkerResources
from flray.records import directory, read_partition
from flray.registry import partitions
from tests.helpers import built, cases, small
from tests.messages import refused


def numbered(sizes: Sequence[tuple[int, int]], classes: int = 4, coarse: bool = True) -> DataSet:
    """Return domains of so many training and test samples; sample i holds the number i, counted over all."""
    generator, numbers, made = np.random.default_rng(0), itertools.count(), []
    for d, pair in enumerate(sizes):
        parts: list[Any] = []
        for size in pair:
            x = np.array([[next(numbers)] for _ in range(size)], dtype=np.float32)
            parts += [x.reshape(size, 1), generator.integers(0, classes, size)]
        made.append(Domain(f"d{d}", "random", *parts))
    parents = tuple(c // 2 for c in range(classes)) if coarse else None
    names = tuple("abcdefgh"[:classes])
    return DataSet("numbered", tuple(made), names, (0.0,), (1.0,), coarse=parents)


def numbers_of(data: FederatedData, part: str) -> set[float]:
    return set(data.x[np.concatenate([getattr(c, part) for c in data.clients]), 0].tolist())


FLOWER = {"alpha": 2, "min_partition_size": 1}
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"clients": 4} for name in ("iid", "dirichlet-equal", "pathological", "pachinko")},
    **{name: {"clients": 4, "alpha": 2} for name in ("dirichlet", "quantity")},
    "flower": {"partitioner": "DirichletPartitioner", "clients": 4, "options": FLOWER},
    "domains": {"clients_per_domain": 2},
    "domain-dirichlet": {"alpha": 2},
}
SEEDS, pick = st.integers(0, 2**32), st.sampled_from
SPLITS = ["official", (0.6, 0.2, 0.2), (0.5, 0.0, 0.5), "fedbn-office"]
SHIFTS = [
    *(Shift(), Shift(long_tail=10), Shift(sizes={"d0": 30}), Shift(ratio=0.5)),
    Shift(long_tail=5, sizes={"d1": 20}, ratio=0.7, noise=0.3),
]


@settings(max_examples=80, deadline=None)
@given(pick(sorted(OPTIONS)), pick(SPLITS), pick(SHIFTS), SEEDS, pick([0.0, 0.2, 0.99]))
def test_nothing_leaks(name: str, split: Any, shift: Shift, seed: int, val_fraction: float) -> None:
    if split != "official":
        val_fraction = 0.0
    dataset = numbered([(160, 40), (120, 40)])
    data = federate(dataset, name, OPTIONS[name], seed, val_fraction, split=split, shift=shift)
    rows = np.concatenate([part for c in data.clients for part in (c.train, c.val, c.test)])
    assert len(np.unique(rows)) == len(rows)
    seen = [numbers_of(data, part) for part in ("train", "val", "test")]
    assert sum(map(len, seen)) == len(set().union(*seen)) == len(rows)
    official = {float(v) for d in dataset.domains for v in d.test_x[:, 0]}
    if split in ("official", "fedbn-office"):
        assert not (seen[0] | seen[1]) & official and seen[2] <= official
        if name != "domain-dirichlet":
            assert seen[2] == official  # whatever the shift does to training data
    assert all(len(c.train) for c in data.clients)
    pairs = [
        pair for d in dataset.domains for pair in ((d.train_x, d.train_y), (d.test_x, d.test_y))
    ]
    labels = {float(x): int(y) for xs, ys in pairs for x, y in zip(xs[:, 0], ys, strict=True)}
    assert labels == dict(zip(data.x[:, 0].tolist(), data.y.tolist(), strict=True))
    if split == "official" and shift == Shift():
        wholes = [len(c.train) + len(c.val) for c in data.clients]
        wanted = [min(round(val_fraction * n), n - 1) for n in wholes]
        assert [len(c.val) for c in data.clients] == wanted
        assert name == "domain-dirichlet" or len(rows) == len(data.y)
    assert np.array_equal(data.test, np.concatenate([c.test for c in data.clients]))
    again = federate(dataset, name, OPTIONS[name], seed, val_fraction, split=split, shift=shift)
    assert again.partition_fingerprint == data.partition_fingerprint


@cases(
    "split, sizes, held",
    """[[0.6, 0.2, 0.2], [[100, 50], [310, 0]], [[90, 30, 30], [186, 62, 62]]],
    [fedbn-digits, [[1500, 300], [900, 300]], [[743, 0, 360], [743, 0, 240]]],
    [fedbn-office, [[300, 60], [121, 30]], [[60, 48, 60], [60, 48, 30]]],
    [fedbn-domainnet, [[900, 60], [479, 30]], [[23, 23, 60], [23, 23, 30]]],
    [lgmix-digits, [[100, 50], [41, 10]], [[75, 25, 50], [31, 10, 10]]]""",
)
def test_sizes(split: Any, sizes: Any, held: list[list[int]]) -> None:
    """DomainNet: int(479 * 0.05) of every domain for training, as many others for validation."""
    split, dataset = tuple(split) if isinstance(split, list) else split, numbered(sizes)
    data = federate(dataset, "domains", {}, 5, split=split)
    assert [[len(c.train), len(c.val), len(c.test)] for c in data.clients] == held
    assert not numbers_of(data, "train") & numbers_of(data, "val")
    official = {float(v) for v in dataset.domains[0].test_x[:, 0]}
    pools = len(split) == 3 or split == "fedbn-digits"  # training and test part are divided anew
    assert bool(numbers_of(data, "train") & official) is pools
    assert bool(numbers_of(data, "val") & official) is (len(split) == 3)
    if split in ("fedbn-digits", "fedbn-domainnet", "lgmix-digits"):  # it has its own seed
        other = federate(dataset, "domains", {}, 6, split=split)
        assert other.partition_fingerprint == data.partition_fingerprint


def test_a_client_of_few_samples_is_split_too() -> None:
    parts = [splits.by_client(np.arange(n), (0.6, 0.2, 0.2), 0, 0) for n in (1, 2, 5)]
    assert [[len(part) for part in one] for one in parts] == [[1, 0, 0], [2, 0, 0], [3, 1, 1]]


def test_a_ratio_of_fedbns_digits_is_one_of_its_training_part() -> None:
    dataset = numbered([(1500, 300), (900, 300)])
    small, whole, large = (
        federate(dataset, "domains", {}, 5, split="fedbn-digits", shift=Shift(ratio=r))
        for r in (0.2, 1.0, 1.2)
    )
    found = [len(c.train) for c in (*small.clients, *large.clients)]
    assert found == [149, 149, 892, 892]
    assert numbers_of(small, "train") < numbers_of(whole, "train") < numbers_of(large, "train")
    assert np.array_equal(np.sort(small.test), np.sort(whole.test))


def test_a_balanced_part_of_a_domain_is_nearer_to_its_share() -> None:
    dataset = numbered([(3000, 300)] * 2, classes=8)
    sizes = []
    for more in ({}, {"balanced": True}):
        options = {"alpha": 0.3, "parts": 3, "keep": 3, **more}
        made = (federate(dataset, "domain-dirichlet", options, seed) for seed in range(5))
        sizes.append([[len(c.train) for c in data.clients] for data in made])
    plain, balanced = (np.abs(np.array(one) - 1000).mean() for one in sizes)
    assert balanced < 0.7 * plain
    # A part that is full gets no further class: none is fuller than by the class that filled it.
    assert np.max(sizes[1]) <= 1000 + np.bincount(dataset.domains[0].train_y).max()


def test_a_ratio_changes_nothing_but_the_training_part() -> None:
    dataset = numbered([(160, 40), (120, 40)])
    whole, half = (
        federate(dataset, "dirichlet", {"clients": 3}, 1, 0.2, shift=Shift(ratio=r))
        for r in (1.0, 0.5)
    )
    for a, b in zip(whole.clients, half.clients, strict=True):
        assert len(b.train) == round(len(a.train) / 2) and set(b.train) < set(a.train)
        assert np.array_equal(a.val, b.val) and np.array_equal(a.test, b.test)


def test_a_long_tail_comes_before_the_partition() -> None:
    dataset = numbered([(4000, 400)], classes=4)
    data = federate(dataset, "iid", {"clients": 5}, 0, shift=Shift(long_tail=8))
    there = np.bincount(dataset.domains[0].train_y)
    assert data.class_counts().sum(0).tolist() == [min(1000 // 2**c, there[c]) for c in range(4)]
    assert len(data.test) == 400


def test_a_test_part_is_as_imbalanced_as_asked_for() -> None:
    dataset = numbered([(4000, 400), (400, 40)], classes=4)
    plain, tailed = (
        federate(dataset, "domains", {}, 0, shift=Shift(test_long_tail=rho)) for rho in (None, 8)
    )
    for number, domain in enumerate(dataset.domains):
        there = np.bincount(domain.test_y, minlength=4)
        test = tailed.clients[number].test
        sizes = [min(int(there.sum() / 4 / 2**c), there[c]) for c in range(4)]
        assert np.bincount(tailed.y[test], minlength=4).tolist() == sizes
        assert set(test) < set(plain.clients[number].test)
        assert np.array_equal(plain.clients[number].train, tailed.clients[number].train)


def test_superclasses_reach_pachinko_or_are_missed() -> None:
    options = {"clients": 5, "alpha": 0.01, "beta": 100}
    data = federate(numbered([(160, 40)]), "pachinko", options, 0)
    assert (data.class_counts().reshape(5, 2, 2).sum(2).max(1) >= 20).all()
    refused(federate, numbered([(160, 40)], coarse=False), "pachinko", {}, 0)


def of_file(split: Any = "official", shift: Any = (), **more: Any) -> dict[str, Any]:
    """Return the arguments of `federate` for settings as a file has them."""
    shares = tuple(split) if isinstance(split, list) else split
    return {"split": shares, "shift": Shift(**dict(shift)), **more}


@cases(
    "settings",
    """{split: fedbn-digits}, {split: fedbn-digits, shift: {ratio: 2}}, {shift: {ratio: 2}},
    {shift: {sizes: {d3: 5}}}, {split: [0.6, 0.2, 0.2], val_fraction: 0.1},
    {split: [0.6, 0.2, 0.2], shift: {test_long_tail: 2}}, {split: fedbn-office, val_fraction: 0.1},
    {split: fedbn-domainnet, val_fraction: 0.1}, {split: fedbn-domainnet, shift: {ratio: 2}}""",
)
def test_what_does_not_fit_the_data_is_named(settings: dict[str, Any]) -> None:
    refused(federate, numbered([(2000, 40), (120, 40)]), "domains", {}, 0, **of_file(**settings))


@cases(
    "settings",
    """{split: fedbn}, {split: [0.6, 0.3, 0.2]}, {split: [0.6, 0.4]}, {split: [1.0, 0.0, 0.0]},
    {shift: {long_tial: 10}}, {shift: {long_tail: 0.5}}, {shift: {test_long_tail: 0.5}},
    {shift: {sizes: {plain: 0}}}""",
)
def test_what_does_not_fit_the_schema_is_named(settings: dict[str, Any]) -> None:
    refused(load, {"experiment": small(**settings)})


def test_settings_survive_a_round_trip() -> None:
    shift = {"sizes": {"plain": 50}, "noise": 0.1}
    config = load({"experiment": small(split=[0.6, 0.2, 0.2], shift=shift)})
    assert config.experiment.split == (0.6, 0.2, 0.2)
    assert Config.model_validate(config.model_dump(mode="json")) == config


quick = settings(max_examples=40, deadline=None)


@cases(
    "classes, rho, size", "[10, 10, 20431], [10, 50, 13996], [10, 100, 12406], [100, 100, 10847]"
)
def test_long_tailed_cifar_has_the_published_sizes(classes: int, rho: float, size: int) -> None:
    labels = np.random.default_rng(0).permutation(np.arange(50000) % classes)
    kept = splits.long_tail(labels, np.zeros_like(labels), 0, rho, classes)
    sizes = np.bincount(labels[kept])
    assert len(kept) == size and (np.diff(sizes) <= 0).all()
    assert (sizes[0], sizes[-1]) == (50000 // classes, 50000 // classes // rho)


@quick
@given(
    *(SEEDS, st.integers(1, 3), st.integers(2, 8), st.integers(1, 400)),
    *(st.floats(1, 200), st.floats(1, 3)),
)
def test_long_tails_are_nested_and_by_domain(
    seed: int, num_domains: int, classes: int, n: int, rho: float, more: float
) -> None:
    generator = np.random.default_rng(seed)
    labels, domains = generator.integers(0, classes, n), generator.integers(0, num_domains, n)
    mild, strong = (splits.long_tail(labels, domains, seed, r, classes) for r in (rho, rho * more))
    assert (np.diff(mild) > 0).all() and set(strong) <= set(mild)
    have = {*zip(domains, labels, strict=True)}
    assert {*zip(domains[strong], labels[strong], strict=True)} == have
    for d in range(num_domains):
        bound = (domains == d).sum() / classes * rho ** (-np.arange(classes) / (classes - 1))
        sizes = np.bincount(labels[mild][domains[mild] == d], minlength=classes)
        assert (sizes <= np.maximum(bound + 1e-6, 1)).all()


@quick
@given(SEEDS, st.integers(0, 60), st.integers(0, 40))
def test_private_sizes_are_met_and_nested(seed: int, size: int, less: int) -> None:
    domains = np.repeat([0, 1, 2], [60, 70, 80])
    names = ["mnist", "usps", "svhn"]
    kept = splits.private_sizes(domains, names, seed, {"mnist": size, "svhn": 80})
    assert np.bincount(domains[kept], minlength=3).tolist() == [size, 70, 80]
    assert (np.diff(kept) > 0).all()
    fewer = splits.private_sizes(domains, names, seed, {"mnist": max(size - less, 0)})
    assert set(fewer) & set(range(60)) <= set(kept)


@quick
@given(SEEDS, st.integers(1, 200), st.floats(0.01, 1), st.floats(0.1, 1))
def test_used_shares_are_nested(seed: int, n: int, ratio: float, part: float) -> None:
    rows = np.arange(0, 3 * n, 3)
    used = splits.used_share(rows, seed, 2, ratio)
    assert len(used) == max(1, round(ratio * n))
    assert set(splits.used_share(rows, seed, 2, ratio * part)) <= set(used) <= set(rows)
    assert np.array_equal(splits.used_share(rows, seed, 2, 1.0), rows)


def test_noise_grows_linearly_with_the_client() -> None:
    levels = splits.noise_levels([np.array([0, 1]), np.array([4]), np.array([2, 3])], 6, 0.5)
    assert levels.dtype == np.float32 and levels.tolist() == [0, 0, 0.5, 0.5, 0.25, 0]
    assert splits.noise_levels([np.array([0])], 1, 0.5).tolist() == [0]


def test_the_numbers_are_standard_normal_and_independent() -> None:
    z = sample_noise(torch.arange(1000), 1001, 7).double()
    n = z.numel()
    assert abs(float(z.mean())) < 4 / n**0.5
    assert float(z.var()) == pytest.approx(1, abs=4 * (2 / n) ** 0.5)
    assert float((z**4).mean()) == pytest.approx(3, abs=4 * (96 / n) ** 0.5)
    outside = float((z.abs() > 1.959964).double().mean())
    assert outside == pytest.approx(0.05, abs=4 * (0.05 * 0.95 / n) ** 0.5)
    for other in (z.roll(1, 0), z.roll(1, 1), z.roll(500, 1)):
        assert abs(float((z * other).mean())) < 4 / n**0.5
        assert float((z**2 * other**2).mean()) == pytest.approx(1, abs=4 * (8 / n) ** 0.5)

    # and a row has its own in any batch
    whole = sample_noise(torch.arange(20), 12, 3)
    assert torch.equal(sample_noise(torch.tensor([7, 2, 7]), 12, 3), whole[[7, 2, 7]])
    assert not torch.equal(sample_noise(torch.arange(20), 12, 4), whole)


def test_a_client_sees_its_samples_with_its_noise() -> None:
    data = {"name": "digits-sklearn", "samples": 40}
    specs = [built(small(data=data, shift={"noise": noise})) for noise in (0.0, 0.6)]
    clean, noisy = (WorkerResources(spec, torch.device("cpu")) for spec in specs)
    spreads = []
    for client in specs[0].data.clients:
        for rows in (client.train, client.test):
            positions = torch.arange(len(rows))
            (before, y), (after, labels) = (p.samples(rows).take(positions) for p in (clean, noisy))
            assert torch.equal(y, labels) and after.stride() == before.stride()
            again, _ = noisy.samples(rows).take(positions.flip(0))
            assert torch.equal(again.flip(0), after)
            spreads.append(float((after - before).std()))
    assert spreads == pytest.approx([0, 0, 0.2, 0.2, 0.4, 0.4, 0.6, 0.6], abs=0.01)
    assert specs[0].data.noise is None
    assert specs[0].data.partition_fingerprint != specs[1].data.partition_fingerprint
    for a, b in zip(specs[0].data.clients, specs[1].data.clients, strict=True):
        assert np.array_equal(a.train, b.train) and np.array_equal(a.test, b.test)


def test_a_data_sets_fingerprint_is_that_of_earlier_releases() -> None:
    assert numbered([(9, 3)], coarse=False).fingerprint.startswith("70bdd6cf15e673e8")
    assert numbered([(9, 3)]).fingerprint.startswith("acfa4e05bdf6abf1")


def test_a_domain_client_is_tested_on_its_own_domain() -> None:
    dataset = load_dataset("digits-sklearn")
    data = federate(dataset, "domains", {}, 0)
    assert [c.name for c in data.clients] == ["plain", "inverted", "rotated", "photo"]
    assert [c.domain for c in data.clients] == [c.name for c in data.clients]
    for client, domain in zip(data.clients, dataset.domains, strict=True):
        assert np.array_equal(data.x[client.train], domain.train_x)
        assert np.array_equal(data.x[client.test], domain.test_x)
        assert np.array_equal(data.y[client.test], domain.test_y)
    assert data.origins["plain"] == "real" and data.origins["photo"] == "composed"
    assert data.fingerprint == dataset.fingerprint


def test_match_test_by_hand() -> None:
    trains = [np.array([0, 1, 2]), np.array([3, 4]), np.array([5])]
    # Class 0: 2, 1, 0 samples; class 1: 1, 1, 1; class 2: none, so sizes 3, 2, 1.
    groups = np.array([0, 0, 1, 0, 1, 1])
    test_groups = np.array([0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2])
    tests = splits.assign_test_samples(trains, groups, test_groups, 3)
    # Class 0: 4, 2, 0. Class 1: 2/3 each, the two go to the emptiest, 2 and 1. Class 2: 1.5, 1, 0.5: the last to 2.
    assert [t.tolist() for t in tests] == [[0, 1, 2, 3, 8], [4, 5, 6, 9], [7, 10]]


def test_many_domains_of_many_classes_cost_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """As writers of letters: a table of clients by classes of each domain would have 72 MB."""
    rows, drawn = np.arange(600), []
    domains, labels = rows // 2, rows // 2 % 100
    draw = images.numpy_generator
    monkeypatch.setattr(images, "numpy_generator", lambda *a, **k: drawn.append(a) or draw(*a, **k))
    test = images.choose_test("set", [str(k) for k in range(300)], domains, labels, 0.5, 0)
    assert test.sum() == len(drawn) == 300
    groups, trains = domains * 100 + labels, np.split(rows[~test], 300)
    tracemalloc.start()
    tests = splits.assign_test_samples(trains, groups, groups[test], 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [part.tolist() for part in tests] == [[k] for k in range(300)] and peak < 2**20


@cases(
    "parts",
    """[[0, 1], []], [[0, 1], [1, 2]], [[0], [999]], [], null, [[0.5, 1.5], [2.0]],
    [[[0], [1]], [[2], [3]]], [[true, false], [false, true]], one of each sample, {a: [0, 1], b: [2, 3]}""",
)
def test_a_bad_partition_is_named(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_entries", {**partitions._entries})
    own = np.arange(120) % 2 if parts == "one of each sample" else parts
    partitions.register("mine")(lambda labels: own)
    refused(federate, numbered([(120, 60)]), "mine", {}, 0)


def test_names_of_classes_may_be_numbers(tmp_path: Path) -> None:
    dataset = numbered([(120, 60)])
    numbers: Any = tuple(range(len(dataset.classes)))
    data = federate(replace(dataset, classes=numbers), "iid", {"clients": 2}, 0)
    directory.save_partition(partition_summary(data), tmp_path)
    assert read_partition(tmp_path / directory.PARTITION)["classes"] == [str(n) for n in numbers]


def test_a_partition_file_is_always_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.save_partition({"clients": []}, tmp_path)

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        directory.save_partition({"clients": [1]}, tmp_path)
    assert json.loads((tmp_path / directory.PARTITION).read_text()) == {"clients": []}


def test_whole_numbers_of_any_kind_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_entries", {**partitions._entries})
    partitions.register("mine")(lambda labels: ([3.0, 1.0], np.array([2], dtype=np.uint8)))
    found = federate(numbered([(120, 60)]), "mine", {}, 0).clients
    assert [client.train.tolist() for client in found] == [[1, 3], [2]]


def test_mistakes_are_one_clear_message() -> None:
    few = numbered([(2000, 40), (19, 40)])
    refused(federate, few, "domains", {}, 0, split="fedbn-domainnet")
    for sizes in ({"uspss": 5}, {"usps": 51}):
        refused(splits.private_sizes, np.repeat([0, 1], 50), ["mnist", "usps"], 0, sizes)
    refused(federate, numbered([(120, 60)] * 3), "dirichlett", {}, 0)
    refused(federate, numbered([(120, 60)] * 3), "iid", {"cleints": 4}, 0)
    refused(federate, numbered([(120, 60)] * 3), "iid", {}, 0, 1.0)
