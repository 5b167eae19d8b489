"""README's first hour works when pasted: its files are written, its commands run, its error texts are the real ones."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flray.cli.main import invoke
from flray.data.sources.cache import data_root

README = Path(__file__).parents[1] / "README.md"
FILE = re.compile(r"# ([\w.-]+\.(?:py|yaml))$")


def parts() -> tuple[dict[str, str], list[list[str]], list[str]]:
    """Return README's files by name, its ``flray`` command lines, and its pieces of Python without a name."""
    files: dict[str, list[str]] = {}
    commands: list[list[str]] = []
    scripts: list[list[str]] = []
    into: list[str] | None = None
    for line in README.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("    "):
            into = None
            continue
        code = line[4:]
        if named := FILE.match(code):
            into = files.setdefault(named.group(1), [])
        elif code.startswith("flray "):
            into = None
            commands.append(shlex.split(code, comments=True)[1:])
        elif code.startswith("import flray"):
            into = []
            scripts.append(into)
        if into is not None:
            into.append(code)
    return (
        {name: "\n".join(lines) + "\n" for name, lines in files.items()},
        commands,
        ["\n".join(lines) for lines in scripts],
    )


FILES, COMMANDS, SCRIPTS = parts()
RUNS = [command for command in COMMANDS if command[0] == "run" and command[1] in FILES]


@pytest.fixture
def folder(tmp_cwd: Path) -> Path:
    """README's files and a few photos in a fresh folder; the digits are those that need no download if need be."""
    for name, text in FILES.items():
        if not any((data_root()).glob("digits5-local*")):
            text = text.replace("digits5-local", "digits-sklearn")
        (tmp_cwd / name).write_text(text.replace("samples: 1000", "samples: 60"))
    for label, name in enumerate(("cats", "dogs", "birds")):
        (tmp_cwd / "photos" / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.full((20, 24, 3), 60 * label + number, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_cwd / "photos" / name / f"{number}.png")
    return tmp_cwd


def test_what_is_to_be_pasted_is_found() -> None:
    assert set(FILES) >= {"demo.yaml", "my_data.py", "my_network.py", "my_method.py", "mine.yaml"}
    assert len(RUNS) == 5 and len(SCRIPTS) == 1


@pytest.mark.parametrize("command", RUNS, ids=" ".join)
def test_a_run_of_the_first_hour(
    folder: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    small = ["rounds=1", "resources.executor=inline", "tracking.uri=null"]
    assert invoke([*command, *small]) == 0, capsys.readouterr().err
    assert "model SHA-256: " in capsys.readouterr().out


@pytest.mark.slow
def test_ones_own_files_reach_the_actors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = [command for command in RUNS if command[1] == "mine.yaml"]
    digests = set()
    for executor in ("ray", "inline"):
        assert (
            invoke([*command, "rounds=2", "tracking.uri=null", f"resources.executor={executor}"])
            == 0
        )
        digests.add(re.findall(r"model SHA-256: (\w+)", capsys.readouterr().out)[0])
    assert len(digests) == 1


def test_the_piece_of_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (folder / "demo.yaml").read_text()
    (folder / "demo.yaml").write_text(
        f"{text}  resources: {{executor: inline}}\n  tracking: {{uri: null}}\n"
    )
    names: dict[str, object] = {}
    exec(compile(SCRIPTS[0], "README.md", "exec"), names)
    result = names["result"]
    assert len(result.history) == 5  # type: ignore[attr-defined]


def test_the_other_commands_on_a_finished_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        invoke(["run", "demo.yaml", "rounds=1", "resources.executor=inline", "tracking.uri=null"])
        == 0
    )
    wanted = [
        ["resume", "demo"],
        ["data", "show", "demo.yaml", "--plot", "partition.png"],
        ["schema"],
    ]
    text = " ".join(README.read_text(encoding="utf-8").split())
    for command in wanted:
        assert " ".join(["flray", *command]) in text
        assert invoke(command) == 0
    assert (folder / "partition.png").exists()
