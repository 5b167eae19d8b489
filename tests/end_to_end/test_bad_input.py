"""A user's mistake is one line, exit code 2, and leaves nothing behind."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from flray.cli.main import invoke
from tests.helpers import small


def changed(path: str, value: Any) -> dict[str, Any]:
    content: dict[str, Any] = copy.deepcopy({"experiment": small(model="lenet")})
    *parents, last = path.split(".")
    node = content
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = value
    if value is None:
        del node[last]
    return content


CASES: list[tuple[str, Any, str]] = [
    ("/experimnt", {}, "/experimnt | 'experiment'"),
    ("rounds", "many", "rounds | 'many' | integer"),
    ("local", {"lr": -1}, "local.lr | -1 | greater than 0"),
    ("algorithm", "fedavgg", "algorithm.name | 'fedavgg' | did you mean 'fedavg'"),
    ("data", "digits-sklear", "data.name | 'digits-sklearn'"),
    ("model", "lennet", "model.name | 'lenet'"),
    ("partition", "dirichlett", "partition.name | 'dirichlet'"),
    ("partition", {"alpha": 1}, "partition | name a"),
    ("partition", {"name": "iid", "clients": 3, "alpa": 1}, "partition.alpa | no option 'alpa'"),
    ("partition", {"name": "dirichlet", "alpha": 0}, "partition.alpha | greater than 0"),
    ("participation", {"fraction": 0.01}, "participation.fraction | selects nobody of 4 clients"),
    ("participation", {"clients": 5}, "participation.clients | has 4 clients"),
    ("/space", {"local.lrr": {"grid": [0.1]}}, "/space.local.lrr | unknown key"),
    ("/space", {"local.lr": {"grid": [0.1, "much"]}}, "/space.local.lr | 'much'"),
    ("/space", {"local.lr": {"gird": [0.1]}}, "/space.local.lr"),
    ("/space", {"local.lr": 0.1}, "/space.local.lr | 0.1 | {grid: [...]}"),
    ("/space", {"local.lr": {"uniform": [0.2, 0.1]}}, "/space.local.lr | below the second"),
    ("model", None, "model | required"),
    ("models", {"plainn": "mlp"}, "models.plainn | 'plain'"),
    ("tracking", {"uri": "ftp://there"}, "/'ftp://there' | sqlite:///"),
    ("plugins", ["mine.py"], "plugins | mine.py | no such file"),
]
"""Where in the experiment (after a slash: in the file), what is there, and what its line has to say."""


def the_line(captured: Any) -> str:
    (line,) = captured.readouterr().err.strip().splitlines()
    return str(line)


@pytest.mark.parametrize(("path", "value", "words"), CASES)
def test_one_line_exit_code_two_nothing_created(
    tmp_cwd: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    value: Any,
    words: str,
) -> None:
    both = path, words
    where, words = (one[1:] if one[0] == "/" else f"experiment.{one}" for one in both)
    content = changed(where, value)
    monkeypatch.setenv("FLRAY_DATA", str(tmp_cwd / "no-data"))
    (tmp_cwd / "x.yaml").write_text(yaml.safe_dump(content))
    assert invoke(["run", "x.yaml"]) == 2
    line = the_line(capsys)
    for word in words.split(" | "):
        assert word in line
    assert [p.name for p in tmp_cwd.iterdir()] == ["x.yaml"]


RATE = yaml.safe_dump(changed("experiment.local", {"lr": 0.1}))


@pytest.mark.parametrize(
    ("text", "override", "words"),
    [
        ("experiment: [1, 2", [], ["x.yaml, line", "not valid YAML"]),
        ("- 1\n- 2\n", [], ["x.yaml", "found list"]),
        ("", [], ["x.yaml", "found NoneType"]),
        ("experiment: 3\n", [], ["experiment"]),
        (RATE, ["local.lr"], ["key=value"]),
        (RATE, ["local.lr=fast"], ["experiment.local.lr", "'fast'"]),
        (RATE, ["local.lr.x=1"], ["leads into a value"]),
        (RATE, ["algorithm.mu=1"], ["algorithm.mu", "no option"]),
    ],
)
def test_a_file_that_is_no_configuration_and_bad_overrides(
    tmp_cwd: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    override: list[str],
    words: list[str],
) -> None:
    (tmp_cwd / "x.yaml").write_text(text)
    assert invoke(["run", "x.yaml", *override]) == 2
    line = the_line(capsys)
    assert all(word in line for word in words), line


def test_a_missing_file_names_the_nearest(
    tmp_cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_cwd / "demo.yaml").write_text("")
    assert invoke(["run", "dem.yaml"]) == 2
    assert "dem.yaml: no such file; did you mean 'demo.yaml'?" in capsys.readouterr().err


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
