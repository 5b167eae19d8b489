"""Nothing is run twice: what another sweep has finished is taken over, if it is the same and whole."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from flray import api, register_sampler
from flray.config.loader import load
from flray.federation.checkpoint import learnt_sha256
from flray.records import directory, read_events
from flray.results.sweep import SweepResult
from flray.runs import identity
from flray.samplers import Sampling
from flray.tuning import reuse
from flray.tuning.trial_store import TrialFolder, trial_folders
from tests.helpers import Settings, ended, printed, tracked
from tests.tuning.helpers import Seen, begin, begun, digests, leave

THREE = {"fedavg": {}, "local": {"algorithm": "local"}, "fedbn": {"algorithm": "fedbn"}}


@pytest.fixture
def armed(content: Settings) -> Settings:
    """A method at one seed, two rounds."""
    content["experiment"] |= {"rounds": 2, "checkpoint": {"min_seconds": 0}}
    content["sweep"]["seeds"] = [0]
    return {**content, "space": {}, "arms": {"method": {"fedavg": {}}}}


@pytest.fixture
def first(
    armed: Settings, ray_here: Any, no_pictures: None, tmp_path: Path, tmp_path_factory: Any
) -> SweepResult:
    """A finished sweep of `THREE` at a seed, which runs once: a copy below the test's ``runs``."""
    made = tmp_path_factory.getbasetemp() / "reuse"
    if not (made / "small" / "001" / "results.csv").exists():
        api.tune({**armed, "arms": {"method": THREE}}, [f"output={made}"])
    shutil.copytree(made, tmp_path / "runs")
    return SweepResult(tmp_path / "runs" / "small" / "001")


def _by_trial(result: SweepResult) -> dict[tuple[str, int], str]:
    rows = result.results.to_dict("records")
    return {(row["arms.method"], row["seed"]): row["sha256"] for row in rows}


@pytest.mark.slow
def test_only_what_is_new_is_run(armed: Settings, first: SweepResult, tmp_path: Path) -> None:
    unlisted = first.folder / "trials" / "0001" / "portrait.npz"
    unlisted.write_bytes(b"in no record")
    armed["arms"]["method"] |= {"prox": {"algorithm": "fedprox"}}
    armed["sweep"]["seeds"] = [0, 1]
    file = tmp_path / "more.yaml"
    file.write_text(yaml.safe_dump(armed))

    shown = printed("tune", str(file), "--plan")
    assert "4 trials: 1 taken over, 3 to be run" in shown and "small/001/0001" in shown
    assert not (tmp_path / "runs" / "small" / "002").exists()

    seen = Seen()
    more = api.tune(file, progress=seen)
    assert more.folder.name == "002"
    assert sorted(seen.started) == ["fedavg seed=1", "prox seed=0", "prox seed=1"]
    said = "1 of 4 trials are taken over from small/001, which finished them (sweep.reuse=false runs everything)"
    assert seen.find("taken over") == [said]
    whole = api.tune(file, ["sweep.reuse=false", f"output={tmp_path / 'whole'}"])
    assert _by_trial(more) == _by_trial(whole) and len(_by_trial(whole)) == 4
    old, new = _by_trial(first), _by_trial(more)
    assert old.keys() & new.keys() == {one := ("fedavg", 0)} and old[one] == new[one]
    same = ["arms.method", "seed", "status", "rounds", "score", "global/common/accuracy"]
    assert more.results[same].equals(whole.results[same])
    texts = [(one.folder / "table.txt").read_text() for one in (more, whole)]
    tables = [[line for line in text.splitlines() if line.startswith("│")] for text in texts]
    assert "1 of 4 trials were taken over from small/001" in texts[0] and tables[0] == tables[1]

    (folder,) = (f for f in trial_folders(more.folder) if f.identity.get("taken_over"))
    (newest,) = directory.checkpoints(str(more.folder / "tune"), folder.number)
    assert learnt_sha256(Path(newest.uri)) == folder.identity["sha256"]
    assert (folder.path / "partition.json").exists() and not (folder.path / unlisted.name).exists()

    again = Seen()  # also of those that were taken over
    third = api.tune(file, progress=again)
    assert again.started == [] and _by_trial(third) == _by_trial(whole)


