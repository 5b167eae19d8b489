"""FedBN: every batch norm stays local (Li, Jiang, Zhang, Kamp, Dou, ICLR 2021)."""

from flray.algorithms.base import Algorithm
from flray.registry import register_algorithm


@register_algorithm("fedbn")
class FedBN(Algorithm):
    """FedAvg on everything but the batch norms, whose scales, shifts and statistics are each client's own.

    Clients count equally, as in the paper's Algorithm 1. A client that has never taken part is
    evaluated with the initial batch norms. On a network without batch norm this is FedAvg with
    equal weights.
    """

    shared = "not_batch_norm"
    weighting = "uniform"
    views = ("personal",)
