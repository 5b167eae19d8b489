"""What the border gives out and what it refuses: objects, and bad inputs to commands on finished runs, by class.

The classes are journals, folders to remove, files that are none, names and places that cannot be, escapes, and
settings that mean nothing. FLRAY_HOSTILE_ALL (scripts/hostile) asks every row, the tests some of each.
"""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

from flray import files
from flray.cli import display
from flray.cli.main import invoke
from flray.records import directory
from tests.border import planted
from tests.border.test_planted import RUN, away, wrong
from tests.helpers import told
from tests.hostile.asking import asked
from tests.messages import mistyped, refused


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "..", "a/../b", "a\\b", "C:a", "a\nb", "\x9b", "\ud800"]
)
def test_names_that_may_lead_elsewhere(name: str) -> None:
    refused(files.check_name, name, "s3://b")


def test_names_below_a_folder_and_numbers_which_are_sorted() -> None:
    for name in ("a", "a/b.c", "..a/b..", "Tromsø/日本", "a b", "-x", "ab:c"):
        assert files.check_name(name, "s3://b") == name
    assert files.numbered(["10", "9", "²", "٣", "1" * 19, "1.old-1", ""]) == ["9", "10"]


def test_files_of_other_kinds_and_sizes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2**37)
    (tmp_path / "small").write_bytes(b"abc")
    for name in ("pipe", "link", "huge"):
        refused(files.read, tmp_path / name)
    refused(files.read, tmp_path / "small", 2)
    assert files.read(tmp_path / "small") == b"abc"


