"""Which Ray a run joins."""

from pathlib import Path
from typing import Any

import pytest

from flray.errors import FlrayError
from flray.federation.ray_backend import session
from flray.federation.ray_backend.session import chosen_address, ray_session
from flray.records import directory
from flray.runs import runner
from tests.messages import refused


@pytest.mark.parametrize(
    ("given", "environment", "expected", "said"),
    [
        (None, None, None, 0),
        (None, "10.0.0.1:6379", "10.0.0.1:6379", 1),
        ("auto", "10.0.0.1:6379", "auto", 0),
        ("local", "10.0.0.1:6379", None, 0),
        (None, "local", None, 0),
        (None, "", None, 0),
    ],
)
def test_the_environment_s_ray_is_joined_and_said(
    given: str | None,
    environment: str | None,
    expected: str | None,
    said: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if environment is not None:
        monkeypatch.setenv("RAY_ADDRESS", environment)
    lines: list[str] = []
    assert chosen_address(given, lines.append) == expected
    assert len(lines) == said and all("10.0.0.1:6379" in line for line in lines)


@pytest.mark.parametrize(
    ("folder", "said", "short"),
    [("a" * 100, "path length", True), ("file/f", "NotADirectoryError", False)],
)
def test_a_ray_that_cannot_start_is_one_line(
    folder: str, said: str, short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / folder))
    with pytest.raises(FlrayError, match=said) as refused, ray_session(None):
        pass
    text = str(refused.value)
    assert text.startswith("no Ray on this machine: ") and "RAY_TMPDIR" in text
    assert ("shorter" in text) == short and "\n" not in text


def test_a_run_whose_ray_is_too_slow_to_start_was_interrupted_and_not_failed(
    tmp_cwd: Path, digits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inline = {**digits, "rounds": 1, "resources": {"executor": "inline"}}
    folder = runner.run({"experiment": inline}).folder
    settings = (folder / directory.CONFIG).read_text()
    (folder / directory.CONFIG).write_text(settings.replace("executor: inline", "executor: ray"))
    tried = []

    def slow(*arguments: Any) -> None:
        tried.append(arguments)
        raise ConnectionError("The current node timed out during startup")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(session, "_start", slow)
    refused(runner.resume, folder, rounds=2)
    assert len(tried) == 2
    assert directory.read(folder)["status"] == "interrupted"
