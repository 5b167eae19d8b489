import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flray.data.partitions import by_domain, dirichlet, dirichlet_equal, iid, pathological
from flray.errors import DataError
from flray.registry import partitions

SEEDS = st.integers(0, 2**32)
LABELS = st.tuples(st.integers(2, 12), st.integers(60, 600), SEEDS).map(
    lambda t: np.concatenate([np.arange(t[0]), np.random.default_rng(t[2]).integers(0, t[0], t[1])]).astype(np.int64))
quick = settings(max_examples=40, deadline=None)


def assert_cover(parts: list[np.ndarray], n: int) -> None:
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def counts(parts: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@quick
@given(LABELS, SEEDS, st.integers(1, 20))
def test_iid_covers_with_equal_sizes(labels: np.ndarray, seed: int, clients: int) -> None:
    parts = iid(labels, seed, clients=clients)
    assert_cover(parts, len(labels))
    sizes = [len(part) for part in parts]
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1


@quick
@given(LABELS, SEEDS, st.integers(1, 12), st.floats(0.3, 100))
def test_dirichlet_covers_with_min_size(labels: np.ndarray, seed: int, clients: int, alpha: float) -> None:
    parts = dirichlet(labels, seed, clients=clients, alpha=alpha, min_size=1)
    assert len(parts) == clients
    assert_cover(parts, len(labels))
    assert min(len(part) for part in parts) >= 1


@quick
@given(LABELS, SEEDS, st.integers(1, 30), st.floats(1e-6, 100))
def test_dirichlet_equal_covers_with_equal_sizes(labels: np.ndarray, seed: int, clients: int, alpha: float) -> None:
    parts = dirichlet_equal(labels, seed, clients=clients, alpha=alpha)
    assert_cover(parts, len(labels))
    sizes = [len(part) for part in parts]
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1


@quick
@given(LABELS, SEEDS, st.integers(1, 15), st.integers(1, 12))
def test_pathological_limits_the_classes(labels: np.ndarray, seed: int, clients: int, each: int) -> None:
    num_classes = labels.max() + 1
    if each > num_classes or clients * each < num_classes:
        with pytest.raises(DataError, match=f"classes_per_client={each}"):
            pathological(labels, seed, clients=clients, classes_per_client=each)
        return
    parts = pathological(labels, seed, clients=clients, classes_per_client=each)
    assert len(parts) == clients
    assert_cover(parts, len(labels))
    assert ((counts(parts, labels) > 0).sum(1) <= each).all()


@quick
@given(LABELS, SEEDS, st.integers(1, 5), st.integers(1, 4))
def test_domains_never_mix(labels: np.ndarray, seed: int, num_domains: int, each: int) -> None:
    domains = np.arange(len(labels)) % num_domains
    parts = by_domain(labels, domains, seed, clients_per_domain=each)
    assert_cover(parts, len(labels))
    homes = [np.unique(domains[part]).tolist() for part in parts]
    assert homes == [[d] for d in range(num_domains) for _ in range(each)]
    for domain in range(num_domains):
        held = counts(parts[domain * each:(domain + 1) * each], labels)
        assert (held.max(0) - held.min(0) <= 1).all()
        assert held.sum(1).max() - held.sum(1).min() <= 1


@pytest.mark.parametrize("name", ["iid", "dirichlet", "dirichlet-equal", "pathological", "domains"])
def test_the_seed_decides(name: str) -> None:
    labels = np.arange(1000) % 10
    context = {"domains": np.zeros(1000, dtype=np.int64)} if name == "domains" else {}
    options = {"clients_per_domain": 5} if name == "domains" else {"clients": 5}
    first, again, other = (partitions.get(name)(labels, *context.values(), seed, **options) for seed in (7, 7, 8))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_smaller_alpha_is_more_skewed() -> None:
    labels = np.arange(5000) % 10

    def largest_share(alpha: float) -> float:
        held = counts(dirichlet_equal(labels, 0, clients=20, alpha=alpha), labels)
        return float((held.max(1) / held.sum(1)).mean())

    assert largest_share(1000.0) < 0.17
    assert 0.3 < largest_share(0.2) < 0.8
    assert largest_share(0.01) > 0.7


def test_dirichlet_proportions_have_the_right_variance() -> None:
    # A share of Dir(a, ..., a) over K clients has mean 1/K and variance (K-1) / (K^2 (K a + 1)).
    labels = np.repeat(np.arange(400), 200)
    shares = counts(dirichlet(labels, 3, clients=4, alpha=0.5), labels) / 200
    assert shares.mean() == pytest.approx(0.25)
    assert shares.var() == pytest.approx(3 / (16 * 3), rel=0.1)


def test_pathological_shares_of_a_class_are_similar() -> None:
    labels = np.repeat(np.arange(10), 600)
    held = counts(pathological(labels, 0, clients=20, classes_per_client=2), labels)
    assert ((held > 0).sum(0) == 4).all()
    assert ((held > 0).sum(1) == 2).all()
    # Largest and smallest possible share of four holders: q 0.6 among three of 0.4, and the reverse.
    assert held[held > 0].max() <= 600 * 0.6 / 1.8 + 1
    assert held[held > 0].min() >= 600 * 0.4 / 2.2 - 1


@pytest.mark.parametrize(("clients", "alpha", "min_size"), [(50, 0.01, 5), (300, 1.0, 1)])
def test_impossible_dirichlet_names_the_settings(clients: int, alpha: float, min_size: int) -> None:
    with pytest.raises(DataError, match=rf"alpha={alpha}.*clients={clients}.*min_size={min_size}"):
        dirichlet(np.arange(200) % 10, 0, clients=clients, alpha=alpha, min_size=min_size)
