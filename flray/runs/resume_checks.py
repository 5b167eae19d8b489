"""Checks before a resume: unchanged settings but the number of rounds, the user's plug-ins, the same bits here."""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from flray import bits, registry
from flray.config.components import RETIRED
from flray.config.experiment import (
    MOST_ROUNDS,
    RESUMABLE_SETTINGS,
    RESUMABLE_SWEEP_SETTINGS,
    Config,
    may_change,
)
from flray.config.loader import absolute_path, load, parse_override
from flray.config.start import file_of, user_code
from flray.config.yaml_files import read_yaml
from flray.devices import GpuIdentity, difference
from flray.errors import ConfigError, FlrayError
from flray.federation import FederationSpec
from flray.files import FILE_BYTES, check_settings, foreign, read, storage
from flray.files.tracking_address import redact
from flray.metrics import is_test
from flray.records import directory, lock_journal, read_events, read_partition, rounds_of
from flray.runs.code import Code, code_differences, describe_difference

ROUNDS = "rounds"


def load_config(folder: Path, plugins: Sequence[str] = ()) -> Config:
    """Return the configuration of a run or sweep, with the user's plug-ins loaded.

    Nothing in the folder is executed: a file in it is not a plug-in, and if the folder was
    downloaded from object storage, which others may write to, or is another user's, even the names
    of plug-ins have to come from the user.

    Parameters
    ----------
    folder : Path
        The folder of the run or sweep.
    plugins : sequence of str
        The user's own files, instead of those that the configuration names; relative to the
        current folder.

    Raises
    ------
    FlrayError
        If the configuration cannot be used, or a plug-in is missing.
    """
    path = folder / directory.CONFIG
    content = read_yaml(path)
    experiment = content.get("experiment")
    if isinstance(experiment, dict) and (plugins or experiment.get("plugins")):
        if not plugins and foreign(folder):
            raise FlrayError(
                f"{path}: experiment.plugins names {experiment['plugins']}, and the run was fetched "
                "from object storage or is another user's, from where nothing is executed; give your "
                "own copy of the files: flray resume ... --plugin FILE.py"
            )
        named = list(plugins) if plugins else experiment["plugins"]
        for one in named if isinstance(named, list) else [named]:
            if Path(str(one)).resolve().is_relative_to(folder.resolve()):
                raise FlrayError(
                    f"{path}: experiment.plugins names {str(one)!r}, a file in the run's own folder, from where "
                    "nothing is executed; copy it elsewhere, look at it, and give it with --plugin"
                )
        content["experiment"] = {**experiment, "plugins": named}
    return load(content)


def begin(
    folder: Path, which: directory.FolderKind, config: Config, code: Code, **more: object
) -> None:
    """Write the configuration of a run or sweep, then its description, which makes the folder one."""
    directory.save_config(folder, config)
    identity = directory.new_identity(config.experiment.resources.bits)
    settings = settings_text(config, which)
    directory.write(folder, which, {**identity, "code": code, "settings": settings, **more})


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes from a run or sweep while the block records how it continues.

    Raises
    ------
    FlrayError
        If another process is writing it.
    """
    with contextlib.ExitStack() as stack:
        if (lock := lock_journal(folder / directory.JOURNAL)) is not None:
            stack.callback(lock.release)
        yield


def check_own(folder: Path, config: Config) -> None:
    """Refuse to resume with another user's settings for output or tracking; see `check_settings`."""
    output = config.experiment.output
    from_there = storage.is_remote(output) and folder.resolve().is_relative_to(
        storage.local_cache_of(output).resolve()
    )
    check_settings(
        folder, config.experiment.model_dump(mode="json"), output if from_there else None
    )


def settings_text(config: Config, which: directory.FolderKind) -> dict[str, str]:
    """Return the settings that determine a run's or sweep's results, as flat text.

    Parameters
    ----------
    config : Config
        The resolved configuration.
    which : {"run", "sweep"}
        For a run, only the experiment.

    Returns
    -------
    dict of str to str
        The experiment's settings by their path, without ``experiment.``; for a sweep also
        ``sweep.KEY`` and, as JSON, ``space.PATH`` and ``arms.AXIS.ARM``.
    """
    content = config.model_dump(mode="json")
    found = dict(directory.flatten_settings(content["experiment"]))
    if which == "run":
        return found
    space = {f"space.{path}": domain for path, domain in content["space"].items()}
    arms = {
        f"arms.{axis}.{name}": arm
        for axis, one in content["arms"].items()
        for name, arm in one.items()
    }
    found |= {path: redact(json.dumps(value)) for path, value in {**space, **arms}.items()}
    return found | dict(directory.flatten_settings(content["sweep"], "sweep."))


