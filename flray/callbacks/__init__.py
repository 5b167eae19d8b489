"""Callbacks, called once after each round: ``callbacks`` of an experiment."""

from flray.callbacks import loggers
from flray.callbacks.base import RunInfo, check_callbacks

__all__ = ["RunInfo", "check_callbacks", "loggers"]
