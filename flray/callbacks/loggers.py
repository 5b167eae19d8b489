"""TensorBoard: a file of events that ``tensorboard --logdir`` reads. Weights & Biases: a run per run or trial."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from flray.callbacks.base import RunInfo
from flray.errors import FlrayError, brief
from flray.registry import register_callback, require_package


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

        place = run.folder / "tensorboard" if folder is None else Path(folder) / run.uid
        self._writer = SummaryWriter(str(place), purge_step=run.rounds_done + 1)

    @staticmethod
    def check(folder: str | None = None) -> None:
        """Refuse to begin without the package, or with a common folder that cannot be made."""
        require_package("callback tensorboard", "tensorboard", "tensorboard")
        try:
            Path(folder or ".").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FlrayError(
                f"experiment.callbacks: tensorboard.folder: {folder} cannot be made ({error.strerror}); "
                "name another folder, or null for one in the run's own"
            ) from None

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
        try:
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
        except wandb.Error as error:  # no key, no network, no such project
            raise FlrayError(
                f"callback wandb: the server takes no run ({brief(error)}); mend that and resume the run, or begin one "
                "with callbacks=[{name: wandb, mode: offline}]"
            ) from None
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
