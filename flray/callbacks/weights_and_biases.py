"""Weights & Biases: a run per run or trial, the trials of a sweep as one group."""

import importlib.util
import shutil
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from flray.callbacks.base import RunInfo
from flray.errors import FlrayError
from flray.registry import register_callback


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
        if importlib.util.find_spec("wandb") is None:
            raise FlrayError(
                "experiment.callbacks: found wandb, whose package is missing; pip install 'flray[wandb]'"
            )

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Send a round."""
        self._run.log(dict(metrics), step=number)

    def end(self, status: str) -> None:
        """End the run there as here."""
        self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)
