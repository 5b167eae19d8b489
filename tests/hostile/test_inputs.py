"""Bad files, values, plug-ins, addresses and command lines, and whatever YAML can say: one line, nothing left behind.

One of the files in a process of its own, as a person meets it; all of them with FLRAY_HOSTILE_ALL (scripts/hostile).
"""

import math
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import flray
from flray import files, registry
from flray.config.experiment import Config
from flray.config.loader import copy_plain, load, parse_override
from flray.config.yaml_files import dump, parse
from flray.data.partitions import builtin
from flray.errors import ConfigError, ConfigErrors, DataError, FlrayError
from flray.federation import load_start
from flray.federation.checkpoint import learnt_sha256
from flray.metrics import clean_name
from flray.models import image_shape
from flray.new.__main__ import new_method
from flray.records import Journal, directory, read_partition
from flray.results.export import read_export
from flray.tracking.client import connect
from tests.helpers import Settings, small, written
from tests.hostile import inputs, values
from tests.hostile.asking import asked, started
from tests.hostile.values import GOOD, places, with_value
from tests.messages import mistyped, refused

ALONE = [
    (kind, name)
    for kind, some in inputs.ALL.items()
    for name, (_, typed) in some.items()
    if "\0" not in "".join(typed) and (name == "lines" or os.environ.get("FLRAY_HOSTILE_ALL"))
]


@pytest.mark.parametrize("kind", inputs.ALL)
def test_one_line_exit_code_two_and_nothing_left(kind: str, tmp_cwd: Path) -> None:
    answers = []
    for name, (write, typed) in inputs.ALL[kind].items():
        write()
        answers += [f"{name}: {said}"] if (said := asked(typed)) else []
    assert not answers, "\n".join(answers)


@pytest.mark.parametrize(("kind", "name"), ALONE)
def test_in_a_process_of_its_own(kind: str, name: str, tmp_cwd: Path) -> None:
    write, typed = inputs.ALL[kind][name]
    write()
    assert started(typed) == ""


@pytest.mark.parametrize("command", ["flray run", "flray.tune"])
def test_the_usage_names_the_command_as_it_was_typed(command: str) -> None:
    words = [sys.executable, "-m", *command.split()]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    usage = f"usage: python -m {command} --help"
    assert ended.returncode == 2
    assert ended.stderr == f"flray: Missing argument 'FILE.yaml'. ({usage})\n"


ASKED = 150
"""Values that go by way of a file and the command line; all of them go through `flray.config.loader.load`."""


def answer(case: values.Case) -> str:
    """Return what is wrong with how a bad value is refused, empty if nothing is."""
    try:
        load(values.with_value(*case))
    except FlrayError as error:
        return "" if str(error).isprintable() else f"no single line: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def wrong(cases: list[values.Case]) -> list[str]:
    answers = ((".".join(path), value, answer((path, value))) for path, value in cases)
    return [f"{path}={value!r:.60}: {said}" for path, value, said in answers if said]


def test_bad_values_of_all_settings_and_some_of_options_are_refused_in_one_line() -> None:
    cases, options = list(values.of_settings()), list(values.of_components())
    assert len(cases) > 2500 and wrong(cases) == []
    assert len(options) > 9000 and wrong(random.Random(0).sample(options, 1500)) == []


def test_bad_values_in_a_file_are_one_line_exit_code_two_and_nothing_left(tmp_cwd: Path) -> None:
    cases = random.Random(1).sample([*values.of_settings(), *values.of_components()], ASKED)
    answers = []
    for path, value in cases:
        Path("x.yaml").write_text(yaml.safe_dump(with_value(path, value), allow_unicode=True))
        if said := asked(["run", "x.yaml"]):
            answers.append(f"{'.'.join(path)}={value!r:.60}: {said}")
    assert not answers, "\n".join(answers)


NUMBERED = sorted({*registry.ALL} - {"callbacks", "metrics", "samplers", "tasks"})


@pytest.mark.parametrize("kind", NUMBERED)
def test_no_option_of_any_component_is_infinite(kind: str) -> None:
    asked = 0
    for name in registry.ALL[kind].names():
        params = registry.ALL[kind].params(name)
        for option, field in params.model_fields.items():
            if "float" not in str(field.annotation):
                continue
            asked += 1
            for value in (math.inf, -math.inf, math.nan):
                with pytest.raises(ValidationError) as caught:
                    params.model_validate({option: value})
                assert option in {error["loc"][0] for error in caught.value.errors()}, name
    assert asked


WORDS = ["iid", "fedavg", "fedprox", "lenet", "digits-sklearn", "auto", "ray", "1e-3", "name"]
NUMBERS = st.none() | st.booleans() | st.integers() | st.floats()
LEAVES = NUMBERS | st.text(max_size=8) | st.sampled_from(WORDS)
NAMES = ["name", "preset", "lr", "local", "experiment", "sweep", "grid", "uniform", "mu"]
KEYS = st.text(max_size=6) | st.sampled_from(NAMES)
CONTENT = st.recursive(
    LEAVES,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=3),
    max_leaves=8,
)
PLACES = [path for path, _ in places()]
QUICK = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def well_said(source: Any, *overrides: Any) -> bool:
    """Load, and tell whether that gives a configuration or a refusal of one line per mistake."""
    try:
        return isinstance(load(source, overrides), Config)
    except ConfigErrors as error:
        return len(str(error).split("\n")) == len(error.errors)
    except FlrayError as error:
        return "\n" not in str(error)