def check_unchanged(folder: Path, config: Config) -> None:
    """Refuse to resume with other settings than a run or sweep started with, or without its partition.

    Parameters
    ----------
    folder : Path
        The folder of the run or sweep.
    config : Config
        The current configuration in the folder.

    Raises
    ------
    FlrayError
        Naming the differences; those in `RESUMABLE_SETTINGS` are allowed. Also if a recorded
        partition is damaged, which the figures need after all rounds.
    """
    for recorded in (
        folder / directory.PARTITION,
        *sorted(folder.glob(f"trials/*/{directory.PARTITION}")),
    ):
        if recorded.exists():
            read_partition(recorded)
    which = directory.folder_kind(folder) or "run"
    now, began = settings_text(config, which), directory.read(folder).get("settings", {})
    former = {
        (f"{part}.{option}", str(value))
        for part in ("data", "public")
        for option, value in RETIRED.get(began.get(f"{part}.name", ""), {}).items()
    }
    began = {key: text for key, text in began.items() if (key, text) not in former}
    # A setting that only now has a value was written into the file, or is new in this flray and has
    # its default.
    written = dict(
        directory.flatten_settings(read_yaml(folder / directory.CONFIG).get("experiment") or {})
    )
    added = {
        key
        for key in now.keys() - began.keys()
        if key in written or key.startswith(("space.", "arms."))
    }
    differing = {key for key in began if now.get(key) != began[key]} | added
    changed = sorted(key for key in differing if not may_change(key))
    if changed:
        shown = ", ".join(
            f"{absolute_path(key)} is {now.get(key, 'not there')} and was {began.get(key, 'not there')}"
            for key in changed[:3]
        )
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        besides = f", {', '.join(RESUMABLE_SWEEP_SETTINGS)}" if which == "sweep" else ""
        anew = f"start a new {which} with these settings"
        if changed == [ROUNDS] and which == "run":
            anew = f"resume with it: flray resume {folder} rounds={now[ROUNDS]}"
        if which == "sweep":
            anew += ": flray tune takes over every finished trial that is the same in both"
        raise FlrayError(
            f"{folder / directory.CONFIG}: {shown}{more}; put it back, or {anew} (free to change are: "
            f"{', '.join(RESUMABLE_SETTINGS)}{besides}; of resources not bits and cpus_per_actor)"
        )


def check_code(folder: Path, code: Code, allowed: bool) -> dict[str, str]:
    """Refuse to resume a run or sweep under other code than it began with.

    Parameters
    ----------
    folder : Path
        The folder of the run or sweep.
    code : dict
        The code here, see `flray.runs.identity.code_of`.
    allowed : bool
        Whether the user allows it; recorded in its description.

    Returns
    -------
    dict
        Labels that say so; empty if the code is the same, or an older flray did not record it.

    Raises
    ------
    FlrayError
        Naming what differs.
    """
    noted = directory.read(folder)
    differ = code_differences(noted.get("code") or code, code)
    if not differ:
        return {}
    line = f"{folder} began with other code ({describe_difference(differ)})"
    if not allowed:
        raise FlrayError(
            f"{line}: its digest would be no other run's; put it back, or go on under this code "
            f"with flray resume {folder} --other-code"
        )
    directory.update(folder, other_code=[*noted.get("other_code", ()), code])
    return {"code.other": ", ".join(differ)}


def check_cpu(folder: Path, allowed: bool) -> dict[str, str]:
    """Refuse to resume a run or sweep on a CPU that computes other bits than the one it started on.

    Parameters
    ----------
    folder : Path
        The folder of the run or sweep.
    allowed : bool
        Whether the user allows it; recorded in ``run.json``.

    Returns
    -------
    dict
        Labels that say so; empty if the bits are the same.

    Raises
    ------
    FlrayError
        Naming the libraries that differ.
    """
    noted = directory.read(folder)
    differs = bits.check_same(folder, noted)
    if not differs:
        return {}
    if not allowed:
        raise FlrayError(
            f"{differs}: its digest would be no other run's; go on there, or here with flray resume {folder} "
            "--other-hardware (resources.bits=portable keeps the next run free of this)"
        )
    here = bits.identity(noted["cpu"].get("bits", "native"))
    directory.update(folder, other_cpus=[*noted.get("other_cpus", ()), here])
    return {"cpu.other": f"{here['model']} ({here['capability']})"}


