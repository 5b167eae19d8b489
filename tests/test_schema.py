"""The JSON schema accepts whatever flray accepts, such as its own files and blocks of pages; it refuses mistakes."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from flray import registry
from flray.config import yaml_files
from flray.config.experiment import Config, Experiment
from flray.config.loader import load
from flray.config.schema import schema, settings
from flray.config.yaml_files import parse, read_yaml
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


def accepts(content: Any) -> bool:
    return bool(validator().is_valid(content))


@pytest.mark.parametrize("path", FILES_OF_FLRAY, ids=lambda path: path.stem)
def test_every_file_is_accepted_and_names_the_schema(path: Path) -> None:
    assert [error.message for error in validator().iter_errors(read_yaml(path))] == []
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
        content = parse(block.text)
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
MODELS = {"models": {"client0": "mlp"}}


@pytest.mark.parametrize(
    "content",
    [
        LEAST,
        {"experiment": LEAST},
        {"experiment": {**LEAST, "local": {"lr": 0.1}}, "sweep": {"scheduler": "asha"}},
        {"base": "x.yaml"},
        {"base": ["x.yaml", "y.yaml"], "experiment": {"rounds": 3}},
        {"base": "x.yaml", "experiment": {"data": {"samples": 10}}},
        {"base": "x.yaml", "arms": {"method": {"fedavg": None, "b": {"algorithm.mu": None}}}},
        {"base": "x.yaml", "arms": {"method": None}, "paper": {"measures": {"top1": None}}},
        {"experiment": LEAST, "arms": {"a": {"b": None, "c": {"experiment.local.lr": 0.1}}}},
        {"experiment": LEAST, "arms": {"a": {"b": {"space": {"local.lr": {"grid": [1]}}}}}},
        {"experiment": LEAST, "space": {"algorithm": {"grid": ["fedavg", {"name": "fedprox"}]}}},
        {"experiment": LEAST | MODELS, "space": {"models.a": {"grid": ["mlp"]}}},
        {"experiment": {**LEAST, "start": "demo/001"}},
    ],
    ids=repr,
)
def test_what_flray_takes_is_accepted(content: Any) -> None:
    assert accepts(content)
    if "base" not in content and "start" not in content.get("experiment", ()):
        load(content)


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        {"data": "mnist", "model": "lenet"},
        {"experiment": {"data": "mnist", "algorithm": "fedavg"}},
        {"sweep": {"seeds": [0]}},
        {"experiment": LEAST, "rounds": 3},
        {"experiment": LEAST, "bases": "x.yaml"},
        {"base": 3},
        {"experiment": {**LEAST, "algorithm": "fedprx"}},
        {"experiment": {**LEAST, "algorithm": {"name": "fedprox", "nu": 0.1}}},
        {"experiment": {**LEAST, "algorithm": {"name": "fedprox", "mu": -1}}},
        {"experiment": {**LEAST, "algorithm": {"mu": 0.1}}},
        {"experiment": {**LEAST, "rounds": 0}},
        {"experiment": {**LEAST, "rounds": "ten"}},
        {"experiment": {**LEAST, "local": {"learning_rate": 0.1}}},
        {"experiment": {**LEAST, "local": {"lr": 0}}},
        {"experiment": {**LEAST, "split": [0.5, 0.5]}},
        {"experiment": {**LEAST, "partition": {"name": "dirichlet", "alpha": "much"}}},
        {"experiment": LEAST, "arms": {"method": {"a": {"algorithmus": "fedavg"}}}},
        {"experiment": LEAST, "arms": {"method": {"a": {"local.lr": "much"}}}},
        {"experiment": LEAST, "arms": {"Method": {"a": {}}}},
        {"experiment": LEAST, "space": {"local.learning": {"grid": [1]}}},
        {"experiment": LEAST, "space": {"local.lr": {"log": [1, 2]}}},
        {"experiment": LEAST, "sweep": {"scheduler": "pbt"}},
        {"experiment": LEAST, "sweep": {"seeds": 3}},
        {"experiment": LEAST, "sweep": {"where": [{"arms": {"a": ["b"]}, "settings": {"lr": 1}}]}},
        {"base": "x.yaml", "experiment": {"round": 3}},
    ],
    ids=repr,
)
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
