import numpy as np
import pytest

from flray.data import DataSet, Domain, federate, load_dataset
from flray.data.splits import assign_test_samples
from flray.registry import partitions
from tests.messages import refused


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


def test_a_data_sets_fingerprint_is_that_of_earlier_releases() -> None:
    assert tiny().fingerprint.startswith("b2bb064e8e635758")


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


@pytest.mark.parametrize("parts", [[[0, 1], []], [[0, 1], [1, 2]], [[0], [999]], []])
def test_a_bad_partition_is_named(parts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_entries", {**partitions._entries})
    partitions.register("mine")(lambda labels: [np.array(part, dtype=np.int64) for part in parts])
    refused(federate, tiny(1), "mine", {}, 0)


def test_mistakes_are_one_clear_message() -> None:
    refused(federate, tiny(), "dirichlett", {}, 0)
    refused(federate, tiny(), "iid", {"cleints": 4}, 0)
    refused(federate, tiny(), "iid", {}, 0, 1.0)
