from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flray.data import DataSet, Domain, FederatedData, federate, load_dataset
from flray.data.splits import assign_test_samples
from flray.errors import ConfigError, DataError, FlrayError
from flray.registry import partitions


def tiny(domains: int = 3, n: int = 120, classes: int = 4, seed: int = 0) -> DataSet:
    """Every sample holds its own number, so that a leak between parts can be seen in the samples themselves."""
    generator, start, made = np.random.default_rng(seed), 0, []
    for d in range(domains):
        parts = []
        for size in (n, n // 2):
            parts += [
                np.arange(start, start + size, dtype=np.float32)[:, None],
                generator.integers(0, classes, size),
            ]
            start += size
        made.append(Domain(f"d{d}", "random", *parts))
    return DataSet("tiny", tuple(made), tuple("abcdefgh"[:classes]), (0.0,), (1.0,))


CASES = [
    ("iid", {"clients": 7}),
    ("dirichlet", {"clients": 5, "alpha": 0.5}),
    ("dirichlet-equal", {"clients": 9}),
    ("pathological", {"clients": 6, "classes_per_client": 2}),
    ("domains", {}),
    ("domains", {"clients_per_domain": 3}),
]


FINGERPRINTS = {
    "iid": ("1529f598d4746f54", "0ace69a81821346b"),
    "dirichlet": ("35b095d7faa69c45", "8a0fc37c56a6fb55"),
    "dirichlet-equal": ("eddbf7d1a7bcb186", "56ff26fbae5c957a"),
    "pathological": ("41a58cb5063e0d2c", "23b4a311fd216372"),
    "domains": ("f1bcccbb023db988", "e6c4144db6c757fe"),
}


@pytest.mark.parametrize("case", CASES[:5], ids=lambda case: case[0])
def test_partitions_are_those_of_earlier_releases(case: tuple[str, dict[str, int]]) -> None:
    """A run can be repeated years later: who holds what never changes under the default split and shift."""
    made = [
        federate(tiny(), *case, 5, val_fraction).partition_fingerprint[:16]
        for val_fraction in (0.0, 0.25)
    ]
    assert tuple(made) == FINGERPRINTS[case[0]]
    assert tiny().fingerprint.startswith("b2bb064e8e635758")


def assert_sound(data: FederatedData, dataset: DataSet) -> None:
    n_train = sum(len(d.train_y) for d in dataset.domains)
    fitted = np.concatenate([np.concatenate([c.train, c.val]) for c in data.clients])
    assert np.array_equal(np.sort(fitted), np.arange(n_train))
    assert np.array_equal(np.sort(data.test), np.arange(n_train, len(data.y)))
    assert np.array_equal(data.test, np.concatenate([c.test for c in data.clients]))
    pairs = [
        pair for d in dataset.domains for pair in ((d.train_x, d.train_y), (d.test_x, d.test_y))
    ]
    originals = {
        float(number): int(label)
        for x, y in pairs
        for number, label in zip(x[:, 0], y, strict=True)
    }
    assert originals == {
        float(number): int(label) for number, label in zip(data.x[:, 0], data.y, strict=True)
    }
    assert set(data.x[fitted, 0]).isdisjoint(data.x[data.test, 0])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(CASES),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1, 0.5, 0.99]),
    st.integers(1, 4),
)
def test_no_sample_is_lost_doubled_or_leaked(
    case: tuple[str, dict[str, int]], seed: int, val_fraction: float, domains: int
) -> None:
    dataset = tiny(domains)
    data = federate(dataset, *case, seed, val_fraction)
    assert_sound(data, dataset)
    for client in data.clients:
        n = len(client.train) + len(client.val)
        assert len(client.train) >= 1
        assert len(client.val) == min(round(val_fraction * n), n - 1)


def test_a_domain_client_is_tested_on_its_own_domain() -> None:
    dataset = load_dataset("digits-sklearn")
    data = federate(dataset, "domains", {}, 0)
    assert [c.name for c in data.clients] == ["plain", "inverted", "rotated", "photo"]
    assert [c.domain for c in data.clients] == [c.name for c in data.clients]
    for client, domain in zip(data.clients, dataset.domains, strict=True):
        assert np.array_equal(data.x[client.train], domain.train_x)
        assert np.array_equal(data.x[client.test], domain.test_x)
        assert np.array_equal(data.y[client.test], domain.test_y)
    assert data.origins == {
        "plain": "real",
        "inverted": "composed",
        "rotated": "composed",
        "photo": "composed",
    }
    assert data.fingerprint == dataset.fingerprint


