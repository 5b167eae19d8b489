"""A split that a file gives: flray's own comes back to the same bits, others' as they are, faults in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray.config.loader import load
from flray.config.sections import Shift
from flray.data import federate
from flray.federation.manifest import divide
from flray.records import directory
from flray.runs import runner
from tests.data.test_splits import numbered
from tests.helpers import cases, printed, small, written
from tests.messages import mistyped, refused

pytestmark = pytest.mark.usefixtures("tmp_cwd")
SET = numbered([(40, 10), (20, 10)])  # numbers 0 to 59 to train on, 60 to 79 for tests
SPLIT: dict[str, Any] = {
    "a": {"train": [0, 41, 61], "val": [1], "test": [60, 3]},
    "b": {"train": [45], "test": [70]},
}


def given(content: object, **settings: Any) -> Any:
    text = content if isinstance(content, str) else json.dumps(content)
    Path("split.json").write_text(text)
    partition = {"name": "file", "path": "split.json"}
    options = load({"experiment": small(partition=partition)}).experiment.partition
    return federate(SET, "file", options.arguments, 0, **settings)


def test_clients_hold_what_the_file_says() -> None:
    data = given({"clients": SPLIT, "samples": 80})
    assert [(c.name, c.domain) for c in data.clients] == [("a", "pooled"), ("b", "d1")]
    held = [[part.tolist() for part in (c.train, c.val, c.test)] for c in data.clients]
    assert held == [[[0, 41, 61], [1], [3, 60]], [[45], [], [70]]]
    assert data.test.tolist() == [3, 60, 70]


def test_without_tests_they_follow_the_training_samples() -> None:
    """As in any other partition: the numbers of an `iid` one give its clients and its test samples."""
    iid = federate(SET, "iid", {"clients": 3}, 5)
    data = given({client.name: client.train.tolist()[::-1] for client in iid.clients})
    for name in ("train", "val", "test"):
        pairs = zip(data.clients, iid.clients, strict=True)
        assert all(np.array_equal(getattr(a, name), getattr(b, name)) for a, b in pairs)
    apart = given({client.name: client.train.tolist() for client in iid.clients}, val_fraction=0.5)
    assert [len(client.val) for client in apart.clients] == [10, 10, 10]


def test_validation_samples_of_a_file_take_no_test_samples_with_them() -> None:
    training = {"train": [*range(20)], "val": [*range(20, 40)]}
    data = given({"clients": {"a": training, "b": {"train": [*range(40, 60)]}}})
    assert len(data.test) == 20


def test_clients_bear_the_names_that_folders_and_tables_have() -> None:
    name = "St. Mary's & Süd (2)"
    assert [client.name for client in given({name: [0, 41], "b": [45]}).clients] == [name, "b"]


TWICE = ('{"a": [0], "b": [1], "a": [2]}', '{"clients": {"a": {"train": [0], "train": [1]}}}')


OTHERS: list[object] = ["[1]", "{", "{}", '{"clients": {}}', "[" * 100_000, "\x00", "", *TWICE]
OTHERS += [{"clients": SPLIT, "samples": 79}, {"clients": SPLIT, "samples": 80, "labels": "0" * 64}]
OTHERS += [{"clients": {name: {"train": [1]}}} for name in ("../a", "a\n", "a" * 101)]


@pytest.mark.parametrize("content", [*OTHERS, {"a": [60]}, {"a": {"b": [1]}}])
def test_other_files_are_refused(content: object) -> None:
    assert "\n" not in str(refused(given, content))


@cases(
    "parts",
    """{train: []}, {train: [80]}, {train: [9223372036854775808]}, {train: [-1]}, {train: [true]},
    {train: ['4']}, {train: [1.0]}, {train: [4, 4]}, {train: [41]}, {test: [1]}, {test: null}, {more: [1]}""",
)
def test_what_a_client_cannot_hold_is_refused(parts: dict[str, Any]) -> None:
    content = {"clients": {**SPLIT, "b": {**SPLIT["b"], **parts}}}
    assert "\n" not in str(refused(given, content))


def test_settings_that_would_change_it_are_refused() -> None:
    content = {"clients": SPLIT}
    refused(given, content, split=(0.6, 0.2, 0.2))
    for shift in (Shift(long_tail=3), Shift(ratio=0.5)):
        refused(given, content, shift=shift)
    assert given(content, shift=Shift(noise=0.1)).noise is not None


@pytest.mark.parametrize("path", [".", "none.json", 3, ["a"], "/dev/zero"])
def test_other_paths_are_refused(path: object) -> None:
    refused(load, {"experiment": small(partition={"name": "file", "path": path})})


def test_masks_are_split_by_a_file_too() -> None:
    masks = {"name": "fundus-synthetic", "samples": 6, "size": 16}
    written(small(data=masks, partition="domains", model="unet"))
    shown = printed("data", "show", "x.yaml", "--split", "split.json")
    again = load(Path("x.yaml"), ["partition={name: file, path: split.json}"])
    assert divide(again.experiment).partition_fingerprint in shown


def test_a_split_that_flray_wrote_gives_the_same_run_and_has_to_stay() -> None:
    data = {"name": "digits-sklearn", "samples": 40}
    settings = {"evaluation": {"validation": 0.2}, "local": {"epochs": 1, "lr": 0.1}}
    settings["partition"] = {"name": "dirichlet", "clients": 3, "alpha": 1}
    written(small(rounds=2, data=data, **settings))
    shown = printed("data", "show", "x.yaml", "--split", "split.json")
    space = "space={local.lr: {grid: [0.1, 0.2]}, partition.clients: {grid: [2, 3]}}"
    said = json.loads(printed("data", "show", "x.yaml", "--json", space))
    assert [(len(one["clients"]), len(one["runs"])) for one in said] == [(2, 2), (3, 2)]
    file = ["partition={name: file, path: split.json}", "evaluation.validation=0"]
    first, again = load(Path("x.yaml")), load(Path("x.yaml"), file)
    parts = [divide(config.experiment).partition_fingerprint for config in (first, again)]
    assert parts[0] == parts[1] and parts[0] in shown
    refused(divide, load(Path("x.yaml"), [*file, "data.seed=1"]).experiment)  # other samples
    whole, other = runner.run(Path("x.yaml")), runner.run(Path("x.yaml"), file)
    assert other.sha256 == whole.sha256

    directory.update(other.folder, status="interrupted")
    kept = Path("split.json").read_text()
    Path("split.json").write_text(kept + " ")
    refused(runner.resume, other.folder)
    Path("split.json").write_text(kept)
    assert runner.resume(other.folder).sha256 == whole.sha256
    mistyped("data", "show", "x.yaml", "--split", "x.yaml/split.json")
