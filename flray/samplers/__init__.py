"""How the clients of a round are chosen: ``participation.sampler``."""

from flray.samplers.sampling import Sampling, choose

__all__ = ["Sampling", "choose"]
