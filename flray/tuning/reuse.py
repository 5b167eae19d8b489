"""Reuse of finished trials: identical trials of other sweeps in the same output folder or bucket are copied.

Trials are identical if their `flray.runs.identity`, the bits of their CPU and their GPUs agree. A
trial is copied only if its digests hold: those of its files, of its history, and of its model,
computed again from its last checkpoint. The model is also evaluated again and must give the values
of the last round. A trial without a checkpoint is copied only if this user owns its files.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flray import bits
from flray.config.experiment import Config, Experiment
from flray.errors import FlrayError
from flray.federation.building import build_spec
from flray.federation.checkpoint import learnt_sha256
from flray.federation.federation import inline_federation
from flray.files import FILE_BYTES, read, storage
from flray.metrics import VIEWS
from flray.records import directory, read_events, read_partition, rounds_of
from flray.runs.code import Code, code_differences, describe_difference
from flray.runs.identity import Identity
from flray.runs.session import data_tags, record_held
from flray.tuning.space import TrialSpec
from flray.tuning.trial_store import TrialFolder

FILES = (directory.PARTITION, directory.INITIAL_DIAGNOSTICS, directory.FINAL_DIAGNOSTICS)
"""What a trial leaves besides its history and its checkpoints."""
_NEEDED = ("identity", "files", "history", "sha256", "rounds", "metric")
"""What the record of a finished trial has if it can be known and verified."""
_READERS = 16


@dataclass(frozen=True)
class Sought:
    """The properties that identify a trial.

    Attributes
    ----------
    identity : dict
        See `flray.runs.identity`.
    gpus : list of dict or None
        The kinds of GPU that it would run on here; None if they are not known.
    code : dict
        See `flray.runs.identity.code_of`.
    """

    identity: Identity
    gpus: Sequence[Mapping[str, str]] | None
    code: Code


@dataclass(frozen=True)
class FinishedTrial:
    """A finished trial of another sweep.

    Attributes
    ----------
    place : str
        Its folder, or address in object storage.
    name : str
        For people: sweep, number and trial, as ``demo/001/0003``.
    record : mapping
        The content of its ``run.json``, with all that is `_NEEDED`.
    """

    place: str
    name: str
    record: Mapping[str, Any]


class FinishedTrials:
    """The finished trials of all sweeps in an output folder or bucket.

    Parameters
    ----------
    output : str
        ``experiment.output``.
    notify : callable
        Called with a line for each trial that cannot be taken over although it is the same, and once
        for each other code that such trials were run by.
    empty : bool
        Find nothing.
    """

    def __init__(self, output: str, notify: Callable[[str], None], empty: bool) -> None:
        self._output, self._notify = output.rstrip("/"), notify
        self._found: dict[str, list[FinishedTrial]] | None = {} if empty else None
        self._said: set[str] = set()

    def take(
        self, folder: TrialFolder, point: TrialSpec, sought: Sought, sweep: Path, config: Config
    ) -> FinishedTrial | None:
        """Copy an identical finished trial's results; return it, or None if no intact one exists.

        Parameters
        ----------
        folder : TrialFolder
            The new trial's folder, still without rounds.
        point : TrialSpec
            The new trial.
        sought : Sought
            The properties that identify the new trial.
        sweep : Path
            Its sweep's folder.
        config : Config
            Its sweep.
        """
        for found in self.same(sought):
            try:
                with storage.local_folder(found.place) as source:
                    verify_files(source, found.record)
                    if not self._take_checkpoint(found, folder.number, sweep, source, point):
                        remote = storage.is_remote(found.place)
                        files = [] if remote else list(Path(found.place).iterdir())
                        # What cannot be evaluated again counts if this user wrote it.
                        if not files or any(one.lstat().st_uid != os.getuid() for one in files):
                            raise FlrayError(
                                "its last checkpoint is not there or was computed on a GPU, so its values cannot be "
                                "checked here, and they are not in files of your own"
                            )
                    _copy(source, found, folder, point, sweep, config)
                    return found
            except (FlrayError, OSError) as error:
                undo_half(folder)
                self._notify(f"{found.name} is not taken over: {error}")
        return None

    def same(self, sought: Sought) -> Iterator[FinishedTrial]:
        """Yield the trials that are the same."""
        if self._found is None:
            self._found = {}
            for one in self._read():
                self._found.setdefault(_key(one.record["identity"]), []).append(one)
        found = self._found.get(_key(sought.identity), [])
        code = sought.identity["code"]
        alike = [one for one in found if one.record["identity"].get("code") == code]
        if found and not alike:
            differ = code_differences(found[-1].record.get("code") or {}, sought.code)
            name = found[-1].name.rpartition("/")[0]
            line = (
                f"trials of the same settings and data are in {name}, and were run by other code "
                f"({describe_difference(differ)}); they are run again"
            )
            if line not in self._said:
                self._said.add(line)
                self._notify(line)
        for one in alike:
            same_gpus = sought.gpus is not None and one.record.get("gpus", []) == sought.gpus
            if same_gpus and not bits.check_same(one.name, one.record):
                yield one

    def _read(self) -> Iterator[FinishedTrial]:
        """Yield the finished trials, those of the oldest sweeps first."""
        if storage.is_remote(self._output):
            names = [
                name.removesuffix("/run.json")
                for name in storage.files(self._output)
                if Path(name).match(f"*/*/{directory.TRIALS}/*/run.json")
            ]
            with ThreadPoolExecutor(_READERS) as pool:
                texts = list(
                    pool.map(lambda name: storage.read(f"{self._output}/{name}/run.json"), names)
                )
        else:
            base = Path(self._output)
            paths = sorted(base.glob(f"*/*/{directory.TRIALS}/*/run.json"))
            names = [path.parent.relative_to(base).as_posix() for path in paths]
            texts = [_read(path) for path in paths]
        for name, text in sorted(zip(names, texts, strict=True)):
            try:
                record: Mapping[str, Any] = directory.RUN.validate_json(text or b"null")
            except ValidationError:
                continue
            if record["status"] == "finished" and None not in map(record.get, _NEEDED):
                shown = name.replace(f"/{directory.TRIALS}/", "/")
                yield FinishedTrial(f"{self._output}/{name}", shown, record)

    def _take_checkpoint(
        self, found: FinishedTrial, number: str, sweep: Path, source: Path, point: TrialSpec
    ) -> bool:
        """Take over the last checkpoint, if it is there and is what was learnt; return whether it gave the values.

        On a CPU it is evaluated again: the digests beside the values are as easily written as these.
        """
        base, _, name = found.place.rpartition(f"/{directory.TRIALS}/")
        newest = next(iter(directory.checkpoints(f"{base}/{directory.TUNE}", name)), None)
        if newest is None or newest.round != found.record["rounds"]:
            return False
        with storage.local_folder(newest.uri) as folder:
            digest = learnt_sha256(folder)
            if digest != found.record["sha256"]:
                raise FlrayError(
                    f"its checkpoint holds {digest[:12]}, and it had learnt {found.record['sha256'][:12]}"
                )
            evaluated = not found.record.get("gpus")
            if evaluated:
                _check_values(folder, source, found.record["metric"], point.experiment)
            place = f"{directory.TUNE}/{directory.TAKEN_OVER}/{number}/checkpoint_000000"
            address = f"{self._output}/{sweep.parent.name}/{sweep.name}/{place}"
            for path in directory.in_order(folder):
                if storage.is_remote(address):
                    storage.write(f"{address}/{path.name}", read(path))
                else:
                    _link(path, sweep / place / path.name)
        return evaluated


def _check_values(folder: Path, source: Path, metric: str, experiment: Experiment) -> None:
    """Refuse a trial whose last round did not measure what its checkpoint gives."""
    federation = inline_federation(build_spec(experiment), lambda line: None)
    try:
        federation.restore(folder)
        here = federation.evaluate()
    finally:
        federation.close()
    rounds = rounds_of(read_events(source))
    last = rounds[max(rounds)]
    if experiment.evaluation.protocol == "last" and metric in here:
        here["score"] = here[metric]
    evaluated = [name for name in last if name in here or name.rpartition("/")[0] in VIEWS]
    for name in evaluated:
        one, other = last[name], here.get(name, math.nan)
        if not math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6) and not math.isnan(one):
            raise FlrayError(
                f"{name} of its last round is {one:.6g}, and its checkpoint evaluated here gives {other:.6g}"
            )


def _read(path: Path) -> bytes | None:
    """Return a file's content, None if it is none that can be read."""
    try:
        return read(path, FILE_BYTES)
    except (FlrayError, OSError):
        return None