@QUICK
@given(st.dictionaries(KEYS, CONTENT, max_size=4))
def test_any_content_is_a_configuration_or_a_line_per_mistake(content: Settings) -> None:
    assert well_said(content)


@QUICK
@given(st.sampled_from(PLACES), CONTENT)
def test_any_value_is_taken_or_refused_as_override_too(path: tuple[str, ...], value: Any) -> None:
    assert well_said(with_value(path, value))
    assert well_said(with_value(("experiment", "rounds"), 1), (".".join(path), value))


@QUICK
@given(st.text(max_size=40))
def test_any_text_is_an_override_or_refused_in_a_line(text: str) -> None:
    try:
        parse_override(text)
    except FlrayError as error:
        assert "\n" not in str(error)


@QUICK
@given(st.text(alphabet="ab:-[]{},&*!?|>'\"#% \n\t0.", max_size=40))
def test_any_text_is_plain_yaml_or_refused_in_a_line(text: str) -> None:
    try:
        content = parse(text)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert yaml.safe_load(yaml.safe_dump(content)) is not None or content is None


@QUICK
@given(CONTENT)
def test_what_yaml_wrote_is_read_as_it_was(content: Any) -> None:
    try:
        value = copy_plain(content)
    except FlrayError:
        return
    try:
        again = parse(dump(value))
    except ValueError:
        return  # a character that YAML cannot have
    assert repr(again) == repr(value)  # with types, order and nan


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("2001-12-14", "2001-12-14"), ("1_000", 1000), ("0x1f", 31), ("yes", True), ("~", None)),
        *(("1e-3", "1e-3"), ("1.0e-3", 0.001), (".inf", math.inf), ("[1, a: 2]", [1, {"a": 2}])),
        ("{<<: {a: 1}, b: 2}", {"a": 1, "b": 2}),
        ("- &a {x: 1}\n- &b {<<: *a, x: 2}\n- {<<: *b, x: 3}", [{"x": 1}, {"x": 2}, {"x": 3}]),
    ],
)
def test_plain_values_are_read_as_yaml_means_them_and_dates_as_text(text: str, value: Any) -> None:
    """Only a setting that is a number takes an exponent without a point, which YAML takes for text."""
    assert parse(text) == value
    local = with_value(("experiment", "local"), {"lr": "1e-3"})
    assert load(local).experiment.local.lr == 0.001


SETTINGS: list[Any] = [
    *("rounds='3'", "rounds=true", "rounds=3.0", "rounds=99999999999999999999", "local.lr=["),
    *("local.compile='yes'", "participation.unseen=1.5", "resources.gpus_per_actor=1.5"),
    *(("name", "a\0b"), ("local", {5: 3}), ("local.lr", print), ("local.lr", 1j)),
    *("partition={name: file, path: none.json}", "start=none.safetensors"),
    *("sweep.until={at_least: 50, at_most: 10}", "sweep.seeds=[0, 0]", "sweep.seeds=3"),
    *("space={local.lr: {uniform: [1, 0]}}", "space={local.lr: {uniform: [-1.7e+308, 1.7e+308]}}"),
    "sweep={metric: global/common/loss, mode: max}",
    "sweep={metric: global/common/accuracy, mode: min}",
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
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


LABELS = np.arange(8) % 4
UNLIKE = (
    '{"dataset": "d", "classes": ["a", "b"], "origins": {}, "clients": ['
    '{"name": "a", "domain": "d", "train": [1, 2], "test": 1}, '
    '{"name": "b", "domain": "d", "train": [1], "test": 1}]}'
)


def test_of_calls_with_files(tmp_cwd: Path) -> None:
    refused(files.parse_json, "[" * 200_000)
    refused(read_partition, file_of("partition.json", UNLIKE))
    refused(directory.create, "/proc/x", "m")
    refused(directory.tracking_uri, file_of("run/config.yaml", "experiment: {}").parent)
    refused(learnt_sha256, Path())
    refused(learnt_sha256, file_of("later/round-000001.json", '{"format": 99}').parent)
    refused(Journal(Path("j.jsonl")).start, uid="a b", experiment="e", name="n")
    refused(read_export, file_of("kept.csv", 'a,"b\n'))
    refused(connect, "sqlite:////proc/x.db")


def test_of_calls_with_values(tmp_cwd: Path) -> None:
    refused(load, 5)
    refused(clean_name, "//.")
    refused(image_shape, "lenet", (4,), 28)
    refused(load_start, torch.nn.Linear(1, 1), "mlp", {"a": {}, "b": {}})
    refused(flray.register_metric, print)
    refused(flray.register_metric("five"), 5)
    refused(builtin.pathological, LABELS, 0, clients=2, classes_per_client=1)
    refused(builtin.domain_dirichlet, LABELS, LABELS, 0, parts=2, keep=3)
    for name in ("for", "fedavg"):  # a word of Python's, and one that is there
        refused(new_method, name)


ONE = ConfigError("experiment.local.lr", "-1", "above 0")


def test_an_error_crosses_from_process_to_process() -> None:
    for error in (ONE, ConfigErrors([ONE, ONE]), DataError("no file"), FlrayError("no")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
        assert vars(again).keys() == vars(error).keys()
