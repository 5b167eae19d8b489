import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flray.data.splits import long_tail, noise_levels, private_sizes, used_share
from flray.errors import ConfigError

SEEDS = st.integers(0, 2**32)
quick = settings(max_examples=40, deadline=None)


@pytest.mark.parametrize(("rho", "last"), [(10, 500), (50, 100), (100, 50)])
def test_cifar10_lt_has_the_published_sizes(rho: float, last: int) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    kept = long_tail(labels, np.zeros_like(labels), 0, rho, 10)
    sizes = np.bincount(labels[kept])
    assert sizes[0] == 5000 and sizes[9] == last
    assert (np.diff(sizes) < 0).all()
    assert np.allclose(sizes[1:] / sizes[:-1], rho ** (-1 / 9), atol=0.02)
    assert len(kept) == {10: 20431, 50: 13996, 100: 12406}[rho]  # the sizes known of CIFAR-10-LT


def test_cifar100_lt_has_the_published_size() -> None:
    labels = np.repeat(np.arange(100), 500)
    kept = long_tail(labels, np.zeros_like(labels), 0, 100, 100)
    assert np.bincount(labels[kept])[[0, 99]].tolist() == [500, 5]
    assert len(kept) == 10847


@quick
@given(
    SEEDS,
    st.integers(1, 3),
    st.integers(2, 8),
    st.integers(1, 400),
    st.floats(1, 200),
    st.floats(1, 3),
)
def test_long_tails_are_nested_and_by_domain(
    seed: int, num_domains: int, classes: int, n: int, rho: float, more: float
) -> None:
    generator = np.random.default_rng(seed)
    labels, domains = generator.integers(0, classes, n), generator.integers(0, num_domains, n)
    mild, strong = (long_tail(labels, domains, seed, r, classes) for r in (rho, rho * more))
    assert (np.diff(mild) > 0).all()
    assert set(strong) <= set(mild)
    have = {(d, c) for d, c in zip(domains, labels, strict=True)}
    assert {(d, c) for d, c in zip(domains[strong], labels[strong], strict=True)} == have
    for d in range(num_domains):
        bound = (domains == d).sum() / classes * rho ** (-np.arange(classes) / (classes - 1))
        sizes = np.bincount(labels[mild][domains[mild] == d], minlength=classes)
        assert (sizes <= np.maximum(bound + 1e-6, 1)).all()


def test_the_seed_decides_who_is_left() -> None:
    labels, domains = np.repeat(np.arange(5), 100), np.zeros(500, dtype=np.int64)
    first, again, other = (long_tail(labels, domains, s, 10, 5) for s in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    first, again, other = (private_sizes(domains, ["a"], s, {"a": 50}) for s in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    first, again, other = (used_share(np.arange(90), s, 3, 0.5) for s in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert not np.array_equal(first, used_share(np.arange(90), 0, 4, 0.5))


@quick
@given(SEEDS, st.integers(0, 60), st.integers(0, 40))
def test_private_sizes_are_met_and_nested(seed: int, size: int, less: int) -> None:
    domains = np.repeat([0, 1, 2], [60, 70, 80])
    names = ["mnist", "usps", "svhn"]
    kept = private_sizes(domains, names, seed, {"mnist": size, "svhn": 80})
    assert np.bincount(domains[kept], minlength=3).tolist() == [size, 70, 80]
    assert (np.diff(kept) > 0).all()
    assert set(private_sizes(domains, names, seed, {"mnist": max(size - less, 0)})) & set(
        range(60)
    ) <= set(kept)


def test_wrong_private_sizes_are_named() -> None:
    domains = np.repeat([0, 1], 50)
    with pytest.raises(
        ConfigError, match=r"experiment\.shift\.sizes\.uspss: found uspss; .*did you mean 'usps'"
    ):
        private_sizes(domains, ["mnist", "usps"], 0, {"uspss": 5})
    with pytest.raises(
        ConfigError, match=r"experiment\.shift\.sizes\.usps: found 51; at most the 50"
    ):
        private_sizes(domains, ["mnist", "usps"], 0, {"usps": 51})


@quick
@given(SEEDS, st.integers(1, 200), st.floats(0.01, 1), st.floats(0.1, 1))
def test_used_shares_are_nested(seed: int, n: int, ratio: float, part: float) -> None:
    rows = np.arange(0, 3 * n, 3)
    used = used_share(rows, seed, 2, ratio)
    assert len(used) == max(1, round(ratio * n))
    assert set(used_share(rows, seed, 2, ratio * part)) <= set(used) <= set(rows)
    assert np.array_equal(used_share(rows, seed, 2, 1.0), rows)


def test_noise_grows_linearly_with_the_client() -> None:
    levels = noise_levels([np.array([0, 1]), np.array([4]), np.array([2, 3])], 6, 0.5)
    assert levels.dtype == np.float32
    assert levels.tolist() == [0, 0, 0.5, 0.5, 0.25, 0]
    assert noise_levels([np.array([0])], 1, 0.5).tolist() == [0]