def test_another_user_s_run_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    mine = tmp_path.stat().st_uid
    for user, expected in ((mine, False), (mine + 1, True), (0, False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert files.foreign(tmp_path) is expected
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    refused(files.own_tracking, tmp_path, "http://h:1")
    assert files.own_tracking(tmp_path, "sqlite:///mlflow.db") == "sqlite:///mlflow.db"
    assert files.own_tracking(tmp_path, None) is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:word@h:1")
    assert files.own_tracking(tmp_path, "http://me:***@h:1") == "http://me:***@h:1"
    monkeypatch.setattr(os, "geteuid", lambda: mine)
    (trial := tmp_path / "trials" / "0000").mkdir(parents=True)
    assert not files.foreign(trial)
    (tmp_path / files.FETCHED_MARK).touch()
    assert files.foreign(trial)


def test_git_s_word_on_a_folder(tmp_cwd: Path) -> None:
    """As git itself says, in a folder of a repository and in a work tree of its own."""

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        how: dict[str, Any] = {"check": True, "timeout": 60, "capture_output": True, "text": True}
        return str(subprocess.run(["git", *who, *arguments], **how).stdout)

    def source() -> tuple[str | None, ...]:
        directory.source.cache_clear()
        found = directory.source()
        return tuple(found.get(name) for name in ("commit", "branch"))

    assert source() == (None, None)
    git("init", "-q", "-b", "trunk", "one")
    os.chdir("one")
    assert source() == (None, None)
    Path("sub").mkdir()
    Path("sub/a.txt").write_text("a")
    git("add", ".")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "HEAD").strip()
    assert source() == (commit, "trunk")
    os.chdir("sub")
    assert source() == (commit, "trunk")
    git("worktree", "add", "-q", "-b", "other", "../../two")
    os.chdir("../../two")
    assert source() == (commit, "other")
    directory.source.cache_clear()


def test_the_console_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    escapes = "\x1b[2J\x9b\u202e[b]x[/b]"
    table = Table("a", title=escapes)
    table.add_row(escapes)
    display.console.print(table)
    display.console.print(f"{escapes}\nsecond line")
    display.print_json({"a": [escapes]})
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x9b" not in shown and "\u202e" not in shown
    assert shown.count(r"\x1b[2J\x9b\u202e[b]x[/b]") == 3 and "\nsecond line\n" in shown
    assert r'"\u001b[2J\u009b\u202e[b]x[/b]"' in shown


def test_a_file_that_cannot_be_is_one_line(tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flray.cli.runs.show_runs", lambda *_: Path("x" * 300).read_bytes())
    (line,) = told(1, "ls").splitlines()
    assert line.startswith("flray: a file: OSError: [Errno 36]")


EVERY = bool(os.environ.get("FLRAY_HOSTILE_ALL"))
SOME = 6  # rows of a class that are asked in every run of the tests, the same ones
LONG = "n" * 300
BIG = "99999999999999999999999"


def with_round(line: tuple[str, ...], data: bytes) -> bytes:
    return data + '{{"type":"round","round":{},"time":{},"metrics":{}}}\n'.format(*line).encode()


JOURNALS: dict[str, Callable[[bytes], bytes]] = {
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "other ends of lines": lambda data: data.replace(b"\n", b"\r"),
    "lists": lambda data: data + b"[1]\n[2]\n",
    "Latin-1": lambda data: data + b'{"type":"tags","tags":{"a":"\xf8"}}\n',
    "text": lambda data: b"hello\n" * 100,
    "deep": lambda data: data + b'{"type":"tags","tags":' + b"[" * 100_000 + b"\n",
    "data without a digest": lambda data: data + b'{"type":"data","name":1}\n',
    "an end of no kind": lambda data: data + b'{"type":"end","time":1,"status":"x"}\n',
    "a uid that is a question": lambda data: data.replace(b'"uid":"', b'"uid":"\' OR ', 1),
}
ROUNDS = [("-1", "1", "{}"), (BIG, "1", "{}"), ("true", "1", "{}"), ('"7"', "1", "{}")]
ROUNDS += [("7", "-5", "{}"), ("7", BIG, "{}"), ("7", "1", '{"a":[1]}'), ("7", "1", '{"a":"many"}')]
WORDS = "round {}, time {}, metrics {}"
JOURNALS |= {WORDS.format(*line): partial(with_round, line) for line in ROUNDS}
OVER_JOURNALS = (["compare", "m/001", "ok/001"], ["report", "m"], ["sync", "m"], ["resume", "m"])
NO_RUNS = ["", ".", "..", "/", "~", "*", "runs", "m/001/checkpoint", "m/999", "m/001\n", "-1"]
NO_RUNS += ["\x1b[2J", "x.yaml", "project", "project/sub", "runs/away", "runs/up", "runs/loop"]
NO_RUNS += ["../outside", LONG * 20]
KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "itself": lambda path: path.symlink_to(path.name),
    "endless": lambda path: planted.void((path.touch(), os.truncate(path, 2**40))),
}
RUN_X = ["run", "x.yaml"]
NETWORK = "model={name: torchvision, network: resnet18, weights: w.safetensors}"
BOARD = "callbacks=[{name: tensorboard, folder: t}]"
READ = {
    "w.safetensors": [[*RUN_X, "start=w.safetensors"], [*RUN_X, NETWORK]],
    "t.csv": [[*RUN_X, "data={name: table, path: t.csv, label: y}"], ["report", "t.csv"]],
    "t.parquet": [[*RUN_X, "data={name: table, path: t.parquet, label: y}"]],
    "t.zip": [[*RUN_X, "data={name: folder, path: t.zip, size: 8}"]],
    "t.npz": [[*RUN_X, "data={name: cifar10-jpeg, path: t.npz}"]],
    "t.py": [[*words, "m", "--plugin", "t.py"] for words in (["resume"], ["export"])],
    "t.yaml": [[*words.split(), "t.yaml"] for words in ("run", "tune --plan", "data show")],
    "x.results.csv": [["tune", "x.yaml", "--detect", "1"]],
    "t": [
        *(["export", "ok", "--to", "t"], ["report", "ok", "--to", "t"], ["resume", "t"]),
        *([*RUN_X, "output=t"], [*RUN_X, BOARD]),
    ],
}
READ["t.yaml"].append(["tune", "t.yaml", "--detect", "1"])
PLACES = [
    *([*words, LONG] for words in (["export", "ok", "--to"], ["report", "ok", "--to"])),
    *(["export", "ok", "--client", one] for one in ("nobody", "", LONG)),
    *(["report", "ok", "--keep", one] for one in (f"{LONG}.csv", "/proc/x.csv", "x.yaml", ".")),
    *(["list", kind, "nope"] for kind in ("metrics", "callbacks", "samplers")),
    *(["data", "show", "digits-sklearn", "--plot", one] for one in (f"{LONG}.png", "/proc/x.png")),
    *([command, one] for command in ("resume", "report", "export", "sync") for one in ("", ".")),
    *(["export", "ok", "--to", "/proc/x"], ["report", "ok", "--to", "/proc/x"]),
    *(["resume", "m", "--address", "127.0.0.1:9"], ["resume", "ok", "--output", "x.yaml"]),
    *(["compare", "ok", "nope"], ["compare", "ok/001"], ["ls", "--output", LONG]),
]
FIELDS = {
    "run.json": [
        *(("status",), ("created",), ("best",), ("failure",), ("sha256",), ("taken_over",)),
        *(("versions", "flray"), ("cpu", "model"), ("settings", "name"), ("source", "user")),
    ],
    "config.yaml": [
        *(("experiment", part) for part in ("name", "output", "seed", "rounds")),
        *(("experiment", part, "name") for part in ("algorithm", "data", "model")),
        *(("experiment", "evaluation", "protocol"), ("experiment", "tracking", "experiment")),
    ],
    "partition.json": [("dataset",), ("classes",), ("origins",)],
}
SHOWN = (["ls"], ["compare", "m/001", "ok/001"], ["sync", "m"], ["tune", "x.yaml", "--detect", "1"])
NO_DATA = ["stand-in", "stand-in, of: nope", "folder, path: nope", "folder, path: x.yaml"]
NO_DATA += [
    "table, path: x.csv, label: ''",
    "huggingface, path: x.yaml",
    "mnist-m, domains: [nope]",
]
SETTINGS = [
    *("participation.unseen=[nobody]", "participation.sampler=nope", "callbacks=[nope]"),
    "partition={name: quantity, clients: 1000000000}",
    "partition={name: flower, partitioner: IidPartitioner, options: {num_partitions: 0}}",
    *(f"model={{name: torchvision, network: {one}}}" for one in ("nope", "get_model")),
    *(f"output={one}" for one in ("x.yaml", "ftp://h/x")),
    *(f"data={{name: {one}}}" for one in NO_DATA),
    *(f"name={one}" for one in ("..", "a/b", "-x", LONG, "''")),
    *("normalisation={mean: [1e308], std: [1]}", "normalisation={mean: [0.5], std: [1e-300]}"),
]
CLASSES: dict[str, list[list[str]]] = {
    "places": PLACES,
    "settings": [["run", "x.yaml", one] for one in SETTINGS],
    "no runs": [[command, one] for command in ("report", "resume") for one in NO_RUNS],
}


def some(rows: list[list[str]]) -> list[list[str]]:
    return rows if EVERY else random.Random(0).sample(rows, SOME)


@pytest.mark.parametrize("kind", CLASSES)
def test_one_line_and_nothing_left(kind: str, place: Path) -> None:
    Path("project/sub").mkdir(parents=True)
    Path("project/run.json").write_text('{"name": "web"}')
    Path("runs/away").symlink_to("../../outside")
    Path("runs/up").symlink_to("..")
    Path("runs/loop").symlink_to("loop")
    before = away(), RUN.is_dir()
    found = [f"{words}: {said}" for words in some(CLASSES[kind]) if (said := asked(words, (1, 2)))]
    assert found == [] and before == (away(), RUN.is_dir()) and Path("project/run.json").exists()


def test_a_damaged_journal_is_named_and_stays(place: Path) -> None:
    journal = RUN / "journal.jsonl"
    whole = journal.read_bytes()
    rows = [[name, *words] for name in JOURNALS for words in OVER_JOURNALS]
    for name, *words in some(rows):
        journal.write_bytes(damaged := JOURNALS[name](whole))
        assert asked(words) == "", (name, words)
        assert journal.read_bytes() == damaged, (name, words)


def test_files_that_are_none(place: Path) -> None:
    rows = [[kind, path, *words] for kind in KINDS for path in READ for words in READ[path]]
    for made, named, *typed in some(rows):
        KINDS[made](Path(named))
        assert asked(typed, (1, 2)) == "", (made, typed)
        Path(named).unlink()


def test_nothing_that_is_shown_steers_the_terminal(place: Path) -> None:
    rows = [[file, *keys] for file in FIELDS for keys in FIELDS[file]]
    for changed, *setting in some(rows):
        content = (RUN / changed).read_bytes()
        planted.edit(changed, *setting, value=planted.ESCAPES)(RUN)
        assert wrong(SHOWN) == [], (changed, setting)
        (RUN / changed).write_bytes(content)


def test_what_is_said_of_folders_that_cannot_serve(place: Path) -> None:
    run, sweep = Path("runs/ok/001"), Path("runs/s/001")
    shutil.copytree(run, sweep)
    shutil.copytree(run, sweep / "trials/0001")
    (sweep / "run.json").rename(sweep / "sweep.json")
    typed = "compare s ok", "export s", "export s/001/trials/0001", "report ok --reach 0"
    for line in (*typed, "report m --keep kept.csv"):
        mistyped(*line.split())
    record = json.loads((run / "run.json").read_text())
    del record["sha256"]
    (run / "run.json").write_text(json.dumps(record))
    mistyped("resume", "ok")
    planted.edit("config.yaml", "experiment", "algorithm", value={})(run)
    mistyped("run", "x.yaml", "start=ok/001")
    planted.edit("config.yaml", "experiment", "algorithm", value={"name": "local"})(run)
    mistyped("run", "x.yaml", "start=ok/001")
    planted.setting("tracking", "uri", value=None)(run)
    mistyped("sync", "ok")
    mistyped("run", "x.yaml", "resources.bits=portable", "local.compile=true")
    planted.plugin("own.py")(RUN)
    mistyped("resume", "m")
    mistyped("resume", "m", "--plugin", "runs/m/001/own.py")
    planted.setting("plugins", value=[])(RUN)
    shutil.rmtree(RUN / "checkpoint")
    mistyped("export", "m")
    planted.lines(lambda data: data.partition(b"\n")[0] + b"\n")(RUN)
    mistyped("report", "m")
    planted.link("figures", lambda: "..")(RUN)
    mistyped("report", "m")


def test_what_is_said_of_data_that_changed_and_of_a_kept_file(place: Path) -> None:
    planted.table(Path("x.csv"))
    data = "data={name: table, path: x.csv, label: y, by: h}"
    assert invoke(["run", "x.yaml", "name=t", "model=linear", "rounds=1", data]) == 0
    planted.table(Path("x.csv"), a=[*range(8, 0, -1)] * 2)
    mistyped("resume", "t", "rounds=2")
    assert invoke(["report", "ok", "--keep", "kept.csv"]) == 0
    kept = Path("kept.csv")
    sha = directory.read(Path("runs/ok/001"))["sha256"]
    kept.write_text(kept.read_text().replace(sha, "0" * 63))
    mistyped("report", "kept.csv")
    mistyped("report", "kept.csv", "--reach", "80")
    mistyped("verify", "kept.csv")
    kept.write_bytes(b"\xff")
    mistyped("verify", "kept.csv")
