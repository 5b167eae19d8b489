"""The handle through which a run drives its federation, wherever the server is."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from flray.federation.federation import RoundResult
from flray.federation.worker.diagnostics import Diagnostics


class FederationHandle(Protocol):
    """A federation that runs somewhere."""

    @property
    def between_rounds(self) -> bool:
        """Whether what it holds is that of a finished round, and not of one that was cut in two."""

    def step(self) -> RoundResult:
        """Run one round."""

    def wait_for_round(self) -> RoundResult | None:
        """After an interrupt: wait for the round under way and return it; None where it was cut in two, or none was."""

    def restart(self) -> None:
        """Begin anew after a loss; the caller restores the last checkpoint."""

    def save(self, folder: Path, keep: int) -> None:
        """Write a checkpoint."""

    def restore(self, folder: Path) -> int:
        """Go to the newest checkpoint; return the rounds done."""

    def sha256(self) -> str:
        """Return the digest of everything learnt."""

    def diagnostics(self, final: bool) -> Diagnostics:
        """Return what figures need of the models; see `flray.federation.diagnostics`."""

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each process."""

    def close(self) -> None:
        """Give everything back."""