def _key(identity: Mapping[str, str]) -> str:
    return json.dumps([identity.get(name) for name in ("settings", "data")])


def file_digests(folder: Path) -> dict[str, Any]:
    """Return the SHA-256 of a trial's ``files`` and of its ``history``, as its ``run.json`` records them."""
    return {
        "files": {
            name: hashlib.sha256(read(folder / name)).hexdigest()
            for name in FILES
            if (folder / name).is_file()
        },
        "history": hashlib.sha256(
            json.dumps(sorted(rounds_of(read_events(folder)).items()), sort_keys=True).encode()
        ).hexdigest(),
    }


def verify_files(folder: Path, record: Mapping[str, Any]) -> None:
    """Refuse a trial whose files are not those that it left.

    Raises
    ------
    FlrayError
        Naming the first that is not.
    """
    found = file_digests(folder)
    left = {**record["files"], directory.JOURNAL: record["history"]}
    here = {**found["files"], directory.JOURNAL: found["history"]}
    for name in left:
        if left[name] != here.get(name):
            raise FlrayError(f"{folder / name} is not what it left (SHA-256)")


def _copy(
    source: Path,
    found: FinishedTrial,
    folder: TrialFolder,
    point: TrialSpec,
    sweep: Path,
    config: Config,
) -> None:
    """Copy files and history into a new trial's folder, whose record is written last."""
    directory.update(folder.path, taking_over=found.name)
    for name in FILES:
        if name in found.record["files"]:  # those alone were verified
            shutil.copyfile(source / name, folder.path / name)
    session = folder.begin(point, directory.read(sweep), config)
    try:
        record_held(session.journal, folder.path)
        events = read_events(source)
        for event in {e["round"]: e for e in events if e["type"] == "round"}.values():
            session.journal.append(event)
        partition = folder.path / directory.PARTITION
        tags = data_tags(read_partition(partition)) if partition.is_file() else {}
        session.journal.tags({**tags, "taken_over": found.name})
        kept = ("sha256", "rounds", "metric", "files", "history", "gpus")
        values = {name: value for name, value in found.record.items() if name in kept}
        folder.end(session, "finished", **values, taking_over=None, taken_over=found.name)
    finally:
        session.journal.close()


def undo_half(folder: TrialFolder) -> None:
    """Take back what a killed process had taken over by half, so that the trial is as if just created."""
    if folder.identity.get("taking_over"):
        (folder.path / directory.JOURNAL).unlink(missing_ok=True)
        shutil.rmtree(
            folder.sweep / directory.TUNE / directory.TAKEN_OVER / folder.number, ignore_errors=True
        )
        directory.update(folder.path, status="waiting", taking_over=None)


def _link(source: Path, target: Path) -> None:
    """Link a file to a second name, or copy it if that fails; files of checkpoints never change."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
