"""Nothing is run twice: what another sweep has finished is taken over, if it is the same and whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from flray import api, register_sampler
from flray import api as sweeps
from flray.cli.main import invoke
from flray.config.loader import load
from flray.federation.checkpoint import learnt_sha256
from flray.records import directory
from flray.records.events import read_events
from flray.records.trial_checkpoints import checkpoints
from flray.results.sweep import SweepResult
from flray.runs import identity
from flray.runs.progress import NullProgress
from flray.samplers.sampling import Sampling
from flray.tuning import reuse
from flray.tuning.trial_store import trial_folders

ARMS = {"method": {"fedavg": {}, "local": {"algorithm": "local"}}}


class Seen(NullProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.started: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def trial_started(self, number: str, label: str, rounds_done: int) -> None:
        self.started.append(label)


@pytest.fixture(scope="module")
def ray_runs_already() -> Iterator[None]:
    import ray

    ray.init(
        address="local", num_cpus=2, num_gpus=0, include_dashboard=False, logging_level="ERROR"
    )
    yield
    ray.shutdown()


@pytest.fixture
def armed(content: dict[str, Any]) -> dict[str, Any]:
    """Two methods at two seeds, two rounds each."""
    content["experiment"] |= {"rounds": 2, "checkpoint": {"min_seconds": 0}}
    return {**content, "space": {}, "arms": ARMS}


def digests(result: SweepResult) -> dict[tuple[str, int], str]:
    rows = result.results.to_dict("records")
    return {(row["arms.method"], row["seed"]): row["sha256"] for row in rows}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_runs_already")
def test_two_seeds_and_a_method_more_and_only_they_are_run(
    armed: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = api.tune(armed)
    armed["arms"] = {"method": {**ARMS["method"], "fedbn": {"algorithm": "fedbn"}}}
    armed["sweep"] = {"seeds": [0, 1, 2, 3]}
    file = tmp_path / "more.yaml"
    file.write_text(yaml.safe_dump(armed))

    assert invoke(["tune", str(file), "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "12 trials: 4 taken over, 8 to be run" in shown and "small/001/0004" in shown
    assert not (tmp_path / "runs" / "small" / "002").exists()

    seen = Seen()
    more = api.tune(file, progress=seen)
    assert more.folder.name == "002"
    assert sorted(seen.started) == sorted(
        f"{method} seed={seed}"
        for method in ("fedavg", "local", "fedbn")
        for seed in range(4)
        if method == "fedbn" or seed > 1
    )
    assert [line for line in seen.lines if "taken over" in line] == [
        "4 of 12 trials are taken over from small/001, which finished them (sweep.reuse=false runs "
        "everything)"
    ]
    whole = api.tune(file, ["sweep.reuse=false", f"output={tmp_path / 'whole'}"])
    assert digests(more) == digests(whole) and len(digests(whole)) == 12
    assert {**digests(more), **digests(first)} == digests(more)
    same = ["arms.method", "seed", "status", "rounds", "score", "global/common/accuracy"]
    assert more.results[same].equals(whole.results[same])
    texts = [
        (one.folder / "table.txt")
        .read_text()
        .replace("4 of 12 trials were taken over from small/001", "")
        for one in (more, whole)
    ]
    looked, tables = zip(*(text.split("small: ") for text in texts), strict=True)
    assert tables[0].split() == tables[1].split()
    assert "looked at before at 2" in looked[0] and "looked at before" not in looked[1]

    by_number = {folder.number: folder for folder in trial_folders(more.folder)}
    taken = [f for f in by_number.values() if f.identity.get("taken_over")]
    assert len(taken) == 4
    for folder in taken:
        (newest,) = checkpoints(str(more.folder / "tune"), folder.number)
        assert learnt_sha256(Path(newest.uri)) == folder.identity["sha256"]
        assert (folder.path / "partition.json").exists()
        assert (folder.path / "figures" / "curves.png").exists()

    again = Seen()  # of what was taken over, too
    third = api.tune(file, progress=again)
    assert again.started == [] and digests(third) == digests(whole)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_runs_already")
def test_what_is_not_the_same_or_not_whole_is_run(armed: dict[str, Any], tmp_path: Path) -> None:
    armed["arms"], armed["sweep"] = {}, {"seeds": [0]}
    first = api.tune(armed)
    (trial,) = trial_folders(first.folder)

    def taken(**changes: Any) -> list[str]:
        return [one.taken_over for one in sweeps.plan(armed, **changes)]

    assert taken() == ["small/001/0001"]
    assert taken(rounds=3) == [""] and taken(seed=0, local={"lr": 0.04}) == [""]
    assert taken(data={"name": "digits-sklearn", "samples": 150}) == [""]
    assert taken(checkpoint={"keep": 5}) == ["small/001/0001"]  # which decides no bit

    record = directory.read(trial.path)
    directory.update(trial.path, cpu={**record["cpu"], "kinds": {"torch": "other"}})
    assert taken() == [""]
    directory.update(trial.path, cpu=record["cpu"], status="stopped")
    assert taken() == [""]
    directory.update(trial.path, status="finished")

    journal = trial.path / directory.JOURNAL
    before = journal.read_text()
    journal.write_text(before.replace('"score":', '"score":1'))
    seen = Seen()
    second = api.tune(armed, progress=seen)
    assert len(seen.started) == 1 and digests_of(second) == digests_of(first)
    assert any("journal.jsonl is not what it left" in line for line in seen.lines)

    journal.write_text(before)
    shutil.rmtree(second.folder)
    newest, *_ = checkpoints(str(first.folder / "tune"), "0001")
    server = next(Path(newest.uri).glob("server-*.safetensors"))
    server.write_bytes(server.read_bytes()[:-1] + b"x")
    seen = Seen()
    api.tune(armed, progress=seen)
    assert len(seen.started) == 1 and any("is damaged (SHA-256" in line for line in seen.lines)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_runs_already")
def test_values_that_the_checkpoint_does_not_give_are_not_taken_over(armed: dict[str, Any]) -> None:
    """An edited journal whose digests were computed anew, as by somebody else in a shared folder."""
    first = api.tune(armed)
    edited, gone, *_ = trial_folders(first.folder)
    for trial in (edited, gone):
        journal = trial.path / directory.JOURNAL
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        for event in events:
            if event["type"] == "round":
                values = event["metrics"]
                accuracies = [name for name in values if "accuracy" in name or name == "score"]
                event["metrics"] = {**values, **dict.fromkeys(accuracies, 0.99)}
        journal.write_text("".join(json.dumps(event) + "\n" for event in events))
        directory.update(trial.path, **reuse.file_digests(trial.path))
    for old in checkpoints(str(first.folder / "tune"), gone.number):
        shutil.rmtree(old.uri)
    os.chown(gone.path / directory.JOURNAL, 65534, -1)  # another user's
    seen = Seen()
    second = api.tune(armed, progress=seen)
    assert len(seen.started) == 2 and digests_of(second) == digests_of(first)
    assert second.results["score"].max() < 0.98
    said = "\n".join(seen.lines)
    assert "is 0.99, and its checkpoint evaluated here gives" in said
    assert "not in files of your own" in said and "2 of 4 trials are taken over" in said


HELPER = "SCALE = 1.0\n"
METHOD = """
from flray import register_algorithm
from flray.algorithms.base import Algorithm
import lab.helper


