"""Properties of a GPU that decide the last bits of results: model, driver, CUDA and cuDNN."""

import contextlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import torch

from flray.errors import FlrayError

GpuIdentity: TypeAlias = dict[str, str]
_DRIVER = Path("/proc/driver/nvidia/version")

MIXED = (
    "client actors compute on several kinds of GPU, so that the last bits depend on which actor "
    "runs which client"
)
ADVICE = (
    "resources.gpu_model names one of the models, or is any where the last bits do not matter; of one "
    "model, the nodes need one driver and one build of torch"
)


def gpu_identity(device: torch.device) -> GpuIdentity | None:
    """Return the properties of a GPU that decide the last bits of results; None for a CPU.

    Parameters
    ----------
    device : torch.device
        Where a process computes.
    """
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return {
        "model": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": str(properties.multi_processor_count),  # fewer in a part of a GPU
        "driver": _driver(),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
    }


def distinct(found: Iterable[GpuIdentity | None]) -> list[GpuIdentity]:
    """Return each identity once, in a fixed order, without the CPUs among them."""
    unique = {tuple(sorted(one.items())) for one in found if one is not None}
    return [dict(one) for one in sorted(unique)]


def check_alike(found: Sequence[GpuIdentity], gpu_model: str) -> None:
    """Refuse several kinds of GPU within a federation, unless they are allowed.

    Parameters
    ----------
    found : sequence of dict
        The kinds of GPU that the federation computes on, each once.
    gpu_model : str
        The setting ``resources.gpu_model``.

    Raises
    ------
    FlrayError
        Naming them.
    """
    if len(found) > 1 and gpu_model != "any":
        raise FlrayError(f"{MIXED}: {_words(found)}; {ADVICE}")


def difference(began: Sequence[GpuIdentity], here: Sequence[GpuIdentity]) -> str:
    """Describe how GPUs differ from those that a run began on, in a few words; empty if they do not."""
    if distinct(began) == distinct(here):
        return ""
    return f"began on {_words(began)}, and here computes on {_words(here)}"


def _words(gpus: Sequence[GpuIdentity]) -> str:
    return (
        " and ".join(
            f"{gpu.get('model')} (driver {gpu.get('driver')}, CUDA {gpu.get('cuda')}, cuDNN "
            f"{gpu.get('cudnn')})"
            for gpu in gpus
        )
        or "no GPU"
    )


def _driver() -> str:
    """Return the version of the driver; where the system does not tell, that of the CUDA it supports."""
    with contextlib.suppress(OSError):
        if found := re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _DRIVER.read_text()):
            return found[1]
    supported = getattr(torch._C, "_cuda_getDriverVersion", lambda: "unknown")()
    return f"CUDA {supported}"
