"""Settings that make a GPU compute the same bits every time, as far as its libraries allow."""

import os

import torch

CONTEXT_BYTES = 512 * 2**20
"""Bytes of a GPU that a process takes besides its tensors: CUDA's context and the libraries' workspaces."""


def make_repeatable(device: torch.device, *, tf32: bool = False, share: float = 1.0) -> None:
    """Set up this process for repeatable results on a device; call it before the first computation there.

    Convolutions, products and every other operation that has a repeatable form take it. One that
    has none still runs, and torch says so in a warning. Does nothing on a CPU.

    Parameters
    ----------
    device : torch.device
        Where this process computes.
    tf32 : bool
        Whether float32 products and convolutions may drop to 10 bits of mantissa.
    share : float
        Share of the GPU's memory that this process may fill. With a fixed share, a library's choice
        of algorithms does not depend on other processes.
    """
    if device.type != "cuda":
        return
    # Read when cuBLAS is first used: it has no repeatable products without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    if 0 < share < 1:
        total = torch.cuda.get_device_properties(device).total_memory
        fraction = max(share - CONTEXT_BYTES / total, share / 2)
        torch.cuda.set_per_process_memory_fraction(fraction, device)
