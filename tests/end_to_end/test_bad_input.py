"""A user's mistake is one line, exit code 2, and leaves nothing behind."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import small
from tests.messages import mistyped


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


CASES: list[tuple[str, Any]] = [
    ("/experimnt", {}),
    ("rounds", "many"),
    ("local", {"lr": -1}),
    ("algorithm", "fedavgg"),
    ("data", "digits-sklear"),
    ("model", "lennet"),
    ("partition", "dirichlett"),
    ("partition", {"alpha": 1}),
    ("partition", {"name": "iid", "clients": 3, "alpa": 1}),
    ("partition", {"name": "dirichlet", "alpha": 0}),
    ("participation", {"fraction": 0.01}),
    ("participation", {"clients": 5}),
    ("/space", {"local.lrr": {"grid": [0.1]}}),
    ("/space", {"local.lr": {"grid": [0.1, "much"]}}),
    ("/space", {"local.lr": {"gird": [0.1]}}),
    ("/space", {"local.lr": 0.1}),
    ("/space", {"local.lr": {"uniform": [0.2, 0.1]}}),
    ("model", None),
    ("models", {"plainn": "mlp"}),
    ("tracking", {"uri": "ftp://there"}),
    ("plugins", ["mine.py"]),
]
"""Where in the experiment (after a slash: in the file), and what is there."""


@pytest.mark.parametrize(("path", "value"), CASES)
def test_one_line_exit_code_two_nothing_created(
    tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch, path: str, value: Any
) -> None:
    content = changed(path[1:] if path[0] == "/" else f"experiment.{path}", value)
    monkeypatch.setenv("FLRAY_DATA", str(tmp_cwd / "no-data"))
    (tmp_cwd / "x.yaml").write_text(yaml.safe_dump(content))
    mistyped("run", "x.yaml")
    assert [p.name for p in tmp_cwd.iterdir()] == ["x.yaml"]


@pytest.mark.parametrize("text", ["experiment: [1, 2", "- 1\n- 2\n", "", "experiment: 3\n"])
def test_a_file_that_is_no_configuration(tmp_cwd: Path, text: str) -> None:
    (tmp_cwd / "x.yaml").write_text(text)
    mistyped("run", "x.yaml")


@pytest.mark.parametrize(
    "override", ["local.lr", "local.lr=fast", "local.lr.x=1", "algorithm.mu=1"]
)
def test_bad_overrides(tmp_cwd: Path, override: str) -> None:
    (tmp_cwd / "x.yaml").write_text(yaml.safe_dump(changed("experiment.local", {"lr": 0.1})))
    mistyped("run", "x.yaml", override)


def test_a_missing_file_names_the_nearest(tmp_cwd: Path) -> None:
    (tmp_cwd / "demo.yaml").write_text("")
    mistyped("run", "dem.yaml")


def test_several_mistakes_are_a_line_each(tmp_cwd: Path) -> None:
    wrong = changed("experiment.local", {"lr": -1, "epochs": "x", "momentun": 0})
    (tmp_cwd / "x.yaml").write_text(yaml.safe_dump(wrong))
    mistyped("run", "x.yaml")
