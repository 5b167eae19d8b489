"""Local training: every client alone, the floor that a federation must beat ("SingleSet", "BASE", "Separate")."""

from flray.algorithms.base import Algorithm
from flray.registry import register_algorithm


@register_algorithm("local")
class Local(Algorithm):
    """Nothing is shared: a client continues from its last model, and no byte travels."""

    shared = "none"
    views = ("personal",)
