"""What a callback knows of its run, and what it has to be.

A callback is a class that is made for each run, or each trial of a sweep, in the process that started it::

    @register_callback("my-log")
    class MyLog:
        def __init__(self, run: RunInfo, *, file: str = "log.txt") -> None: ...
        def round(self, number: int, metrics: Mapping[str, float]) -> None: ...
        def end(self, status: str) -> None: ...     # may be missing

Its keyword-only parameters are its options. It gets every round in order and once, as the journal has recorded it,
whatever dies and is resumed in between; only where the process is killed within the very call is that call repeated.
One whose log can lose what it was given sets ``self.rounds_in_log`` to the rounds that the log has, and is given the
later ones again.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flray import registry
from flray.config.components import CallbackChoice
from flray.errors import ConfigError


@dataclass(frozen=True)
class RunInfo:
    """A run, or a trial of a sweep.

    Attributes
    ----------
    folder : Path
        Its folder, in full.
    uid : str
        Names it for ever, also after a resume.
    name : str
        ``NAME NUMBER``, and what a trial tries.
    group : str
        The sweep of a trial; empty for a run.
    settings : mapping of str to str
        All settings by dotted path.
    metric : str
        The method's own metric.
    rounds_done : int
        Rounds that this callback has seen before this process began.
    """

    folder: Path
    uid: str
    name: str
    group: str
    settings: Mapping[str, str]
    metric: str
    rounds_done: int


def check_callbacks(choices: Sequence[CallbackChoice]) -> None:
    """Refuse callbacks that cannot be made or called.

    Raises
    ------
    ConfigError
        Naming the first and what it has to be; a missing package, too.
    """
    names = [choice.name for choice in choices]
    for position, choice in enumerate(choices):
        if choice.name in names[:position]:
            raise ConfigError(
                f"experiment.callbacks.{position}", choice.name, "it is named twice; leave one out"
            )
        path, item = f"experiment.callbacks.{position}", registry.callbacks.get(choice.name)
        called, ended = getattr(item, "round", None), getattr(item, "end", None)
        if not (inspect.isclass(item) and callable(called)):
            raise ConfigError(
                path, choice.name, "a callback is a class with a method round(number, metrics)"
            )
        if not (registry.takes(item, 1) and registry.takes(called, 3) and registry.takes(ended, 2)):
            raise ConfigError(
                path,
                choice.name,
                "it has to take __init__(run, *, options), round(number, metrics) and, if it has "
                "one, end(status)",
            )
        if (check := getattr(item, "check", None)) is not None:
            asked = inspect.signature(check).parameters
            with registry.callbacks.guarded(choice.name):
                check(**{name: value for name, value in choice.options.items() if name in asked})
