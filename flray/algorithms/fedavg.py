"""FedAvg: broadcast, train locally, average (McMahan et al., AISTATS 2017)."""

from flray.algorithms.base import Algorithm
from flray.registry import register_algorithm


@register_algorithm("fedavg")
class FedAvg(Algorithm):
    """Everything as in `Algorithm`: weights by sample counts, one global model."""
