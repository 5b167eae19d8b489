"""TensorBoard: a file of events that ``tensorboard --logdir`` reads."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from flray.callbacks.base import RunInfo
from flray.errors import FlrayError
from flray.registry import register_callback


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
        if importlib.util.find_spec("tensorboard") is None:
            raise FlrayError(
                "experiment.callbacks: found tensorboard, whose package is missing; "
                "pip install 'flray[tensorboard]'"
            )
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
