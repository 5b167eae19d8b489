"""Splits and shifts in a federation; samples hold their own number, so that a leak shows in the samples themselves."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flray.config.experiment import Config
from flray.config.loader import ConfigErrors, load
from flray.config.sections import Shift
from flray.data import DataSet, Domain, FederatedData, federate
from flray.data.splits import by_client
from flray.errors import ConfigError, DataError
from flray.registry import partitions


def numbered(sizes: list[tuple[int, int]], classes: int = 4, coarse: bool = True) -> DataSet:
    """Return domains of so many training and test samples; sample i holds the number i, counted over all."""
    generator, numbers, made = np.random.default_rng(0), itertools.count(), []
    for d, pair in enumerate(sizes):
        parts: list[Any] = []
        for size in pair:
            parts += [
                np.array([next(numbers) for _ in range(size)], dtype=np.float32)[:, None],
                generator.integers(0, classes, size),
            ]
        made.append(Domain(f"d{d}", "random", *parts))
    return DataSet(
        "numbered",
        tuple(made),
        tuple("abcdefgh"[:classes]),
        (0.0,),
        (1.0,),
        coarse=tuple(c // 2 for c in range(classes)) if coarse else None,
    )


def numbers_of(data: FederatedData, part: str) -> set[float]:
    return set(data.x[np.concatenate([getattr(c, part) for c in data.clients]), 0].tolist())


OPTIONS: dict[str, dict[str, Any]] = {
    "iid": {"clients": 4},
    "dirichlet": {"clients": 4, "alpha": 2},
    "dirichlet-equal": {"clients": 4},
    "pathological": {"clients": 4},
    "pachinko": {"clients": 4},
    "quantity": {"clients": 4, "alpha": 2},
    "flower": {
        "partitioner": "DirichletPartitioner",
        "clients": 4,
        "options": {"alpha": 2, "min_partition_size": 1},
    },
    "domains": {"clients_per_domain": 2},
    "domain-dirichlet": {"alpha": 2},
}
SPLITS = ["official", (0.6, 0.2, 0.2), (0.5, 0.0, 0.5), "fedbn-office"]
SHIFTS = [
    Shift(),
    Shift(long_tail=10),
    Shift(sizes={"d0": 30}),
    Shift(ratio=0.5),
    Shift(long_tail=5, sizes={"d1": 20}, ratio=0.7, noise=0.3),
]


def test_every_partition_is_here() -> None:
    assert sorted(OPTIONS) == partitions.names()


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(sorted(OPTIONS)),
    st.sampled_from(SPLITS),
    st.sampled_from(SHIFTS),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.2, 0.99]),
)
def test_nothing_is_doubled_or_leaked(
    name: str, split: Any, shift: Shift, seed: int, val_fraction: float
) -> None:
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
        assert not (seen[0] | seen[1]) & official
        assert seen[2] <= official
        if name != "domain-dirichlet":
            assert seen[2] == official  # whatever the shift does to training data
    assert all(len(c.train) for c in data.clients)
    pairs = [
        pair for d in dataset.domains for pair in ((d.train_x, d.train_y), (d.test_x, d.test_y))
    ]
    labels = {x: y for xs, ys in pairs for x, y in zip(xs[:, 0].tolist(), ys.tolist(), strict=True)}
    assert labels == dict(zip(data.x[:, 0].tolist(), data.y.tolist(), strict=True))
    if split == "official" and shift == Shift():
        assert [len(c.val) for c in data.clients] == [
            min(round(val_fraction * n), n - 1)
            for n in (len(c.train) + len(c.val) for c in data.clients)
        ]
        assert name == "domain-dirichlet" or len(rows) == len(data.y)
    assert np.array_equal(data.test, np.concatenate([c.test for c in data.clients]))
    again = federate(dataset, name, OPTIONS[name], seed, val_fraction, split=split, shift=shift)
    assert again.partition_fingerprint == data.partition_fingerprint


def test_shares_by_client() -> None:
    dataset = numbered([(100, 50), (310, 0)])
    data = federate(dataset, "domains", {}, 0, split=(0.6, 0.2, 0.2))
    assert [(len(c.train), len(c.val), len(c.test)) for c in data.clients] == [
        (90, 30, 30),
        (186, 62, 62),
    ]
    official = {float(v) for v in dataset.domains[0].test_x[:, 0]}
    assert all(numbers_of(data, part) & official for part in ("train", "val", "test"))
    assert [
        [len(p) for p in by_client(np.arange(n), (0.6, 0.2, 0.2), 0, 0)] for n in (1, 2, 5)
    ] == [[1, 0, 0], [2, 0, 0], [3, 1, 1]]


def test_fedbn_digits() -> None:
    dataset = numbered([(1500, 300), (900, 300)])
    data = federate(dataset, "domains", {}, 5, split="fedbn-digits")
    assert [(len(c.train), len(c.val), len(c.test)) for c in data.clients] == [
        (743, 0, 360),
        (743, 0, 240),
    ]
    for client, domain in zip(data.clients, dataset.domains, strict=True):
        pooled = np.bincount(np.concatenate([domain.train_y, domain.test_y]), minlength=4)
        assert (np.abs(np.bincount(data.y[client.test], minlength=4) - pooled / 5) < 1).all()
    official = {float(v) for d in dataset.domains for v in d.test_x[:, 0]}
    assert numbers_of(data, "train") & official and not official <= numbers_of(data, "test")
    # The protocol has its own seed.
    other = federate(dataset, "domains", {}, 6, split="fedbn-digits")
    assert all(
        np.array_equal(a.train, b.train) and np.array_equal(a.test, b.test)
        for a, b in zip(data.clients, other.clients, strict=True)
    )
    small, large = (
        federate(dataset, "domains", {}, 5, split="fedbn-digits", shift=Shift(ratio=r))
        for r in (0.2, 1.2)
    )
    assert [len(c.train) for c in small.clients] == [149, 149] and [
        len(c.train) for c in large.clients
    ] == [892, 892]
    assert numbers_of(small, "train") < numbers_of(data, "train") < numbers_of(large, "train")
    assert np.array_equal(np.sort(small.test), np.sort(data.test))


def test_fedbn_office() -> None:
    dataset = numbered([(300, 60), (121, 30)])
    data = federate(dataset, "domains", {}, 5, split="fedbn-office")
    assert [(len(c.train), len(c.val), len(c.test)) for c in data.clients] == [
        (60, 48, 60),
        (60, 48, 30),
    ]


def test_fedbn_domainnet() -> None:
    dataset = numbered([(900, 60), (479, 30), (600, 40)])
    data = federate(dataset, "domains", {}, 5, split="fedbn-domainnet")
    # int(479 * 0.05) of every domain for training, as many others for validation.
    assert [(len(c.train), len(c.val), len(c.test)) for c in data.clients] == [
        (23, 23, 60),
        (23, 23, 30),
        (23, 23, 40),
    ]
    assert not numbers_of(data, "train") & numbers_of(data, "val")
    # The protocol has its own seed.
    other = federate(dataset, "domains", {}, 6, split="fedbn-domainnet")
    assert other.partition_fingerprint == data.partition_fingerprint


def test_a_part_of_a_domain_is_tested_on_its_own_label_distribution() -> None:
    dataset = numbered([(4000, 1000)])
    data = federate(dataset, "domain-dirichlet", {"alpha": 0.3, "parts": 3}, 0)
    (client,) = data.clients
    whole, held = (
        np.bincount(y, minlength=4) for y in (dataset.domains[0].train_y, data.y[client.train])
    )
    tests = np.bincount(dataset.domains[0].test_y, minlength=4)
    expected = held / whole * tests
    assert (np.abs(np.bincount(data.y[client.test], minlength=4) - expected) < 1).all()
    assert len(client.test) < 1000
    everything = federate(dataset, "domain-dirichlet", {"alpha": 0.3, "parts": 3, "keep": 3}, 0)
    assert np.array_equal(everything.clients[0].train, client.train)
    assert len(everything.test) == 1000


def test_a_balanced_part_of_a_domain_is_nearer_to_its_share() -> None:
    dataset = numbered([(3000, 300)] * 2, classes=8)
    options = {"alpha": 0.3, "parts": 3, "keep": 3}
    sizes = [
        [
            [len(c.train) for c in federate(dataset, "domain-dirichlet", more, seed).clients]
            for seed in range(5)
        ]
        for more in (options, {**options, "balanced": True})
    ]
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
    assert data.class_counts().sum(0).tolist() == [
        min(1000 // 2**c, np.bincount(dataset.domains[0].train_y)[c]) for c in range(4)
    ]
    assert len(data.test) == 400


def test_superclasses_reach_pachinko_or_are_missed() -> None:
    data = federate(
        numbered([(160, 40)]), "pachinko", {"clients": 5, "alpha": 0.01, "beta": 100}, 0
    )
    assert (data.class_counts().reshape(5, 2, 2).sum(2).max(1) >= 20).all()
    with pytest.raises(DataError, match="partition pachinko: needs superclasses"):
        federate(numbered([(160, 40)], coarse=False), "pachinko", {}, 0)
    assert numbered([(9, 3)]).fingerprint != numbered([(9, 3)], coarse=False).fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"split": "fedbn-digits"},
            r"experiment\.split: found fedbn-digits; this needs 743 training images .*d1 are 128",
        ),
        (
            {"split": "fedbn-digits", "shift": Shift(ratio=2)},
            r"experiment\.shift\.ratio: found 2\.0; .*1486",
        ),
        ({"shift": Shift(ratio=2)}, r"experiment\.shift\.ratio: found 2\.0; at most 1"),
        (
            {"shift": Shift(sizes={"d3": 5})},
            r"experiment\.shift\.sizes\.d3: found d3; the domains are d0, d1",
        ),
        (
            {"split": (0.6, 0.2, 0.2), "val_fraction": 0.1},
            r"experiment\.evaluation\.validation: found 0\.1; 0 with split",
        ),
        (
            {"split": "fedbn-office", "val_fraction": 0.1},
            r"experiment\.evaluation\.validation: found 0\.1; 0 with split",
        ),
        (
            {"split": "fedbn-domainnet", "val_fraction": 0.1},
            r"experiment\.evaluation\.validation: found 0\.1; 0 with split",
        ),
        (
            {"split": "fedbn-domainnet", "shift": Shift(ratio=2)},
            r"experiment\.shift\.ratio: found 2\.0; at most 1",
        ),
    ],
)
def test_what_does_not_fit_the_data_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        federate(numbered([(2000, 40), (120, 40)]), "domains", {}, 0, **settings)


def test_a_domain_too_small_for_a_twentieth_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"experiment\.split: found fedbn-domainnet; d1 has 19 training samples"
    ):
        federate(numbered([(100, 40), (19, 4)]), "domains", {}, 0, split="fedbn-domainnet")


BASE = {"data": "digits-sklearn", "model": "linear", "algorithm": "fedavg"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"split": "fedbn"},
            r"experiment\.split: found 'fedbn'; input should be 'official', 'fedbn-digits', "
            r"'fedbn-office' or 'fedbn-domainnet'",
        ),
        ({"split": [0.6, 0.3, 0.2]}, r"experiment\.split: found .*must sum to 1"),
        ({"split": [0.6, 0.4]}, r"experiment\.split: found \[0\.6, 0\.4\]"),
        ({"split": [1.0, 0.0, 0.0]}, r"experiment\.split: .*the first and the last above 0"),
        ({"shift": {"long_tial": 10}}, r"experiment\.shift\.long_tial: .*did you mean 'long_tail'"),
        (
            {"shift": {"long_tail": 0.5}},
            r"experiment\.shift\.long_tail: found 0\.5; input should be greater",
        ),
        ({"shift": {"sizes": {"plain": 0}}}, r"experiment\.shift\.sizes\.plain: found 0"),
    ],
)
def test_what_does_not_fit_the_schema_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigErrors, match=message):
        load({"experiment": {**BASE, **settings}})


def test_settings_survive_a_round_trip() -> None:
    config = load(
        {
            "experiment": {
                **BASE,
                "split": [0.6, 0.2, 0.2],
                "shift": {"sizes": {"plain": 50}, "noise": 0.1},
            }
        }
    )
    assert config.experiment.split == (0.6, 0.2, 0.2)
    assert Config.model_validate(config.model_dump(mode="json")) == config