def test_clients_of_one_domain_share_its_test_set_evenly_by_class() -> None:
    data = federate(tiny(2, n=400), "domains", {"clients_per_domain": 2}, 0)
    assert [c.name for c in data.clients] == ["d00", "d01", "d10", "d11"]
    assert [c.domain for c in data.clients] == ["d0", "d0", "d1", "d1"]
    held = np.stack([np.bincount(data.y[c.test], minlength=4) for c in data.clients])
    assert (np.abs(held[0::2] - held[1::2]) <= 1).all()
    assert (np.abs(held[0::2].sum(1) - held[1::2].sum(1)) <= 1).all()


def test_label_skew_pools_the_domains_and_keeps_the_label_mix() -> None:
    data = federate(tiny(2, n=2000), "dirichlet", {"clients": 5, "alpha": 0.3}, 1)
    assert {c.domain for c in data.clients} == {"pooled"}
    test_counts = np.stack([np.bincount(data.y[c.test], minlength=4) for c in data.clients])
    expected = data.class_counts() / data.class_counts().sum(0) * test_counts.sum(0)
    assert (np.abs(test_counts - expected) < 1).all()


def test_match_test_by_hand() -> None:
    trains = [np.array([0, 1, 2]), np.array([3, 4]), np.array([5])]
    # Class 0: 2, 1, 0 samples; class 1: 1, 1, 1; class 2: none, so sizes 3, 2, 1.
    groups = np.array([0, 0, 1, 0, 1, 1])
    test_groups = np.array([0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2])
    tests = assign_test_samples(trains, groups, test_groups, 3)
    # Class 0: 4, 2, 0. Class 1: 2/3 each, the two go to the emptiest, 2 and 1. Class 2: 1.5, 1,
    # 0.5: the last to 2.
    assert [t.tolist() for t in tests] == [[0, 1, 2, 3, 8], [4, 5, 6, 9], [7, 10]]


def test_equal_seeds_give_equal_federations() -> None:
    federations = [federate(tiny(), "iid", {"clients": 4}, seed, 0.2) for seed in (1, 1, 2)]
    first, again, other = (data.partition_fingerprint for data in federations)
    assert first == again != other


def test_a_validation_part_takes_nothing_from_other_clients() -> None:
    without, with_val = (
        federate(tiny(), "iid", {"clients": 4}, 1, fraction) for fraction in (0.0, 0.25)
    )
    for a, b in zip(without.clients, with_val.clients, strict=True):
        assert np.array_equal(a.train, np.sort(np.concatenate([b.train, b.val])))
        assert np.array_equal(a.test, b.test)


def user_partition(parts: list[list[int]]) -> Callable[..., list[np.ndarray]]:
    def split(labels: np.ndarray) -> list[np.ndarray]:
        return [np.array(part, dtype=np.int64) for part in parts]

    return split


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1], []], "client 1 of 2 gets no training samples of data set tiny"),
        ([[0, 1], [1, 2]], "no row twice"),
        ([[0], [999]], "rows between 0 and 119"),
        ([], "at least one client"),
    ],
)
def test_a_bad_partition_is_named(parts: list[list[int]], message: str) -> None:
    partitions.register("mine")(user_partition(parts))
    try:
        with pytest.raises(DataError, match=f"partition mine.*{message}"):
            federate(tiny(1), "mine", {}, 0)
    finally:
        del partitions._entries["mine"]


def test_mistakes_are_one_clear_message() -> None:
    with pytest.raises(FlrayError, match="did you mean 'dirichlet'"):
        federate(tiny(), "dirichlett", {}, 0)
    with pytest.raises(ConfigError, match=r"partition\.iid\.cleints: found 4; .*options: clients"):
        federate(tiny(), "iid", {"cleints": 4}, 0)
    with pytest.raises(ConfigError, match=r"val_fraction: found 1\.0"):
        federate(tiny(), "iid", {}, 0, 1.0)
