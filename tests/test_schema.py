"""The JSON schema accepts whatever flray accepts, such as its own files and blocks of pages; it refuses mistakes."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from flray import registry
from flray.config import yaml_files
from flray.config.experiment import Config, Experiment
from flray.config.loader import load
from flray.config.schema import schema, settings
from flray.errors import FlrayError
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs
from tests.helpers import printed, python
from tests.messages import mistyped
from tests.pages import BLOCKS, FILES

MODELINE = "# yaml-language-server: $schema="
FILES_OF_FLRAY = sorted(yaml_files.folder().rglob("*.yaml"))


@cache
def validator() -> Draft202012Validator:
    Draft202012Validator.check_schema(schema())
    return Draft202012Validator(schema())


def rows(text: str) -> list[Any]:
    return yaml.safe_load(f"[{text}]")


def accepts(content: Any) -> bool:
    return bool(validator().is_valid(content))


@pytest.mark.parametrize("path", FILES_OF_FLRAY, ids=lambda path: path.stem)
def test_every_file_is_accepted_and_names_the_schema(path: Path) -> None:
    assert [error.message for error in validator().iter_errors(yaml_files.read_yaml(path))] == []
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(MODELINE)
    place = path.parent / first.removeprefix(MODELINE)
    assert place.resolve() == (yaml_files.folder() / "schema.json").resolve()


def test_blocks_of_the_pages_are_accepted(tmp_cwd: Path) -> None:
    """By flray, too, where a block is a part of an experiment."""
    blocks = [block for block in BLOCKS if block.language == "yaml"]
    assert len(blocks) > 10 and not all(block.file for block in blocks)
    code = "import sys; from flray.cli.main import invoke; sys.exit(invoke(sys.argv[1:]))"

    def is_valid(content: Any, *plugins: str) -> bool:
        """Ask another process, which has no component of another test."""
        done = python(code, "schema", *plugins, cwd=tmp_cwd)
        return bool(Draft202012Validator(json.loads(done.stdout)).is_valid(content))

    for block in blocks:
        content = yaml_files.parse(block.text)
        if not block.file:  # a part of an experiment
            for file in re.findall(r"[\w.-]+\.pth", block.text):
                (tmp_cwd / file).touch()
            content = {"data": "random", "model": "lenet", "algorithm": "fedavg", **content}
            Experiment.model_validate(content)
        if "plugins" not in content.get("experiment", content):
            assert accepts(content), (block.page, block.lines)
            continue
        for name in content["experiment"]["plugins"]:
            (tmp_cwd / name).write_text(FILES[name])
        own = [word for name in content["experiment"]["plugins"] for word in ("--plugins", name)]
        assert is_valid(content, *own) and not is_valid(content)


LEAST: dict[str, Any] = {"data": "mnist", "model": "lenet", "algorithm": "fedavg"}
FILES_WITH_A_BASE = """
{}, {base: [x.yaml, y.yaml], experiment: {rounds: 3}}, {experiment: {data: {samples: 10}}},
{arms: {method: {fedavg: null, b: {algorithm.mu: null}}}},
{arms: {method: null}, paper: {measures: {top1: null}}}
"""
SECTIONS = """
{}, {arms: {a: {b: null, c: {experiment.local.lr: 0.1}}}},
{arms: {a: {b: {space: {local.lr: {grid: [1]}}}}}}, {space: {algorithm: {grid: [fedavg, {name: fedprox}]}}}
"""
TAKEN: list[Any] = [{"base": "x.yaml", **one} for one in rows(FILES_WITH_A_BASE)]
TAKEN += [{"experiment": LEAST, **one} for one in rows(SECTIONS)]
TAKEN += [LEAST, {"experiment": {**LEAST, "start": "demo/001"}}]
TAKEN += [{"experiment": {**LEAST, "local": {"lr": 0.1}}, "sweep": {"scheduler": "asha"}}]
MODELS = {**LEAST, "models": {"client0": "mlp"}}
TAKEN += [{"experiment": MODELS, "space": {"models.a": {"grid": ["mlp"]}}}]


@pytest.mark.parametrize("content", TAKEN, ids=repr)
def test_what_flray_takes_is_accepted(content: Any) -> None:
    assert accepts(content)
    if "base" not in content and "start" not in content.get("experiment", ()):
        load(content)


WRONG_FILES = """
{}, [], {data: mnist, model: lenet}, {experiment: {data: mnist, algorithm: fedavg}}, {sweep: {seeds: [0]}},
{base: 3}, {base: x.yaml, experiment: {round: 3}}
"""
WRONG_SECTIONS = """
{rounds: 3}, {bases: x.yaml}, {arms: {method: {a: {algorithmus: fedavg}}}},
{arms: {method: {a: {local.lr: much}}}}, {arms: {Method: {a: {}}}}, {space: {local.learning: {grid: [1]}}},
{space: {local.lr: {log: [1, 2]}}}, {sweep: {scheduler: pbt}}, {sweep: {seeds: 3}},
{sweep: {where: [{arms: {a: [b]}, settings: {lr: 1}}]}}
"""
WRONG_SETTINGS = """
{algorithm: fedprx}, {algorithm: {name: fedprox, nu: 0.1}}, {algorithm: {name: fedprox, mu: -1}},
{algorithm: {mu: 0.1}}, {rounds: 0}, {rounds: ten}, {local: {learning_rate: 0.1}}, {local: {lr: 0}},
{split: [0.5, 0.5]}, {partition: {name: dirichlet, alpha: much}}
"""
WRONG = [*rows(WRONG_FILES), *({"experiment": LEAST, **one} for one in rows(WRONG_SECTIONS))]
WRONG += [{"experiment": {**LEAST, **one}} for one in rows(WRONG_SETTINGS)]


@pytest.mark.parametrize("content", WRONG, ids=repr)
def test_mistakes_are_refused(content: Any) -> None:
    assert not accepts(content)
    if "base" not in content:
        with pytest.raises(FlrayError):
            config = resolve_sweep(load(content))
            trial_specs(config, enumerate_settings(config))


def test_the_command_prints_it_and_settings_are_listed_with_default_range_and_meaning() -> None:
    document = json.loads(printed("schema"))
    assert document == schema()
    assert document["$schema"].endswith("2020-12/schema") and document["$id"] == "urn:flray:schema"
    rows = {row.path: row for _, _, every in settings() for row in every}
    assert set(rows) >= {"local.lr", "data", "stop.patience", "sweep.seeds", "paper.table", "arms"}
    assert rows["local.lr"][1:] == ("0.01", "number > 0", "learning rate")
    assert rows["algorithm"][1:3] == ("required", "flray list algorithms")
    assert rows["local.betas"].allowed == "[number >= 0 < 1, number >= 0 < 1]"
    assert rows["stop"].default == "null"
    assert [path for path, row in rows.items() if not row.meaning or not row.allowed] == []
    for kind in re.findall(r"flray list (\w+)", " ".join(row.allowed for row in rows.values())):
        assert kind in registry.ALL
    fields = set(Config.model_fields["experiment"].annotation.model_fields)  # type: ignore[union-attr]
    assert fields <= {path.partition(".")[0] for path in rows}
    shown = printed("list", "settings", "local")
    assert "local.lr" in shown and "sweep.seeds" not in shown
    found = json.loads(printed("list", "settings", "experiment.stop", "--json"))
    assert [row["path"] for row in found][:2] == ["stop", "stop.metric"]
    mistyped("list", "settings", "lokal")