@register_algorithm("scaled")
class Scaled(Algorithm):
    def loss(self, client, batch):
        from later import SHIFT
        return lab.helper.SCALE * super().loss(client, batch) + SHIFT
"""


@pytest.fixture
def plugin(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A sweep of a method of one's own, in a file that imports others."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").touch()
    (tmp_path / "lab" / "helper.py").write_text(HELPER)
    (tmp_path / "later.py").write_text("SHIFT = 0.0\n")
    (tmp_path / "mine.py").write_text(METHOD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    content["experiment"] |= {
        "algorithm": "scaled",
        "plugins": [str(tmp_path / "mine.py")],
        "rounds": 2,
        "checkpoint": {"min_seconds": 0},
    }
    content["space"], content["sweep"] = {}, {"seeds": [0]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    return content


def flray(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Run flray in a process of its own, which imports the files as they are now."""
    done = subprocess.run(
        [sys.executable, "-m", "flray", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.slow
@pytest.mark.usefixtures("plugin")
def test_a_changed_byte_in_any_imported_file_is_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*command: str) -> str:
        assert invoke(command) == 0
        return " ".join(capsys.readouterr().out.split())

    monkeypatch.chdir(tmp_path)
    run = ("run", "sweep.yaml", "sweep.seeds=[]", "name=single")
    assert flray(*run, cwd=tmp_path)[0] == 0
    for file in ("lab/__init__.py", "later.py", "mine.py", "lab/helper.py"):
        before = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes(before + b"\n")
        name = Path(file).name
        code, said = flray("resume", "single/001", "rounds=3", cwd=tmp_path)
        assert code == 2 and f"began with other code ({name} " in said and "--other-code" in said
        assert f"changed since this was run: {name}" in shown("report", "single")
        if name != "helper.py":
            (tmp_path / file).write_bytes(before)
    assert flray(*run, cwd=tmp_path)[0] == 0
    assert "code: helper.py" in shown("compare", "single/001", "single/002")
    assert flray("resume", "single/001", "rounds=3", "--other-code", cwd=tmp_path)[0] == 0
    assert "it began with other code than it ended with" in shown("report", "single/001")


@pytest.mark.slow
@pytest.mark.usefixtures("plugin")
def test_trials_of_other_code_are_run_again_and_it_is_said(tmp_path: Path) -> None:
    assert flray("tune", "sweep.yaml", cwd=tmp_path)[0] == 0
    helper = tmp_path / "lab" / "helper.py"
    helper.write_text("SCALE = -0.5\n")
    code, said = flray("tune", "sweep.yaml", cwd=tmp_path)
    assert code == 0 and "are in small/001, and were run by other code (helper.py " in said
    first, second = (
        directory.read(tmp_path / "runs/small" / number / "trials/0001")["sha256"]
        for number in ("001", "002")
    )
    assert first != second
    assert "changed since this was run: helper.py" in flray("report", "small/001", cwd=tmp_path)[1]
    directory.update(tmp_path / "runs/small/001/trials/0001", status="interrupted")
    directory.update(tmp_path / "runs/small/001", status="interrupted")
    code, said = flray("resume", "small/001", cwd=tmp_path)
    assert code == 2 and "began with other code (helper.py " in said
    helper.write_text(HELPER)
    assert flray("resume", "small/001", cwd=tmp_path)[0] == 0


def digests_of(result: SweepResult) -> list[str]:
    return list(result.results["sha256"])


@pytest.mark.slow
@pytest.mark.usefixtures("ray_runs_already")
def test_a_kill_while_taking_over_leaves_nothing_by_half(
    armed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    armed["arms"] = {}
    first = api.tune(armed)
    from flray.tuning.trial_store import TrialFolder

    class Killed(BaseException):
        pass

    with monkeypatch.context() as patch:

        def die(*_: object, **__: object) -> None:
            raise Killed

        patch.setattr(TrialFolder, "end", die)
        with pytest.raises(Killed):
            api.tune(armed)
    folder = first.folder.parent / "002"
    half = trial_folders(folder)[0]
    assert half.status == "running" and read_events(half.path)
    seen = Seen()
    resumed = api.resume_sweep(folder, progress=seen)
    assert seen.started == [] and digests_of(resumed) == digests_of(first)
    starts = [event for event in read_events(half.path) if event["type"] == "start"]
    assert len(starts) == 1 and starts[0]["uid"] == half.identity["uid"]


def test_the_code_s_digest_passes_over_comments() -> None:
    code = 'def f(x):\n    """Add."""\n    return x + 1\n'
    same = "# more\ndef f(x):\n    return (x  + 1)\n"
    assert identity._essence(code) == identity._essence(same)
    assert identity._essence(code) != identity._essence(code.replace("1", "2"))


def test_only_the_components_that_are_used_belong_to_an_identity(content: dict[str, Any]) -> None:
    def own(sampling: Sampling) -> Sequence[int]:
        return range(sampling.size)

    def code(sampler: str) -> str:
        content["experiment"]["participation"] = {"sampler": sampler}
        return identity.run_identity(load(content).experiment, "auto", "data")["code"]

    before = code("uniform")
    own.__module__ = "in.no.file"
    register_sampler("in-no-file")(own)
    assert code("uniform") == before
    assert code("in-no-file") not in (before, code("in-no-file"))
    own.__module__ = __name__
    assert code("in-no-file") == code("in-no-file") != before


def test_the_versions_of_flower_s_libraries_belong_to_what_uses_its_partitioners(
    content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = identity._version

    def versions(partition: dict[str, Any]) -> dict[str, str]:
        content["experiment"]["partition"] = partition
        return identity.code_of(load(content).experiment)["versions"]

    monkeypatch.setattr(identity, "_version", lambda n: "1" if "datasets" in n else read(n))
    flower = versions({"name": "flower", "partitioner": "IidPartitioner", "clients": 2})
    assert flower["flwr-datasets"] == flower["datasets"] == "1"
    assert "datasets" not in versions({"name": "domains"})


def test_settings_that_decide_nothing_are_no_part_of_an_identity(content: dict[str, Any]) -> None:
    def of(**changes: Any) -> str:
        return json.dumps(
            identity.run_identity(load(content, list(changes.items())).experiment, "auto", "data")
        )

    assert of() == of(output="elsewhere", name="other", faults={"attempts": 5})
    assert of() == of(resources={"executor": "ray", "actors": 3})
    assert of() != of(resources={"executor": "inline", "cpus_per_actor": 2})
    assert of() != of(resources={"executor": "inline", "bits": "portable"})
    assert of() != of(seed=1)
