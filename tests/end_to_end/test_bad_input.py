"""A user's mistake is one line, exit code 2, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from flray.cli.main import invoke

GOOD: dict[str, Any] = {
    "experiment": {
        "data": "digits-sklearn",
        "model": "lenet",
        "algorithm": "fedavg",
        "rounds": 1,
        "resources": {"executor": "inline"},
        "tracking": {"uri": None},
    }
}


def changed(path: str, value: Any) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(yaml.safe_dump(GOOD))
    *parents, last = path.split(".")
    node = content
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = value
    return content


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown key": (
        changed("experiment.local", {"lrr": 0.1}),
        ["experiment.local.lrr", "unknown key", "'lr'"],
    ),
    "unknown part": (changed("experimnt", {}), ["experimnt", "'experiment'"]),
    "wrong type": (
        changed("experiment.rounds", "many"),
        ["experiment.rounds", "'many'", "integer"],
    ),
    "out of range": (
        changed("experiment.local", {"lr": -1}),
        ["experiment.local.lr", "-1", "greater than 0"],
    ),
    "unknown algorithm": (
        changed("experiment.algorithm", "fedavgg"),
        ["experiment.algorithm.name", "'fedavgg'", "did you mean 'fedavg'"],
    ),
    "unknown dataset": (
        changed("experiment.data", "digits-sklear"),
        ["experiment.data.name", "'digits-sklearn'"],
    ),
    "unknown model": (changed("experiment.model", "lennet"), ["experiment.model.name", "'lenet'"]),
    "unknown partition": (
        changed("experiment.partition", "dirichlett"),
        ["experiment.partition.name", "'dirichlet'"],
    ),
    "component without name": (
        changed("experiment.partition", {"alpha": 1}),
        ["experiment.partition", "name a"],
    ),
    "unknown option": (
        changed("experiment.partition", {"name": "iid", "clients": 3, "alpa": 1}),
        ["experiment.partition.alpa", "no option 'alpa'"],
    ),
    "option out of range": (
        changed("experiment.partition", {"name": "dirichlet", "clients": 3, "alpha": 0}),
        ["experiment.partition.alpha", "greater than 0"],
    ),
    "too many actors": (
        changed("experiment.resources", {"actors": 999}),
        ["experiment.resources.actors", "999", "ask for fewer"],
    ),
    "too many GPUs": (
        changed("experiment.resources", {"gpus_per_actor": 3}),
        ["experiment.resources.gpus_per_actor"],
    ),
    "nobody takes part": (
        changed("experiment.participation", {"fraction": 0.01}),
        ["experiment.participation.fraction", "selects nobody of 4 clients"],
    ),
    "more participants than clients": (
        changed("experiment.participation", {"clients": 5}),
        ["experiment.participation.clients", "has 4 clients"],
    ),
    "space path": (
        changed("space", {"local.lrr": {"grid": [0.1]}}),
        ["space.local.lrr", "unknown key"],
    ),
    "space value": (
        changed("space", {"local.lr": {"grid": [0.1, "much"]}}),
        ["space.local.lr", "'much'"],
    ),
    "space form": (changed("space", {"local.lr": {"gird": [0.1]}}), ["space.local.lr"]),
    "space without form": (
        changed("space", {"local.lr": 0.1}),
        ["space.local.lr", "0.1", "{grid: [...]}"],
    ),
    "interval": (
        changed("space", {"local.lr": {"uniform": [0.2, 0.1]}}),
        ["space.local.lr", "below the second"],
    ),
    "data not fetched": (
        changed("experiment.data", "digits5-local"),
        ["flray data get digits5-local"],
    ),
    "missing model": (
        {"experiment": {k: v for k, v in GOOD["experiment"].items() if k != "model"}},
        ["experiment.model", "required"],
    ),
    "no such client": (
        changed("experiment.models", {"plainn": "mlp"}),
        ["experiment.models.plainn", "'plain'"],
    ),
    "tracking address": (
        changed("experiment.tracking", {"uri": "ftp://there"}),
        ["'ftp://there'", "sqlite:///"],
    ),
    "missing plugin": (
        changed("experiment.plugins", ["mine.py"]),
        ["experiment.plugins", "mine.py", "no such file"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_exit_code_two_nothing_created(
    tmp_cwd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    content, words = CASES[case]
    monkeypatch.setenv("FLRAY_DATA", str(tmp_cwd / "no-data"))
    if "GPU" in case or "actors" in case:
        content["experiment"]["resources"]["executor"] = "ray"
    file = tmp_cwd / "x.yaml"
    file.write_text(yaml.safe_dump(content))
    assert invoke(["run", "x.yaml"]) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    for word in words:
        assert word in lines[0]
    assert [p.name for p in tmp_cwd.iterdir()] == ["x.yaml"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("experiment: [1, 2", ["x.yaml, line", "not valid YAML"]),
        ("- 1\n- 2\n", ["x.yaml", "found list"]),
        ("", ["x.yaml", "found NoneType"]),
        ("experiment: 3\n", ["experiment"]),
    ],
)
def test_a_file_that_is_no_configuration(
    tmp_cwd: Path, capsys: pytest.CaptureFixture[str], text: str, words: list[str]
) -> None:
    (tmp_cwd / "x.yaml").write_text(text)
    assert invoke(["run", "x.yaml"]) == 2
    message = capsys.readouterr().err.strip()
    assert len(message.splitlines()) == 1
    assert all(word in message for word in words)


def test_a_missing_file_names_the_nearest(
    tmp_cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_cwd / "demo.yaml").write_text("")
    assert invoke(["run", "dem.yaml"]) == 2
    assert "dem.yaml: no such file; did you mean 'demo.yaml'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("local.lr", ["key=value"]),
        ("local.lr=fast", ["experiment.local.lr", "'fast'"]),
        ("local.lr.x=1", ["leads into a value"]),
        ("algorithm.mu=1", ["algorithm.mu", "no option"]),
    ],
)
def test_bad_overrides(
    tmp_cwd: Path, capsys: pytest.CaptureFixture[str], override: str, words: list[str]
) -> None:
    (tmp_cwd / "x.yaml").write_text(yaml.safe_dump(changed("experiment.local", {"lr": 0.1})))
    assert invoke(["run", "x.yaml", override]) == 2
    message = capsys.readouterr().err.strip()
    assert len(message.splitlines()) == 1
    assert all(word in message for word in words), message


def test_several_mistakes_are_a_line_each(
    tmp_cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_cwd / "x.yaml").write_text(
        yaml.safe_dump(changed("experiment.local", {"lr": -1, "epochs": "x", "momentun": 0}))
    )
    assert invoke(["run", "x.yaml"]) == 2
    message = capsys.readouterr().err.strip()
    assert len(message.splitlines()) == 3
    assert "'momentum'" in message
