"""The table of a partition: samples of each class by client."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from flray.data.types import FederatedData


def partition_table(data: FederatedData) -> pd.DataFrame:
    """Return one row per client with its numbers of samples.

    Returns
    -------
    DataFrame
        Columns ``client, domain, origin, train, val, test`` (numbers of samples; a pooled client's
        origin lists those of all domains, joined by ``+``), ``unseen`` where clients are kept out of
        training, ``noise`` where there is any (standard
        deviation on normalised inputs) and one column per class with its number of training
        samples, where samples have classes.
    """
    rows = []
    classes, table = replace(data, clients=data.everyone, unseen=()).class_table()
    for number, (client, counts) in enumerate(zip(data.everyone, table, strict=True)):
        origins = (
            {data.origins[client.domain]}
            if client.domain in data.origins
            else set(data.origins.values())
        )
        rows.append(
            {
                "client": client.name,
                "domain": client.domain,
                "origin": "+".join(sorted(origins)),
                "train": len(client.train),
                "val": len(client.val),
                "test": len(client.test),
                **({"unseen": number >= len(data.clients)} if data.unseen else {}),
                **({"noise": float(data.noise[client.train[0]])} if data.noise is not None else {}),
                **(dict(zip(classes, counts.tolist(), strict=True)) if data.has_classes else {}),
            }
        )
    return pd.DataFrame(rows)