@pytest.mark.slow
def test_what_is_not_the_same_and_whole_is_run(armed: Settings, first: SweepResult) -> None:
    def taken(**changes: Any) -> list[str]:
        return [one.taken_over for one in api.plan(armed, **changes)]

    assert taken() == ["small/001/0001"]
    assert taken(rounds=3) == [""] and taken(seed=0, local={"lr": 0.04}) == [""]
    assert taken(data={"name": "digits-sklearn", "samples": 150}) == [""]
    assert taken(checkpoint={"keep": 5}) == ["small/001/0001"]  # which decides no bit
    trial, second, _ = trial_folders(first.folder)
    record = directory.read(trial.path)
    directory.update(trial.path, cpu={**record["cpu"], "kinds": {"torch": "other"}})
    assert taken() == [""]
    directory.update(trial.path, cpu=record["cpu"], status="stopped")
    assert taken() == [""]
    directory.update(trial.path, status="finished")
    journal = trial.path / directory.JOURNAL
    journal.write_text(journal.read_text().replace('"score":', '"score":1'))
    newest, *_ = directory.checkpoints(str(first.folder / "tune"), second.number)
    server = next(Path(newest.uri).glob("server-*.safetensors"))
    server.write_bytes(server.read_bytes()[:-1] + b"x")
    armed["arms"]["method"] = THREE
    seen = Seen()
    again = api.tune(armed, progress=seen)
    assert len(seen.started) == 2 and digests(again) == digests(first)
    said = "\n".join(seen.lines)
    assert "journal.jsonl is not what it left" in said and "is damaged (SHA-256" in said


@pytest.mark.slow
def test_values_of_no_checkpoint_are_run_anew(armed: Settings, first: SweepResult) -> None:
    """An edited journal whose digests were computed anew, as by somebody else in a shared folder."""
    armed["arms"]["method"] = THREE
    edited, gone, _ = trial_folders(first.folder)
    for trial in (edited, gone):
        journal = trial.path / directory.JOURNAL
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        for values in (event["metrics"] for event in events if event["type"] == "round"):
            values |= {name: 0.99 for name in values if "accuracy" in name or name == "score"}
        journal.write_text("".join(json.dumps(event) + "\n" for event in events))
        directory.update(trial.path, **reuse.file_digests(trial.path))
    for old in directory.checkpoints(str(first.folder / "tune"), gone.number):
        shutil.rmtree(old.uri)
    os.chown(gone.path / directory.JOURNAL, 65534, -1)  # another user's
    seen = Seen()
    second = api.tune(armed, progress=seen)
    assert len(seen.started) == 2 and digests(second) == digests(first)
    assert second.results["score"].max() < 0.98
    said = "\n".join(seen.lines)
    assert "is 0.99, and its checkpoint evaluated here gives" in said
    assert "not in files of your own" in said and "1 of 3 trials are taken over" in said


