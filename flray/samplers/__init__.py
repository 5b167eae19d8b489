"""How the clients of a round are chosen: ``participation.sampler``, a file each."""

from flray.samplers import power_of_choice, sampling
from flray.samplers.sampling import Sampling, choose

__all__ = ["Sampling", "choose", "power_of_choice", "sampling"]
