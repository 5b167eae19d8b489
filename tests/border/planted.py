"""Objects that somebody else put into a folder, a bucket or a table, to be met by every command."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from PIL import Image

from tests.helpers import Settings

CLIENT = 'A""";open("PWNED","w").write("x");"""y'
"""A name that becomes code where it is written into a docstring."""
ESCAPES = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202e"
"""Title of the window, cleared screen, red, and text from right to left."""
RUN, UP = Path("runs/m/001"), "../../../../outside"
Plant = Callable[[Path], None]
"""Changes a run's folder; everything is below the current folder, and ``../outside`` is somebody's home."""


def outside() -> Path:
    """Return the folder in which nothing may be written."""
    return Path("../outside").resolve()


def edit(file: str, *keys: str, value: Any) -> Plant:
    """Return what sets a value in a JSON or YAML file of the run."""

    def plant(run: Path) -> None:
        path = run / file
        whole = part = yaml.safe_load(path.read_text())
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value() if callable(value) else value
        path.write_text(json.dumps(whole) if path.suffix == ".json" else yaml.safe_dump(whole))

    return plant


def setting(*keys: str, value: Any) -> Plant:
    return edit("config.yaml", "experiment", *keys, value=value)


def callback(name: str, **options: Callable[[], str]) -> Plant:
    made = lambda: [{"name": name, **{key: value() for key, value in options.items()}}]  # noqa: E731
    return setting("callbacks", value=made)


def write(file: str, data: bytes) -> Plant:
    return lambda run: void((run / file).write_bytes(data))


def void(_: object) -> None:
    """Forget what a call returned."""


def instead(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def plant(path: Path) -> None:
        path.unlink()
        make(path)

    return plant


def pipe(file: str) -> Plant:
    return lambda run: instead(os.mkfifo)(*run.glob(file))


def link(file: str, target: Callable[[], str | Path]) -> Plant:
    def plant(run: Path) -> None:
        path = run / file
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(target())

    return plant


def lines(change: Callable[[bytes], bytes]) -> Plant:
    def plant(run: Path) -> None:
        path = run / "journal.jsonl"
        path.write_bytes(change(path.read_bytes()))

    return plant


def event(**values: Any) -> Plant:
    return lines(lambda data: data + json.dumps(values).encode() + b"\n")


def plugin(where: str) -> Plant:
    def plant(run: Path) -> None:
        path = (run / where).resolve()
        path.write_text(f"open({str(outside().parent / 'PWNED')!r}, 'w').close()\n")
        setting("plugins", value=[str(path)])(run)

    return plant


def manifest(change: Callable[[dict[str, Any]], Any]) -> Plant:
    def plant(run: Path) -> None:
        path = max((run / "checkpoint").glob("round-*.json"))
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return plant


def elsewhere(content: Settings) -> dict[str, Any]:
    """Return a list of files that names one outside the folder."""
    (name,) = (name for name in content["files"] if name.startswith("server-"))
    return content | {"files": {"../../../../../outside/server-1": content["files"][name]}}


def repository(run: Path) -> None:
    """Make the current folder a repository whose settings name programs."""
    evil = outside().parent / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch {outside().parent}/PWNED\ncat\n")
    evil.chmod(0o755)
    Path("tracked.txt").write_text("before")
    Path(".gitattributes").write_text("* filter=evil\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "tracked.txt"], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], check=True, timeout=60)
    for name in ("core.fsmonitor", "filter.evil.clean", "filter.evil.process", "core.pager"):
        subprocess.run(["git", "config", name, str(evil)], check=True, timeout=60)
    shutil.copy(evil, ".git/hooks/post-index-change")
    Path("tracked.txt").write_text("after")


FOLDERS: dict[str, Plant] = {
    "journal: a pipe": pipe("journal.jsonl"),
    "journal: a device": link("journal.jsonl", lambda: "/dev/zero"),
    "journal: a folder": lambda run: instead(Path.mkdir)(run / "journal.jsonl"),
    "journal: a link to nothing": link("journal.jsonl", lambda: outside() / "made"),
    "journal: UTF-16": lines(lambda data: data.decode().encode("utf-16")),
    "journal: its lock is a link": link(".journal.jsonl.lock", lambda: outside() / "letter"),
    "journal: names a file elsewhere": event(type="artifact", path=f"{UP}/letter", to=""),
    "journal: escapes": event(type="tags", tags={"best": ESCAPES, "best.score": ESCAPES}),
    "run.json: a device": link("run.json", lambda: "/dev/zero"),
    "run.json: of another program": write("run.json", b'{"name": "web", "scripts": {}}'),
    "run.json: deep": write("run.json", b"[" * 200_000),
    "run.json: uid that is a path": edit("run.json", "uid", value=f"{UP}/u"),
    "run.json: escapes": edit("run.json", "status", value=ESCAPES),
    "config.yaml: a list": write("config.yaml", b"experiment: [1]\n"),
    "config.yaml: escapes": setting("data", "name", value=ESCAPES),
    "config.yaml: an object": write("config.yaml", b"a: !!python/object/apply:open [../PWNED, w]"),
    "config.yaml: a plug-in beside it": plugin("own.py"),
    "partition.json: damaged": write("partition.json", b'{"clients": [5]}'),
    "diagnostics: no arrays": write("portrait.npz", b"PK\x03\x04" * 9),
    "checkpoint: a list": manifest(lambda content: []),
    "checkpoint: files elsewhere": manifest(elsewhere),
    "checkpoint: a pipe": pipe("checkpoint/server-*"),
    "checkpoint: a link": link("checkpoint", outside),
    "figures: a link": link("figures", outside),
    "git": repository,
}
"""Into the folder of a run."""

BUCKETS: dict[str, Plant | str] = {
    "key: upwards": "../../../../../../outside/rc",
    "key: a control character": "a\x9bb",
    "tracking.uri: a server": setting("tracking", "uri", value=lambda: os.environ["LISTENER"]),
    "tracking.uri: a file": setting("tracking", "uri", value=lambda: f"sqlite:///{outside()}/x.db"),
    "plugins: a file": plugin("../../../../outside-own.py"),
    "output: another bucket": setting("output", value="s3://flray-test/stolen"),
    "callbacks.0.folder: a home": callback("tensorboard", folder=lambda: str(outside())),
    "callbacks.0.mode: an account": callback("wandb", mode=lambda: "online"),
}
"""Into a bucket with a run: another key, or a setting, by its name."""


def table(path: Path, **columns: Any) -> None:
    values = {"a": [*range(8)] * 2, "y": ["n", "p"] * 8, "h": ["u"] * 8 + ["v"] * 8}
    pd.DataFrame(values | columns).to_csv(path, index=False)


TABLES: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "code": lambda path: table(path, h=[CLIENT] * 8 + ["v"] * 8),
    "escapes": lambda path: table(path, h=[ESCAPES] * 8 + ["v"] * 8),
}
"""Files that ``data.path`` names."""


KEPT: dict[str, Callable[[Path], None]] = {
    "a pipe": instead(os.mkfifo),
    "escapes": lambda path: void(path.write_text(path.read_text().replace("fedavg", ESCAPES))),
}
"""Files of results that ``report --keep`` wrote."""
IMAGES: dict[str, Callable[[Path], None]] = {
    "a device": instead(lambda path: path.symlink_to("/dev/zero")),
    "a huge image": lambda path: Image.new("1", (30_000, 30_000)).save(path),
    "escapes": lambda path: void(path.parent.rename(path.parent.with_name(ESCAPES))),
}
"""Files in a folder of images."""
