"""The interface of callbacks: their form, and the description of the run that they get.

A callback is a class, registered by `register_callback`. flray makes an instance for each run, and for each trial of a
sweep, in the process that started it::

    class MyLog:
        def __init__(self, run: RunInfo, *, file: str = "log.txt") -> None: ...
        def round(self, number: int, metrics: Mapping[str, float]) -> None: ...
        def end(self, status: str) -> None: ...     # may be missing

Its keyword-only parameters are its options. It gets every round once and in order, as the journal has recorded it, also
after crashes and resumes. A call is repeated only if the process is killed during that call. If its log can lose
rounds, a callback sets ``self.rounds_in_log`` to the number of rounds in the log, and gets the later ones again.
"""

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
        Its permanent name, also after a resume.
    name : str
        ``NAME NUMBER``, followed by a trial's settings.
    group : str
        The sweep of a trial; empty for a run.
    settings : mapping of str to str
        All settings by dotted path.
    metric : str
        The method's primary metric.
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
        Naming the first wrong one and its required form, or a missing package.
    """
    names = [choice.name for choice in choices]
    for position, choice in enumerate(choices):
        item = registry.callbacks.get(choice.name)
        called, ended = getattr(item, "round", None), getattr(item, "end", None)
        why = ""
        if choice.name in names[:position]:
            why = "it is named twice; leave one out"
        elif not (inspect.isclass(item) and callable(called)):
            why = "a callback is a class with a method round(number, metrics)"
        elif not (
            registry.takes(item, 1) and registry.takes(called, 3) and registry.takes(ended, 2)
        ):
            why = "it has to take __init__(run, *, options), round(number, metrics) and, if it has one, end(status)"
        if why:
            raise ConfigError(f"experiment.callbacks.{position}", choice.name, why)
        if (check := getattr(item, "check", None)) is not None:
            asked = inspect.signature(check).parameters
            with registry.callbacks.guarded(choice.name):
                check(**{name: value for name, value in choice.options.items() if name in asked})
