"""Give a run another number of rounds than it began with, to the bits of a run that had as many from the start."""

import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

from flray import registry
from flray.config.experiment import MOST_ROUNDS, Config
from flray.config.loader import parse_override
from flray.errors import ConfigError
from flray.federation.diagnostic_files import FINAL_DIAGNOSTICS
from flray.federation.spec import FederationSpec
from flray.records import directory
from flray.records.events import read_events
from flray.runs import resume_checks

ROUNDS = "rounds"


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
    events = read_events(folder / directory.JOURNAL)
    done = max((event["round"] for event in events if event["type"] == "round"), default=0)
    every = before.evaluation.every
    if not max(done, 1) <= rounds <= MOST_ROUNDS:
        raise ConfigError(
            ROUNDS, str(rounds), f"{folder} has done {done}; from {max(done, 1)} to {MOST_ROUNDS:,}"
        )
    if rounds == done < before.rounds and rounds % every:
        raise ConfigError(
            ROUNDS,
            str(rounds),
            f"round {done} of {folder} was not evaluated (evaluation.every={every}), as the last one of "
            f"a run is; more than {done}",
        )
    ended = directory.read(folder)["status"] == "finished"
    if rounds > before.rounds and ended and before.rounds % every:
        raise ConfigError(
            ROUNDS,
            str(rounds),
            f"round {before.rounds} of {folder} was evaluated as the last one, which a run of "
            f"{rounds} rounds with evaluation.every={every} would not have done; start a new run",
        )
    return config.model_copy(update={"experiment": before.model_copy(update={"rounds": rounds})})


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
    if not reason and registry.algorithms.is_own(name) and not _says(type(algorithm)):
        module = sys.modules.get(type(algorithm).__module__)
        source = inspect.getsource(module) if module is not None else ""
        if f".{ROUNDS}" in source:
            reason = (
                f"your method {name}, whose file mentions .{ROUNDS} (if it does not depend on it, "
                "let its needs_rounds return an empty text)"
            )
    if reason:
        raise ConfigError(
            ROUNDS,
            str(config.rounds),
            f"the first {before} rounds were trained with {reason}, which depends on the number "
            "of rounds: a run that had as many from the start would have other bits; start a new "
            "run",
        )


def record(folder: Path, config: Config) -> None:
    """Write the new number into a run's folder: from here on it is an interrupted run of as many rounds."""
    directory.save_config(folder, config)
    (folder / FINAL_DIAGNOSTICS).unlink(missing_ok=True)  # of models that go on learning
    directory.update(
        folder,
        status="interrupted",
        sha256=None,
        settings=resume_checks.settings_text(config, "run"),
    )


def _says(method: type) -> bool:
    """Return whether a user's method defines `needs_rounds` itself."""
    return "needs_rounds" in vars(method)
