"""What a bad setting, file or call is told, word by word: the texts that no other test triggers, as a table."""

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flray
from flray.config.loader import load
from flray.config.shapes import read_partition
from flray.data.partitions import builtin
from flray.errors import ConfigError, ConfigErrors, DataError, FlrayError
from flray.federation.checkpoint import learnt_sha256
from flray.federation.spec import load_start
from flray.files import border
from flray.metrics.names import clean_name
from flray.models.base import image_shape
from flray.new.__main__ import new_method
from flray.records import directory
from flray.records.journal import Journal
from flray.results.export import read_export
from flray.results.result_set import beside, read_entries
from flray.tracking.client import connect
from tests.helpers import small, written
from tests.hostile.values import GOOD
from tests.messages import mistyped, refused

SETTINGS: list[Any] = [
    *("rounds='3'", "rounds=true", "rounds=3.0", "rounds=99999999999999999999", "local.lr=["),
    *("local.compile='yes'", "participation.unseen=1.5", "resources.gpus_per_actor=1.5"),
    *(("name", "a\0b"), ("local", {5: 3}), ("local.lr", print), ("local.lr", 1j)),
    *("partition={name: file, path: none.json}", "start=none.safetensors"),
    *("sweep.until={at_least: 50, at_most: 10}", "sweep.seeds=[0, 0]", "sweep.seeds=3"),
    *("space={local.lr: {uniform: [1, 0]}}", "space={local.lr: {uniform: [-1.7e+308, 1.7e+308]}}"),
    "sweep={metric: global/common/loss, mode: max}",
    "sweep={samples: 1000000000, search: random}",
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: str(one).partition(" at 0x")[0])
def test_of_a_setting(setting: Any) -> None:
    refused(load, GOOD, [setting])


RUNS = [
    *("rounds=many", "local={lr: -1}", "local={lr: -1, epochs: x, momentun: 0}", "model=lennet"),
    *("algorithm=fedavgg", "data=digits-sklear", "partition=dirichlett", "partition={alpha: 1}"),
    *("partition={name: iid, clients: 3, alpa: 1}", "partition={name: dirichlet, alpha: 0}"),
    *("participation={fraction: 0.01}", "participation={clients: 5}", "plugins=[mine.py]"),
    *("space={local.lrr: {grid: [0.1]}}", "space={local.lr: {grid: [0.1, much]}}"),
    *("space={local.lr: {gird: [0.1]}}", "space={local.lr: 0.1}", "algorithm.mu=1"),
    *("space={local.lr: {uniform: [0.2, 0.1]}}", "models={plainn: mlp}", "local.lr.x=1"),
    *("tracking={uri: 'ftp://there'}", "local.lr", "local.lr=fast"),
]


@pytest.mark.parametrize("setting", RUNS)
def test_of_a_run(setting: str, tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, and nothing is left behind."""
    monkeypatch.setenv("FLRAY_DATA", str(tmp_cwd / "no-data"))
    file = written(small(model="lenet", local={"lr": 0.1}))
    mistyped("run", file, setting)
    assert [path.name for path in tmp_cwd.iterdir()] == [file]


def test_of_a_missing_file(tmp_cwd: Path) -> None:
    Path("demo.yaml").touch()
    mistyped("run", "dem.yaml")


FILES: dict[str, bytes] = {
    "nothing": b"",
    "a list": b"- 1\n- 2\n",
    "a number": b"experiment: 3\n",
    "an open list": b"experiment: [1, 2",
    "an unknown part": b"experimnt: {}\nexperiment: {data: random, algorithm: fedavg}",
    "no model": b"experiment: {data: random, algorithm: fedavg}",
    "a base that is a number": b"base: [5]",
    "a base that is a folder": b"base: .",
    "bases without end": b"base: [" + b"a.yaml, " * 70 + b"]",
    "a list as a key": b"? [a]\n: 1",
    "no UTF-8": "data: Tromsø".encode("latin-1"),
    "keys beside experiment": b"experiment: {data: random}\nrounds: 3\nlocal: {lr: 0.1}",
    "a key beside experiment": b"experiment: {data: random}\nrounds: 3",
}


@pytest.mark.parametrize("name", FILES)
def test_of_a_file(name: str, tmp_cwd: Path) -> None:
    Path("a.yaml").write_bytes(b"seed: 1")
    Path("x.yaml").write_bytes(FILES[name])
    refused(load, Path("x.yaml"))


def file_of(name: str, text: str) -> Path:
    """Return a file of the current folder with some text."""
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def linked() -> Path:
    """Return a folder with a link out of it."""
    Path("run").mkdir()
    Path("run", "figures").symlink_to("..")
    return Path("run")


LABELS = np.arange(8) % 4
CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "no configuration": lambda: (load, 5),
    "deep": lambda: (border.parse_json, "[" * 200_000),
    "a link out of a run": lambda: (border.check_links, linked()),
    "clients of unlike classes": lambda: (
        read_partition,
        file_of(
            "partition.json",
            '{"dataset": "d", "classes": ["a", "b"], "origins": {}, "clients": ['
            '{"name": "a", "domain": "d", "train": [1, 2], "test": 1}, '
            '{"name": "b", "domain": "d", "train": [1], "test": 1}]}',
        ),
    ),
    "no place for results": lambda: (directory.create, "/proc/x", "m"),
    "settings without an address": lambda: (
        directory.tracking_uri,
        file_of("run/config.yaml", "experiment: {}").parent,
    ),
    "no checkpoint": lambda: (learnt_sha256, Path()),
    "a checkpoint of a later flray": lambda: (
        learnt_sha256,
        file_of("checkpoint/round-000001.json", '{"format": 99}').parent,
    ),
    "a uid with a space": lambda: (
        partial(Journal(Path("j.jsonl")).start, uid="a b", experiment="e", name="n"),
    ),
    "no kept results": lambda: (read_export, file_of("kept.csv", 'a,"b\n')),
    "an entry that was changed": lambda: (
        read_entries,
        file_of(beside(Path("kept.csv")).name, f'{{"{"0" * 64}": {{}}}}').with_name("kept.csv"),
    ),
    "a database that cannot be": lambda: (connect, "sqlite:////proc/x.db"),
    "a metric without a name": lambda: (clean_name, "//."),
    "no image": lambda: (image_shape, "lenet", (4,), 28),
    "weights of other names": lambda: (
        load_start,
        torch.nn.Linear(1, 1),
        "mlp",
        {"a": {}, "b": {}},
    ),
    "a component without a name": lambda: (flray.register_metric, print),
    "a component that is a number": lambda: (flray.register_metric("five"), 5),
    "fewer classes than there are": lambda: (
        partial(builtin.pathological, LABELS, 0, clients=2, classes_per_client=1),
    ),
    "more parts kept than made": lambda: (
        partial(builtin.domain_dirichlet, LABELS, LABELS, 0, parts=2, keep=3),
    ),
    "a method whose name is a word": lambda: (new_method, "for"),
    "a method that is there": lambda: (new_method, "fedavg"),
}


@pytest.mark.parametrize("name", CALLS)
def test_of_a_call(name: str, tmp_cwd: Path) -> None:
    refused(*CALLS[name]())


ONE = ConfigError("experiment.local.lr", "-1", "above 0")


@pytest.mark.parametrize(
    "error", [ONE, ConfigErrors([ONE, ONE]), DataError("no file"), FlrayError("no")], ids=repr
)
def test_an_error_crosses_from_process_to_process(error: FlrayError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)
    assert vars(again).keys() == vars(error).keys()
