"""A driver killed or stopped at any moment, or given more rounds, ends with the bits and history of an unbroken run."""

import copy
import inspect
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray
import yaml

import flray
from flray import api, registry
from flray.algorithms.base import Algorithm
from flray.config.loader import load
from flray.federation.federation import Federation
from flray.process import InterruptedRunError
from flray.records import Journal, directory
from flray.runs import resume_checks, runner
from flray.tracking.client import connect
from flray.tuning.space import resolve_sweep
from flray.tuning.trial_store import TrialFolder
from tests.clusters import Gates
from tests.helpers import (
    INLINE,
    Settings,
    StopAfter,
    inline,
    printed,
    small,
    steady,
    tracked,
    written,
)
from tests.messages import mistyped, refused
from tests.tuning.helpers import begun


def recorded(run: Path) -> list[int]:
    journal = run / directory.JOURNAL
    if not journal.exists():
        return []
    events = [json.loads(line) for line in journal.read_bytes().split(b"\n") if line.endswith(b"}")]
    return [event["round"] for event in events if event["type"] == "round"]


def driver(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # Tests that were started in the background ignore Ctrl-C, and so would what they start.
    how["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen([sys.executable, "-m", "flray", *arguments], cwd=cwd, **how)


def until(condition: Any, process: subprocess.Popen[str], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the run did not get that far in time"
        time.sleep(0.02)


def mlflow_points(uri: str, name: str, metric: str) -> list[tuple[int, float]]:
    (run,) = tracked(uri, name)
    assert run.info.status == "FINISHED"
    points = connect(uri).get_metric_history(run.info.run_id, metric)
    return sorted((point.step, point.value) for point in points)


@pytest.mark.slow
def test_a_run_on_ray_asked_to_end_and_killed_is_resumed_to_the_same_bits(
    tmp_cwd: Path, digits: Settings, store: str, ray_here: dict[str, float]
) -> None:
    """By Ctrl-C, then by SIGKILL. In this process: tests/test_stopping.py."""
    changes: dict[str, Any] = {"algorithm": "scaffold", "rounds": 5, "resources": {"actors": 1}}
    changes["participation"] = {"fraction": 0.75}
    changes["tracking"] = {"uri": store, "experiment": "asked to end"}
    gates = Gates(tmp_cwd, [2, 4], "scaffold")
    file = written({**digits, **changes, "algorithm": "held", "plugins": ["held.py"]})
    whole = runner.run(inline({**digits, **changes}, name="whole"))
    run = tmp_cwd / "runs" / "digits" / "001"
    address = ray.get_runtime_context().gcs_address

    asked = driver("run", file, "--address", address, cwd=tmp_cwd)
    until(lambda: gates.reached(2), asked)
    asked.send_signal(signal.SIGINT)
    gates.open(2)
    output, _ = asked.communicate(timeout=240)
    assert asked.returncode == 130, output
    assert "go on with: flray resume runs/digits/001" in output
    assert "Traceback" not in output and directory.read(run)["status"] == "interrupted"
    assert list((run / directory.CHECKPOINT).glob("round-*.json"))

    killed = driver("resume", "digits", "--address", address, cwd=tmp_cwd)
    until(lambda: gates.reached(4), killed)
    killed.kill()
    killed.communicate()
    assert recorded(run) == [1, 2, 3]
    gates.open(4)

    resumed, rounds = runner.resume(run), [*range(1, 6)]
    assert resumed.sha256 == whole.sha256 and list(resumed.history["round"]) == rounds
    measured = [*steady(whole.history)]
    assert resumed.history[measured].equals(whole.history[measured])
    losses = list(zip(rounds, whole.history["train/loss"], strict=True))
    assert mlflow_points(store, "asked to end", "train/loss") == losses


@pytest.mark.slow
def test_a_round_that_is_saved_is_recorded_whenever_ctrl_c_comes(
    tmp_cwd: Path, digits: Settings, ray_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Ray, where the server saves a round that this process may not know of."""
    record, pending = Journal.record_round, [2]

    def interrupted(self: Journal, round_: int, *arguments: Any, **named: Any) -> bool:
        if round_ in pending:
            pending.remove(round_)
            raise KeyboardInterrupt
        return record(self, round_, *arguments, **named)

    monkeypatch.setattr(Journal, "record_round", interrupted)
    changes: dict[str, Any] = {"rounds": 3, "resources": {"actors": 1}}
    with pytest.raises(InterruptedRunError):
        runner.run({**digits, **changes})
    run = tmp_cwd / "runs" / "digits" / "001"
    newest = max((run / directory.CHECKPOINT).glob("round-*.json"))
    assert newest.name == "round-000002.json" and recorded(run) == [1, 2]
    assert list(runner.resume(run).history["round"]) == [1, 2, 3]


WATCHED = """
import time
from pathlib import Path

from flray import register_algorithm, registry

@register_algorithm("watched")
class Watched(registry.algorithms.get("fcclplus")):
    def collaborate(self, client):
        mark = Path("killed here")
        if (client.round, client.stage_index, client.id) == (1, 2, 2) and not mark.exists():
            mark.touch()
            time.sleep(3600)  # the driver is killed before it is over
        return super().collaborate(client)
"""
"""A method that stands still once, in the middle of a stage of round 2: two clients have run it, two have not."""


@pytest.mark.slow
def test_driver_killed_in_the_middle_of_a_round(tmp_cwd: Path, digits: Settings) -> None:
    """In the middle of FCCL+'s three public batches."""
    options, mark = {"public_size": 40, "public_batch_size": 16}, Path("killed here")
    Path("watched.py").write_text(WATCHED)
    whole = runner.run(inline(digits, name="whole", algorithm={"name": "fcclplus", **options}))
    watched = {"plugins": ["watched.py"], "algorithm": {"name": "watched", **options}}
    process = driver("run", written({**digits, **INLINE, **watched}), cwd=tmp_cwd)
    until(mark.exists, process)
    process.kill()
    process.communicate(timeout=60)
    run = tmp_cwd / "runs" / "digits" / "001"
    assert recorded(run) == [1] and runner.resume(run).sha256 == whole.sha256


def inline_run(digits: Settings, rounds: int, **changes: Any) -> runner.Result:
    return runner.run(inline(digits, rounds=rounds, **changes))


def test_a_finished_run_is_read_a_running_one_not(tmp_cwd: Path, digits: Settings) -> None:
    first, second = inline_run(digits, 2), inline_run(digits, 2)
    assert [str(r.folder) for r in (first, second)] == ["runs/digits/001", "runs/digits/002"]
    again = runner.resume(first.folder)
    assert again.sha256 == first.sha256 == second.sha256 and again.history.equals(first.history)
    directory.update(first.folder, status="running")
    with Journal(first.folder / directory.JOURNAL):
        refused(runner.resume, first.folder)
    mistyped("resume", "digit")
    assert [p.name for p in tmp_cwd.iterdir()] == ["runs"]


@pytest.mark.parametrize("damage", ["gone", "changed", "manifest"])
def test_a_damaged_checkpoint_is_named(tmp_cwd: Path, digits: Settings, damage: str) -> None:
    result = inline_run(digits, 3)
    directory.update(result.folder, status="interrupted")
    kept = result.folder / directory.CHECKPOINT

    def spoil(number: int) -> Path:
        names = {"manifest": f"round-{number:06d}.json"}
        victim = kept / names.get(damage, f"server-{number:06d}.safetensors")
        data = victim.read_bytes()
        victim.unlink()
        if damage == "changed":
            victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        elif damage == "manifest":
            victim.write_bytes(data[:-100])
        return victim

    victim = spoil(3)
    said = " ".join(printed("resume", str(result.folder)).split())
    assert victim.name in said and ("missing" if damage == "gone" else "damaged") in said
    assert "resuming from the checkpoint before it, round-000002.json" in said
    resumed = runner.resume(result.folder)
    assert resumed.sha256 == result.sha256 and list(resumed.history["round"]) == [1, 2, 3]
    directory.update(result.folder, status="interrupted")
    for number in (2, 3):
        spoil(number)
    mistyped("resume", str(result.folder))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = yaml.safe_load((folder / directory.CONFIG).read_text())
    change(config["experiment"])
    (folder / directory.CONFIG).write_text(yaml.safe_dump(config))


@pytest.mark.parametrize("status", ["interrupted", "finished"])
def test_changed_settings_are_refused(tmp_cwd: Path, digits: Settings, status: str) -> None:
    result = inline_run(digits, 1)
    directory.update(result.folder, status=status)
    rewrite(result.folder, lambda experiment: experiment.update(rounds=3, seed=5))
    refused(runner.resume, result.folder)
    rewrite(result.folder, lambda experiment: experiment.update(rounds=1, seed=0))
    rewrite(result.folder, lambda experiment: experiment["resources"].update(cpus_per_actor=2))
    refused(runner.resume, result.folder)
    allowed = {"cpus_per_actor": 1, "actors": 2}
    rewrite(result.folder, lambda experiment: experiment["resources"].update(allowed))
    rewrite(result.folder, lambda experiment: experiment["checkpoint"].update(keep=3))
    assert runner.resume(result.folder).sha256 == result.sha256


def test_a_trial_goes_on_with_its_sweep_alone(tmp_cwd: Path) -> None:
    """By itself it would end without a score, and a tuning would pass it over."""
    config, (point,) = begun({"experiment": small(), "sweep": {"seeds": [0]}}, tmp_cwd)
    trial = TrialFolder(tmp_cwd, point.number)
    trial.create(point, config)
    refused(flray.resume, trial.path)
    assert trial.status == "waiting"


def test_settings_taken_out_or_put_in_are_noticed(tmp_cwd: Path, digits: Settings) -> None:
    result = inline_run(digits, 1, algorithm="local")
    rewrite(result.folder, lambda experiment: experiment.update(models={"mnist": "mlp"}))
    directory.update(result.folder, status="interrupted")
    refused(runner.resume, result.folder)


METHODS = {"one": {"algorithm": "fedavg"}, "two": {"algorithm": "fedprox"}}
SWEEP = {"space": {"local.lr": {"grid": [0.01, 0.02]}}, "sweep": {"seeds": [0]}}
CHANGES: list[Callable[[dict[str, Any]], Any]] = [
    lambda c: c["space"]["local.lr"].update(grid=[0.3, 0.02]),
    lambda c: c["space"].update({"local.epochs": {"grid": [1, 2]}}),
    lambda c: c["arms"]["method"].pop("two"),
    lambda c: c["experiment"].update(algorithm="fedbn"),
    lambda c: c["sweep"].update(seeds=[0, 1]),
    lambda c: c["sweep"].update(metric="global/common/loss", mode="min"),
]


@pytest.mark.parametrize("status", ["interrupted", "finished"])
def test_an_edited_sweep_is_not_resumed(tmp_cwd: Path, digits: Settings, status: str) -> None:
    config = resolve_sweep(load({"experiment": digits, **SWEEP, "arms": {"method": METHODS}}))
    folder = directory.create(config.experiment.output, config.experiment.name)
    directory.save_config(folder, config)
    settings = resume_checks.settings_text(config, "sweep")
    begun = {**directory.new_identity(), "status": status, "settings": settings}
    directory.write(folder, "sweep", begun)
    file = folder / directory.CONFIG
    content = yaml.safe_load(file.read_text())
    content["sweep"].update(concurrency=1, max_failures=0)  # these may be
    file.write_text(yaml.safe_dump(content))
    resume_checks.check_unchanged(folder, resolve_sweep(load(file)))
    for change in CHANGES:
        changed = copy.deepcopy(content)
        change(changed)
        file.write_text(yaml.safe_dump(changed))
        refused(api.resume_sweep, folder)


def test_a_cluster_s_address_is_not_ignored(tmp_cwd: Path, digits: Settings) -> None:
    refused(runner.run, {"experiment": digits}, ["resources.executor=inline"], address="auto")
    assert list(tmp_cwd.iterdir()) == []


def test_another_folder(tmp_cwd: Path, digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    result = inline_run(digits, 2, tracking={"uri": "sqlite:///mlflow.db"})
    folder = result.folder.resolve()
    directory.update(folder, status="interrupted")
    (tmp_cwd / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_cwd / "elsewhere")
    assert runner.resume(folder).sha256 == result.sha256
    assert list((tmp_cwd / "elsewhere").iterdir()) == []
    points = mlflow_points(f"sqlite:///{tmp_cwd}/mlflow.db", "flray", "train/loss")
    assert [step for step, _ in points] == [1, 2]


def run(rounds: int, **more: Any) -> runner.Result:
    partition = {"name": "dirichlet", "clients": 3, "alpha": 0.5}
    some = {"participation": {"fraction": 0.7}, "local": {"lr_decay": 0.9}, "subset": 200, **more}
    return flray.run({"experiment": small(rounds=rounds, partition=partition, **some)})


@pytest.mark.parametrize("algorithm", ["scaffold", "fedproc"])
def test_extended_to_the_bits_of_a_run_of_as_many_rounds(algorithm: str, tmp_cwd: Path) -> None:
    whole, begun = run(5, algorithm=algorithm), run(2, algorithm=algorithm)
    assert begun.sha256 != whole.sha256
    extended = runner.resume(begun.folder, rounds=5)
    assert extended.sha256 == whole.sha256
    kept = [*steady(whole.history)]
    pd.testing.assert_frame_equal(extended.history[kept], whole.history[kept], check_exact=True)
    assert extended.experiment.rounds == 5 and runner.resume(begun.folder).sha256 == whole.sha256
    assert directory.read(begun.folder)["status"] == "finished"


@pytest.mark.slow
def test_an_extension_may_be_interrupted(tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, begun, other = run(3), run(2), run(2)
    step = Federation.step

    def stopped(self: Federation) -> Any:
        if self.rounds_done == 3:
            raise KeyboardInterrupt
        return step(self)

    with monkeypatch.context() as patched:
        patched.setattr(Federation, "step", stopped)
        for one in (begun, other):
            refused(flray.resume, one.folder, rounds=4)
    longer = flray.resume(begun.folder)
    assert isinstance(longer, runner.Result) and longer.sha256 == run(4).sha256
    refused(flray.resume, other.folder, rounds=2)
    result = runner.resume(other.folder, rounds=3)
    assert result.sha256 == whole.sha256 and len(result.history) == 3


def test_a_kill_within_an_extension(tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are written, and what describes the run is not."""
    begun = run(2)

    def killed(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(directory, "update", killed)
        with pytest.raises(MemoryError):
            runner.resume(begun.folder, rounds=3)
    refused(runner.resume, begun.folder)
    assert runner.resume(begun.folder, rounds=3).sha256 == run(3).sha256


def test_what_another_process_writes_is_not_extended(tmp_cwd: Path) -> None:
    """Else that process would end with fewer rounds than the settings have."""
    folder = run(2).folder
    names = (directory.CONFIG, "run.json", directory.JOURNAL)
    before = [(folder / name).read_bytes() for name in names]
    with Journal(folder / directory.JOURNAL):
        refused(flray.resume, folder, rounds=4)
    assert [(folder / name).read_bytes() for name in names] == before


def test_final_diagnostics_are_of_the_last_round(tmp_cwd: Path) -> None:
    """Those of fewer rounds come back with the copy in a bucket, if the machine that went on is lost."""
    folder = run(1, tracking={"uri": None, "features": True}).folder
    file = folder / directory.FINAL_DIAGNOSTICS
    before = file.read_bytes()
    with pytest.raises(InterruptedRunError):
        runner.resume(folder, rounds=3, progress=StopAfter(2))
    file.write_bytes(before)
    runner.resume(folder)
    assert file.read_bytes() != before


def test_the_last_round_counts_as_evaluated_if_it_was_run(tmp_cwd: Path) -> None:
    every = {"evaluation": {"every": 2}}
    stopped = run(3, stop={"metric": "train/loss", "target": 100}, **every)  # by the first round
    assert runner.resume(stopped.folder, rounds=4).sha256 == stopped.sha256
    as_many = runner.resume(stopped.folder, rounds=1)  # as it has done: there is nothing to do
    assert (as_many.sha256, as_many.experiment.rounds) == (stopped.sha256, 1)
    refused(runner.run, {"experiment": small(rounds=3, **every)}, progress=StopAfter(3))
    refused(runner.resume, stopped.folder.parent / "002", rounds=4)


def test_refused_with_the_reason(tmp_cwd: Path) -> None:
    begun = run(3, evaluation={"every": 2})
    refused(flray.resume, begun.folder, rounds=4)
    for rounds in (1, 10**23):
        refused(flray.resume, begun.folder, rounds=rounds)
    assert runner.resume(begun.folder, rounds=3).sha256 == begun.sha256
    method = {"name": "fccl", "variant": "released", "public_size": 16, "public_batch_size": 8}
    photos = {"name": "photos", "size": 8, "samples": 16}
    scheduled = run(1, algorithm=method, public=photos, normalisation="none")
    refused(flray.resume, scheduled.folder, rounds=2)
    assert directory.read(scheduled.folder)["status"] == "finished"
    mistyped("resume", str(begun.folder), "local.lr=1")
    assert resume_checks.parse_rounds(["rounds=7"]) == 7
    for one in ("many", "1.5", "true", "null", "[2]"):
        refused(resume_checks.parse_rounds, [f"rounds={one}"])
    refused(resume_checks.parse_rounds, ["rounds=9", "rounds=8"])


def test_what_reads_the_number_of_rounds_says_so() -> None:
    """A method whose file reads ``config.rounds`` has to name the option in `needs_rounds`."""
    for name in registry.algorithms.names():
        method = registry.algorithms.get(name)
        own = [base for base in method.__mro__ if base.__module__.startswith("flray.algorithms.")]
        reads = any("config.rounds" in inspect.getsource(base) for base in own)
        assert reads == (method.needs_rounds is not Algorithm.needs_rounds), name
    for folder in ("functional", "tasks", "federation/worker", "algorithms/common"):
        for path in (Path(flray.__file__).parent / folder).glob("*.py"):
            assert "config.rounds" not in path.read_text(), path


@pytest.mark.slow
def test_a_killed_run_ends_as_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By files, journal and MLflow; on Ray and in sweeps it is for scripts/chaos."""
    for folder in ("chaos_tests", "checks"):
        monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / folder))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")  # Place sets one, and the tests before had none
    from catalogue import catalogue  # type: ignore[import-not-found]
    from killing import Case  # type: ignore[import-not-found]
    from place import Place  # type: ignore[import-not-found]

    (federation,) = (one for one in catalogue() if one.name == "scaffold inline")
    place = Place(tmp_path / "chaos", cold=False)
    try:
        outcome = Case(place, federation, 1829, 0, kills=2).run()
    finally:
        place.close()
        for name in ("killing", "catalogue", "facts", "place", "processes", "digests"):
            sys.modules.pop(name, None)
        sys.modules.pop("digest_cases", None)
    assert outcome.differences == []
    assert [kill.operation for kill in outcome.kills if kill.hit] == [56, 84], outcome.kills
