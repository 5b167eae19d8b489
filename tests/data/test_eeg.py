"""From trials to zero-padded tangent vectors; MOABB itself is an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray.data.datasets import eeg
from flray.data.datasets.eeg import covariances, trials
from flray.data.loading import load_dataset
from flray.errors import FlrayError


def sources(samples: int = 40) -> dict[str, eeg.Trials]:
    y = np.arange(samples, dtype=np.int64) % 2
    return {
        name: (covariances(trials(y, channels, 0.5, np.random.default_rng(channels))), y)
        for name, channels in (("AlexMI", 5), ("Zhou2016", 3))
    }


def test_sources_are_split_by_class_and_padded_to_the_widest() -> None:
    dataset = eeg.dataset_of("eeg", sources(), 0)
    assert [d.name for d in dataset.domains] == ["AlexMI", "Zhou2016"]
    assert dataset.task == "binary"
    for domain, channels in zip(dataset.domains, (5, 3), strict=True):
        assert domain.train_x.shape == (32, 15) and domain.test_x.shape == (8, 15)
        assert np.bincount(domain.test_y).tolist() == [4, 4]
        used = channels * (channels + 1) // 2
        assert np.abs(domain.train_x[:, :used]).min(1).max() > 0
        assert not domain.train_x[:, used:].any()


def test_no_trial_is_in_both_parts_and_another_seed_draws_others() -> None:
    parts = [eeg.dataset_of("eeg", sources(), seed).domains[0] for seed in (0, 0, 1)]
    whole = {tuple(row) for row in np.round(parts[0].train_x, 5)} | {
        tuple(row) for row in np.round(parts[0].test_x, 5)
    }
    assert len(whole) == 40
    assert np.array_equal(parts[0].test_x, parts[1].test_x)
    assert not np.array_equal(parts[0].test_x, parts[2].test_x)


def test_a_source_without_a_class_is_named() -> None:
    x, y = sources()["AlexMI"]
    with pytest.raises(FlrayError, match="AlexMI has fewer than two trials of feet"):
        eeg.dataset_of("eeg", {"AlexMI": (x, np.ones_like(y))}, 0)


class Paradigms:
    """Answers as MOABB's paradigm does: trials, names of events, and a table that is not used."""

    class MotorImagery:
        def __init__(self, **settings: Any) -> None:
            assert settings == {
                "events": ["feet", "right_hand"],
                "n_classes": 2,
                "fmin": 8.0,
                "fmax": 32.0,
            }

        def get_data(self, dataset: Any) -> tuple[Any, Any, None]:
            return dataset


def test_events_become_labels_by_name() -> None:
    answer = np.zeros((3, 2, 5)), np.array(["right_hand", "feet", "right_hand"]), None
    x, y = eeg.imagery_trials(answer, Paradigms, 8.0, 32.0)
    assert y.tolist() == [1, 0, 1] and x.shape == (3, 2, 5)


def test_without_moabb_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "moabb", None)
    with pytest.raises(
        FlrayError, match=r"^data set eeg needs MOABB .*: pip install 'flray\[eeg\]'$"
    ):
        load_dataset("eeg", root=tmp_path)
