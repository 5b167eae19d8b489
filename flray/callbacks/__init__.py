"""Callbacks, called once after each round: ``callbacks`` of an experiment. Built in: TensorBoard, Weights & Biases.

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

import contextlib
import inspect
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from flray import registry
from flray.config.components import CallbackChoice
from flray.errors import ConfigError, FlrayError, explained
from flray.files.tracking_address import at_home
from flray.registry import register_callback, require_package


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


@register_callback("tensorboard")
class TensorBoard:
    """Every metric as a scalar by round, in the run's folder or in a common one for all runs."""

    def __init__(
        self,
        run: RunInfo,
        *,
        folder: Annotated[
            str | None,
            Field(description="where each run gets a folder; null: tensorboard/ in the run's own"),
        ] = None,
    ) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        place = run.folder / "tensorboard" if folder is None else Path(at_home(folder)) / run.uid
        self._writer = SummaryWriter(str(place), purge_step=run.rounds_done + 1)

    @staticmethod
    def check(folder: str | None = None) -> None:
        """Refuse to begin without the package, or with a common folder that cannot be made."""
        require_package("callback tensorboard", "tensorboard", "tensorboard")
        with explained(
            OSError,
            f"experiment.callbacks: tensorboard.folder: {folder} cannot be made",
            "name another folder, or null for one in the run's own",
            FlrayError,
        ):
            place = Path(at_home(folder or "."))
            missing = [one for one in (place, *place.parents) if not one.exists()]
            place.mkdir(parents=True, exist_ok=True)
        for one in missing:  # the run may be refused for another reason
            with contextlib.suppress(OSError):
                one.rmdir()

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Write a round."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def end(self, status: str) -> None:
        """Close the file."""
        self._writer.close()


@register_callback("wandb")
class WeightsAndBiases:
    """Every metric by round, and all settings; a resumed run continues the same run there.

    Offline files are written in blocks, so a killed process may leave them without their last
    rounds. A resumed run writes such files anew.
    """

    def __init__(
        self,
        run: RunInfo,
        *,
        project: Annotated[str, Field(min_length=1)] = "flray",
        entity: Annotated[
            str | None, Field(description="user or team; null: the default one")
        ] = None,
        mode: Annotated[
            Literal["online", "offline"],
            Field(description="offline: files in the run's folder, for wandb sync"),
        ] = "online",
    ) -> None:
        import wandb

        former = list(run.folder.glob(f"wandb/offline-run-*-{run.uid}"))
        with explained(
            wandb.Error,  # no key, no network, no such project
            "callback wandb: the server takes no run",
            "mend that and resume the run, or begin one with callbacks=[{name: wandb, mode: offline}]",
            FlrayError,
        ):
            self._run = wandb.init(
                project=project,
                entity=entity,
                mode=mode,
                id=run.uid,
                name=run.name,
                group=run.group or None,
                dir=str(run.folder),
                config=dict(run.settings),
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(silent=True, console="off"),
            )
        self.rounds_in_log = run.rounds_done
        if mode == "offline":
            self.rounds_in_log = 0
            for folder in former:
                shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def check() -> None:
        """Refuse to begin without the package."""
        require_package("callback wandb", "wandb", "wandb")

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Send a round."""
        self._run.log(dict(metrics), step=number)

    def end(self, status: str) -> None:
        """End the run there as here."""
        self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)
