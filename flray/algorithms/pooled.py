"""Pooled training: one model on all clients' samples together, the upper bound of a federation ("centralised")."""

from flray.algorithms.base import Algorithm
from flray.registry import register_algorithm


@register_algorithm("pooled")
class Pooled(Algorithm):
    """One task per round trains on the union of all clients' training samples, as if they lay in one place.

    It has as many epochs per round as a client has, from the last round's model, and is FedAvg with
    one client who holds everything. The model is tested as every other global model is. Training
    metrics are tracked under the first client's name; bytes count the model, not the samples.
    Without a cohort, `participation.dropout`, `stragglers` and `sampler` do nothing.
    """

    needs = frozenset({"homogeneous", "all_clients"})
    pools = True
