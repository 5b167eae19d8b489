"""The federated methods, one file each, which `flray.registry.algorithms` imports when it is first asked for one."""

from flray.algorithms.base import Algorithm, Phase, Stage

__all__ = ["Algorithm", "Phase", "Stage"]
