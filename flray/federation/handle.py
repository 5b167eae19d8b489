"""The handle through which a run drives its federation, wherever the server is."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from flray.devices.identity import GpuIdentity
from flray.federation.federation import RoundResult
from flray.federation.worker.diagnostics import Diagnostics


class FederationHandle(Protocol):
    """A running federation, in this process or on Ray."""

    @property
    def between_rounds(self) -> bool:
        """Whether its state is that of a finished round, not of an interrupted one."""

    def step(self) -> RoundResult:
        """Run one round."""

    def wait_for_round(self) -> RoundResult | None:
        """After an interrupt: wait for the current round and return it; None if it was cut short or there is none."""

    def restart(self) -> None:
        """Restart after a loss; the caller restores the last checkpoint."""

    def save(self, folder: Path, keep: int) -> None:
        """Write a checkpoint."""

    def restore(self, folder: Path) -> int:
        """Restore the newest checkpoint; return the rounds done."""

    def has_ended(self) -> bool:
        """Return whether no round is left."""

    def sha256(self) -> str:
        """Return the digest of the learned state."""

    def diagnostics(self, final: bool) -> Diagnostics:
        """Return the models' data for figures; see `flray.federation.diagnostics`."""

    def gpus(self) -> list[GpuIdentity]:
        """Return the kinds of GPU that the federation computes on."""

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each process."""

    def close(self) -> None:
        """Release all resources."""
