"""The federated methods, one file each; importing this package registers them."""

from flray.algorithms import fedavg
from flray.algorithms.base import Algorithm, Phase, Stage

__all__ = ["Algorithm", "Phase", "Stage", "fedavg"]