@pytest.mark.slow
def test_a_kill_while_taking_over_leaves_nothing_by_half(
    armed: Settings, first: SweepResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed["arms"]["method"] = THREE

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(TrialFolder, "end", die)
        with pytest.raises(Killed):
            api.tune(armed)
    folder = first.folder.parent / "002"
    half = trial_folders(folder)[0]
    assert half.status == "running" and read_events(half.path)
    seen = Seen()
    resumed = api.resume_sweep(folder, progress=seen)
    assert seen.started == [] and digests(resumed) == digests(first)
    starts = [event for event in read_events(half.path) if event["type"] == "start"]
    assert len(starts) == 1 and starts[0]["uid"] == half.identity["uid"]


def test_a_copy_that_fails_leaves_the_trial_as_it_was(
    content: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next resume would take it for half a copy, and throw away what it has computed since."""
    config, (point, *_) = begun(content, tmp_path / "new")
    begin(config, tmp_path / "old")
    source = leave(tmp_path / "old", point, config, [{"score": 0.5}]).path
    trial = TrialFolder(tmp_path / "new", point.number)
    trial.create(point, config)
    ended = {"sha256": "ab", "rounds": 1, "metric": "score"}
    record: Any = {"status": "finished", "identity": {}, **ended, **reuse.file_digests(source)}
    found = reuse.FinishedTrial(str(source), "old/001/0000", record)
    monkeypatch.setattr(reuse.FinishedTrials, "same", lambda *_: iter([found]))
    said: list[str] = []
    others = reuse.FinishedTrials(str(tmp_path), said.append, empty=False)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(TrialFolder, "end", full)
        assert not others.take(trial, point, reuse.Sought({}, [], {}), trial.sweep, config)
    assert "old/001/0000 is not taken over" in said[0]
    assert trial.status == "waiting" and not trial.identity["taking_over"] and not trial.rounds()
    assert others.take(trial, point, reuse.Sought({}, [], {}), trial.sweep, config) == found
    assert (trial.status, trial.rounds()) == ("finished", {1: {"score": 0.5}})


def test_trials_of_other_code_are_said_once(content: Settings, tmp_path: Path) -> None:
    (old := tmp_path / "runs" / "small" / "001").parent.mkdir(parents=True)
    config, made = begun(content, old)
    identity = {"settings": "s", "data": "d", "code": "then"}
    for point in made:
        trial = leave(old, point, config, [{"score": 0.5}], sha256="ab", rounds=1, metric="score")
        began = {"identity": identity, "code": {"flray": {"flray": "then"}}}
        directory.update(trial.path, **began, **reuse.file_digests(trial.path))
    others = reuse.FinishedTrials(str(tmp_path / "runs"), (said := list[str]()).append, empty=False)
    now = reuse.Sought({**identity, "code": "now"}, [], {"flray": {"flray": "now"}})
    assert [list(others.same(now)) for _ in range(2)] == [[], []]
    assert said == [
        "trials of the same settings and data are in small/001, and were run by other code "
        "(flray then, here now); they are run again"
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_trials_taken_over_in_a_later_batch_are_tracked(armed: Settings, store: str) -> None:
    armed["arms"]["method"] = {"fedavg": {}, "local": {"algorithm": "local"}}
    armed["sweep"]["seeds"] = [0, 1]
    api.tune(armed)
    armed["sweep"] |= {"until": {"at_least": 2, "at_most": 2}}
    armed["experiment"]["tracking"] = {"uri": store, "experiment": "later"}
    api.tune(armed, progress=(seen := Seen()))
    assert seen.started == []
    runs = tracked(store, "later")
    kinds = [run.data.tags.get("flray.kind", "trial") for run in runs]
    assert sorted(kinds) == ["setting"] * 2 + ["sweep"] + ["trial"] * 4
    assert {run.info.status for run in runs} == {"FINISHED"}


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

COMMANDS = """
import json, sys
from flray.cli.main import invoke
from flray.drawing import canvas
from flray.tuning import sweep

canvas.save_figure = sweep.add_report = lambda *_: None  # which take longer than the rest
sys.exit(max(map(invoke, json.loads(sys.argv[1]))))
"""


@pytest.mark.slow
def test_changed_imports(content: Settings, tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh process after each change, which imports the files as they are then."""
    helper, later, plugin = Path("lab/helper.py"), Path("later.py"), tmp_cwd / "mine.py"
    helper.parent.mkdir()
    helper.with_name("__init__.py").touch()
    helper.write_text("SCALE = 1.0\n")
    later.write_text("SHIFT = 0.0\n")
    plugin.write_text(METHOD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_cwd), *sys.path]))
    own = {"algorithm": "scaled", "plugins": [str(plugin)]}
    content["experiment"] |= {**own, "rounds": 2, "checkpoint": {"min_seconds": 0}}
    content["space"], content["sweep"] = {}, {"seeds": [0]}
    Path("sweep.yaml").write_text(yaml.safe_dump(content))

    def flray(*commands: Sequence[str]) -> tuple[int, str]:
        words = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        assert "Traceback" not in done.stderr
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def shown(*command: str) -> str:
        return " ".join(printed(*command).split())

    run, tune = ("run", "sweep.yaml", "sweep.seeds=[]", "name=single"), ("tune", "sweep.yaml")
    resume = ("resume", "single/001", "rounds=3")
    assert flray(run, tune)[0] == 0
    later.write_text("SHIFT = 0.0\n\n")
    helper.write_text("SCALE = -0.5\n")
    code, said = flray(resume)
    assert code == 2 and "began with other code (" in said and "--other-code" in said
    assert "helper.py " in said and "later.py " in said
    later.write_text("SHIFT = 0.0\n")
    assert "changed since this was run: helper.py" in shown("report", "single")
    compare = ("compare", "single/001", "single/002")
    code, said = flray(tune, run, compare, (*resume, "--other-code"))
    assert code == 0 and "are in small/001, and were run by other code (helper.py " in said
    assert "code: helper.py" in said
    trials = [Path("runs/small", number, "trials/0001") for number in ("001", "002")]
    assert len({directory.read(trial)["sha256"] for trial in trials}) == 2
    assert "it began with other code than it ended with" in shown("report", "single/001")


