"""The device that Ray has granted to this process."""

from __future__ import annotations

import os

import ray
import torch

from flray.errors import DataError

FAKE_GPUS = "FLRAY_FAKE_GPUS"
"""Environment variable; 1: GPUs that Ray grants may be missing, as in tests, and the CPU stands for them."""


def granted_device() -> torch.device:
    """Return the GPU that Ray has granted to this process, or the CPU if it granted none.

    Raises
    ------
    DataError
        If torch sees no GPU where Ray granted one: it would be computed on the CPU without a word.
    """
    # Asked outside of a session, Ray would start one, or join any that it finds.
    if not ray.is_initialized() or not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda:0")
    if os.environ.get(FAKE_GPUS) == "1":
        return torch.device("cpu")
    raise DataError(
        f"Ray has given this process a GPU, and torch {torch.__version__} sees none: install a build "
        "of torch for its CUDA driver on every node, or set resources.gpus_per_actor=0"
    )
