import numpy as np

from flray.data import load_dataset
from flray.data.loading import take_subset


def test_a_subset_is_small_has_every_class_and_is_always_the_same() -> None:
    whole = load_dataset("digits-sklearn")
    small, again = take_subset(whole, 30), take_subset(whole, 30)
    for domain, same in zip(small.domains, again.domains, strict=True):
        assert (
            len(domain.train_x)
            == len(domain.train_y)
            == len(domain.test_x)
            == len(domain.test_y)
            == 30
        )
        assert set(domain.train_y) == set(domain.test_y) == set(range(10))
        assert np.array_equal(domain.train_x, same.train_x)
    assert small.fingerprint != whole.fingerprint


def test_samples_keep_their_labels() -> None:
    whole = load_dataset("digits-sklearn")
    small = take_subset(whole, 12)
    for before, after in zip(whole.domains, small.domains, strict=True):
        known = {x.tobytes(): int(y) for x, y in zip(before.train_x, before.train_y, strict=True)}
        assert all(
            known[x.tobytes()] == y for x, y in zip(after.train_x, after.train_y, strict=True)
        )


def test_a_subset_larger_than_the_data_is_all_of_it() -> None:
    whole = load_dataset("digits-sklearn")
    assert take_subset(whole, 10**6).fingerprint == whole.fingerprint