def check_gpus(folder: Path, here: Sequence[GpuIdentity], allowed: bool) -> str:
    """Refuse to resume a run on other GPUs than it started on; record them if none are recorded yet.

    Parameters
    ----------
    folder : Path
        The folder of the run.
    here : sequence of GpuIdentity
        The kinds of GPU that it would resume on; empty for CPUs.
    allowed : bool
        Whether the user allows others; recorded in ``run.json``.

    Returns
    -------
    str
        A line on the difference; empty if there is none.

    Raises
    ------
    FlrayError
        Naming both.
    """
    noted = directory.read(folder)
    began = noted.get("gpus")
    if began is None:  # it begins now, or an older flray began it
        directory.update(folder, gpus=list(here))
        return ""
    differs = difference(began, here)
    if not differs:
        return ""
    if not allowed:
        raise FlrayError(
            f"{folder} {differs}, with other last bits: its digest would be no other run's; go on "
            f"there, or here with flray resume {folder} --other-hardware"
        )
    directory.update(folder, other_gpus=[*noted.get("other_gpus", ()), list(here)])
    return f"{folder} {differs}, with other last bits"


def parse_rounds(settings: Iterable[str]) -> int | None:
    """Return the number of rounds that a resume asks for; None if it asks for none.

    Raises
    ------
    ConfigError
        If another setting is named, or its value is not a number of rounds.
    """
    rounds = None
    for text in settings:
        path, value = parse_override(text)
        if path.removeprefix("experiment.") != ROUNDS:
            raise ConfigError(
                path,
                repr(text),
                "a resume keeps all settings but one: rounds=N gives a run more of them; for others "
                "start a new run (flray run) or sweep (flray tune, which takes over what is finished)",
            )
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(ROUNDS, repr(value), "a whole number, for example rounds=200")
        if rounds is not None:
            raise ConfigError(ROUNDS, f"{rounds} and {value}", "give it once")
        rounds = value
    return rounds


def as_begun(folder: Path, config: Config) -> Config:
    """Return a run's configuration with the rounds that its description has.

    A kill while it was extended leaves others in its file.
    """
    began = directory.read(folder).get("settings", {}).get(ROUNDS, "")
    return _with_rounds(config, int(began)) if began.isdecimal() else config


def _with_rounds(config: Config, rounds: int) -> Config:
    experiment = config.experiment.model_copy(update={"rounds": rounds})
    return config.model_copy(update={"experiment": experiment})


def extended(folder: Path, config: Config, rounds: int) -> Config:
    """Return a run's configuration with another number of rounds, which nothing in it depends on.

    Parameters
    ----------
    folder : Path
        The run's folder; unchanged.
    config : Config
        Its configuration.
    rounds : int
        At least as many as are done.

    Raises
    ------
    ConfigError
        If more are done, or the evaluations differ from those of a run that had as many rounds from
        the start.
    """
    before = config.experiment
    recorded = rounds_of(read_events(folder))
    done = max(recorded, default=0)
    every = before.evaluation.every
    why = ""
    if not max(done, 1) <= rounds <= MOST_ROUNDS:
        why = f"{folder} has done {done}; from {max(done, 1)} to {MOST_ROUNDS:,}"
    elif rounds == done < before.rounds and not any(map(is_test, recorded[done])):
        why = (
            f"round {done} of {folder} was not evaluated (evaluation.every={every}), as the last one of "
            f"a run is; more than {done}"
        )
    elif rounds > before.rounds == done and before.rounds % every:
        why = (
            f"round {before.rounds} of {folder} was evaluated as the last one, which a run of "
            f"{rounds} rounds with evaluation.every={every} would not have done; start a new run"
        )
    if why:
        raise ConfigError(ROUNDS, str(rounds), why)
    return _with_rounds(config, rounds)


def check_extendable(spec: FederationSpec, before: int) -> None:
    """Refuse another number of rounds where the method reads it.

    Raises
    ------
    ConfigError
        Naming what reads it.
    """
    config, algorithm = spec.config, spec.algorithm
    reason = algorithm.needs_rounds()
    if not reason and config.local.schedule == "cosine":
        reason = "local.schedule: cosine"
    name = config.algorithm.name
    says_so = "needs_rounds" in vars(type(algorithm))
    if not reason and registry.algorithms.is_own(name) and not says_so:
        file = file_of(sys.modules.get(type(algorithm).__module__))
        found = (
            f"file, or one that it imports, mentions .{ROUNDS}" if file else "code is in no file"
        )
        code = user_code([file])[0] if file else ()
        if not file or any(f".{ROUNDS}".encode() in read(Path(one), FILE_BYTES) for one in code):
            reason = (
                f"your method {name}, whose {found} (if it does not depend on it, "
                "let its needs_rounds return an empty text)"
            )
    if reason:
        raise ConfigError(
            ROUNDS,
            str(config.rounds),
            f"the first {before} rounds were trained with {reason}, which depends on the number of rounds: a run that "
            "had as many from the start would have other bits; start a new run",
        )