def test_the_file_of_the_command_is_none_of_a_plug_in_s(tmp_path: Path) -> None:
    """Python's multiprocessing, which torch imports, gives it a second name among the modules."""
    (tmp_path / "own.py").write_text("import torch\n")
    code = "from flray.config.start import load_plugins, user_code\n"
    code += "files, _ = user_code(load_plugins(['own.py']))\n"
    code += "print(*(file.rpartition('/')[2] for file in files))\n"
    (tmp_path / "flray-command").write_text(code)
    assert ended("flray-command", cwd=tmp_path).stdout.split() == ["own.py"]


def test_each_deciding_module_counts_in_the_code_s_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, copy = identity._package_digest.__wrapped__, tmp_path / "flray"
    shutil.copytree(identity.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = digest()
    monkeypatch.setattr(identity, "PACKAGE", copy)
    assert digest() == before
    for name, counts in (("cli/main.py", False), ("rng.py", True), ("data/splits.py", True)):
        with (copy / name).open("a") as file:
            file.write("# changed\n")
        assert (digest() != before) == counts
        before = digest()


def test_only_the_components_that_are_used_belong_to_an_identity(content: Settings) -> None:
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


def test_versions_of_flower_count(content: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    read = identity.version

    def versions(partition: dict[str, Any]) -> dict[str, str]:
        content["experiment"]["partition"] = partition
        return identity.code_of(load(content).experiment)["versions"]

    monkeypatch.setattr(identity, "version", lambda n: "1" if "datasets" in n else read(n))
    flower = versions({"name": "flower", "partitioner": "IidPartitioner", "clients": 2})
    assert flower["flwr-datasets"] == flower["datasets"] == "1"
    assert "datasets" not in versions({"name": "domains"})


def test_settings_that_decide_nothing_are_no_part_of_an_identity(content: Settings) -> None:
    def of(**changes: Any) -> dict[str, Any]:
        experiment = load(content, list(changes.items())).experiment
        return dict(identity.run_identity(experiment, "auto", "data"))

    assert of() == of(output="elsewhere", name="other", faults={"attempts": 5})
    assert of() == of(resources={"executor": "ray", "actors": 3})
    assert of() != of(resources={"executor": "inline", "cpus_per_actor": 2})
    assert of() != of(resources={"executor": "inline", "bits": "portable"})
    assert of() != of(seed=1)
