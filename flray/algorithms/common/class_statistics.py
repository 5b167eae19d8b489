"""Class statistics that clients send and the server keeps: means with counts, and a mask of the classes seen."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from flray import functional
from flray.algorithms.base import Client, Reply, Server
from flray.models import as_split


@torch.no_grad()
def features_of(client: Client) -> tuple[Tensor, Tensor]:
    """Return the features [n, d] of all training samples in their stored order, in eval mode, and their labels [n]."""
    model = as_split(client.model.eval())
    batches = client.train.in_order(client.config.evaluation.batch_size)
    features, labels = zip(*((model.features(x), y) for x, y in batches), strict=True)
    return torch.cat(features), torch.cat(labels)


def class_features(client: Client) -> dict[str, Tensor]:
    """Return a reply's class means of the client's features, ``vectors`` [C, d], and ``counts`` [C]."""
    vectors, counts = functional.class_means(*features_of(client), client.num_classes)
    return {"vectors": vectors, "counts": counts}


def keep_class_means(
    server: Server, replies: Iterable[Reply], entry: str, weighting: Literal["uniform", "samples"]
) -> None:
    """Merge the clients' statistics of each class into the server's state; classes that nobody sent stay unchanged.

    Parameters
    ----------
    server : Server
        ``server.state[entry]`` becomes a dict with the merged tensors [C, D] and the mask
        ``present`` [C]; it is not there before the first reply.
    replies : iterable of Reply
        Each with an entry of that name: one or several tensors [C, D] and ``counts`` [C], 0 for a
        class not sent.
    entry : str
        Its name.
    weighting : {"uniform", "samples"}
        See `flray.functional.merge_prototypes`.
    """
    sent = [reply[entry] for reply in replies]
    if not sent:
        return
    counts = torch.stack([one["counts"] for one in sent])
    before, bank = server.state.get(entry), {}
    for name in sorted(sent[0].keys() - {"counts"}):
        means = torch.stack([one[name] for one in sent])
        previous = None if before is None else (before[name], before["present"])
        bank[name], bank["present"] = functional.merge_prototypes(
            means, counts, weighting, previous
        )
    server.state[entry] = bank
