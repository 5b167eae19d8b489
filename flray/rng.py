"""Keyed randomness: one independent generator per (seed, round, client, purpose).

Streams are looked up, never continued, so switching one loss term off, changing the number of
workers or repeating a task after a crash cannot shift any other stream.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    import torch

Purpose = Literal[
    "sampling",
    "dropouts",
    "stragglers",
    "batches",
    "augmentation",
    "dropout",
    "public",
    "noise",
    "init",
    "data",
    "partition",
    "adaptation",
]
PURPOSES: frozenset[str] = frozenset(get_args(Purpose))


def key(
    seed: int, purpose: Purpose, *, round: int = 0, client: int = 0, extra: int | str = 0
) -> int:
    """Return the 63-bit seed of one stream.

    Parameters
    ----------
    seed : int
        The experiment's seed.
    purpose : str
        The use of the stream; one of `PURPOSES`.
    round, client : int
        The round and client that use the stream; 0 if it does not depend on them.
    extra : int or str
        Tells several streams of one purpose apart, for example a step or an architecture.

    Raises
    ------
    ValueError
        If the purpose is not one of `PURPOSES`: a misspelt purpose would silently be another
        stream.
    """
    if purpose not in PURPOSES:
        raise ValueError(f"unknown purpose {purpose!r}; one of {sorted(PURPOSES)}")
    text = f"flray/{seed}/{purpose}/{round}/{client}/{extra}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def torch_generator(
    seed: int,
    purpose: Purpose,
    *,
    round: int = 0,
    client: int = 0,
    extra: int | str = 0,
    device: torch.device | str = "cpu",
) -> torch.Generator:
    """Return a fresh `torch.Generator` for one stream (parameters as in `key`)."""
    import torch  # start-up: data sets and partitions draw from numpy's alone

    return torch.Generator(device=device).manual_seed(
        key(seed, purpose, round=round, client=client, extra=extra)
    )


def seed_default_generators(seed: int, device: torch.device) -> None:
    """Seed the generators that dropout draws from: torch's own of the CPU and of a device's kind.

    `torch.manual_seed` does so for every kind of accelerator, and formats the stack for a message
    for each kind that is not there: a hundredth of a small task.

    Parameters
    ----------
    seed : int
        A result of `key`.
    device : torch.device
        The device of the model.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed_all(seed)


@contextlib.contextmanager
def default_generators_kept(device: torch.device) -> Iterator[None]:
    """Restore afterwards the generators that `seed_default_generators` seeds, sooner than torch's `fork_rng`.

    Parameters
    ----------
    device : torch.device
        The device of the model.
    """
    import torch

    own = torch.get_device_module(device) if device.type == "cuda" else None
    host = torch.default_generator.get_state()
    there = own.get_rng_state(device) if own is not None else None
    try:
        yield
    finally:
        torch.default_generator.set_state(host)
        if own is not None:
            own.set_rng_state(there, device)


def numpy_generator(
    seed: int, purpose: Purpose, *, round: int = 0, client: int = 0, extra: int | str = 0
) -> np.random.Generator:
    """Return a fresh `numpy.random.Generator` for one stream (parameters as in `key`)."""
    return np.random.Generator(
        np.random.Philox(key(seed, purpose, round=round, client=client, extra=extra))
    )
