"""Callbacks, called once after each round: ``callbacks`` of an experiment, one file each."""

from flray.callbacks import tensorboard, weights_and_biases
from flray.callbacks.base import RunInfo, check_callbacks

__all__ = ["RunInfo", "check_callbacks", "tensorboard", "weights_and_biases"]
