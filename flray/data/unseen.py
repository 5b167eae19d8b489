"""Clients that are kept out of training, for what is measured on newcomers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flray.data.types import FederatedData
from flray.errors import ConfigError, nearest
from flray.rng import numpy_generator

_SETTING = "experiment.participation.unseen"


def keep_unseen(data: FederatedData, wanted: float | Sequence[str], seed: int) -> FederatedData:
    """Move some clients from `FederatedData.clients` to `FederatedData.unseen`.

    The common test set is then that of the others. Their samples stay where they are; the data
    set's mean and deviation are still those of all its training samples.

    Parameters
    ----------
    data : FederatedData
        A partition.
    wanted : float or sequence of str
        How many clients, below 1 a share of them, drawn by the seed; or names of clients and
        domains. 0 and nothing change nothing.
    seed : int
        The partition's seed.

    Raises
    ------
    ConfigError
        If there is no such client, or nobody would be left.
    """
    if not wanted:
        return data
    names = [client.name for client in data.clients]
    if isinstance(wanted, int | float):
        count = round(wanted * len(names)) if wanted < 1 else int(wanted)
        order = numpy_generator(seed, "partition", extra="unseen").permutation(len(names))
        kept_out = set(order[:count].tolist())
        shown = f"{wanted:g}"
    else:
        known = {*names, *(client.domain for client in data.clients)}
        for name in wanted:
            if name not in known:
                raise ConfigError(
                    _SETTING, repr(name), f"no client or domain has this name{nearest(name, known)}"
                )
        kept_out = {
            number
            for number, client in enumerate(data.clients)
            if client.name in wanted or client.domain in wanted
        }
        shown = ", ".join(wanted)
    if not 0 < len(kept_out) < len(names):
        raise ConfigError(
            _SETTING,
            shown,
            f"that is {len(kept_out)} of the {len(names)} clients; keep at least one out, and one to train",
        )
    clients = tuple(c for number, c in enumerate(data.clients) if number not in kept_out)
    return replace(
        data,
        clients=clients,
        unseen=tuple(data.clients[number] for number in sorted(kept_out)),
        test=np.concatenate([client.test for client in clients]),
    )
