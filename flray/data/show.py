"""Who holds what, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flray.data.types import FederatedData

_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")


def partition_table(data: FederatedData) -> pd.DataFrame:
    """Return one row per client.

    Returns
    -------
    DataFrame
        Columns ``client, domain, origin, train, val, test`` (numbers of samples; a pooled client's origin lists
        those of all domains, joined by ``+``), ``noise`` where there is any (standard deviation on normalised inputs)
        and one column per class with its number of training samples, where samples have classes.
    """
    rows = []
    classes, table = data.class_table()
    for client, counts in zip(data.clients, table, strict=True):
        origins = {data.origins[client.domain]} if client.domain in data.origins else set(data.origins.values())
        rows.append({
            "client": client.name, "domain": client.domain, "origin": "+".join(sorted(origins)),
            "train": len(client.train), "val": len(client.val), "test": len(client.test),
            **({"noise": float(data.noise[client.train[0]])} if data.noise is not None else {}),
            **(dict(zip(classes, counts.tolist(), strict=True)) if data.has_classes else {}),
        })
    return pd.DataFrame(rows)


def bubble_chart(data: FederatedData, path: Path) -> None:
    """Draw clients by classes, with the area of each bubble in proportion to the client's training samples.

    Parameters
    ----------
    data : FederatedData
        Readable from 5 to 100 clients and 2 to 100 classes; colours are domains.
    path : Path
        Image file to write; its suffix decides the format (``.png``, ``.svg``, ``.pdf``).
    """
    classes, counts = data.class_table()
    num_clients, num_classes = counts.shape
    cell = float(np.clip(12 / max(num_clients, num_classes), 0.2, 0.45))  # inches
    names = [client.name for client in data.clients]
    # Fixed margins in inches, so that a cell has the same size for every number of clients.
    left, right = 0.5 + 0.08 * max(len(name) for name in classes), 1.7
    bottom, top = 0.5 + 0.08 * max(len(name) for name in names), 0.5
    width, height = max(num_clients * cell, 2.5), num_classes * cell
    figure = Figure(figsize=(left + width + right, bottom + height + top), dpi=150)
    FigureCanvasAgg(figure)
    total = figure.get_size_inches()
    axes = figure.add_axes((left / total[0], bottom / total[1], width / total[0], height / total[1]))
    domains = list(dict.fromkeys(client.domain for client in data.clients))
    largest = int(counts.max())
    points = (0.95 * 72 * min(cell, width / num_clients)) ** 2  # area of a full cell's bubble, in points squared
    for d, domain in enumerate(domains):
        mine = np.array([client.domain == domain for client in data.clients])
        client, label = np.nonzero(counts * mine[:, None])
        axes.scatter(client, label, s=points * counts[client, label] / largest, color=_PALETTE[d % len(_PALETTE)],
                     linewidths=0)
    axes.set_xlim(-0.5, num_clients - 0.5)
    axes.set_ylim(-0.5, num_classes - 0.5)
    axes.set_xticks(range(num_clients), names, rotation=90, fontsize=7)
    axes.set_yticks(range(num_classes), list(classes), fontsize=7)
    axes.set_ylabel("class" if data.has_classes else "", fontsize=8)
    axes.tick_params(length=2)
    axes.grid(color="0.92", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{data.dataset}: training samples (largest bubble {largest})", fontsize=9, loc="left")
    for domain, shade in zip(domains, _PALETTE * len(domains), strict=False):
        axes.plot([], [], "o", color=shade, markersize=5, label=domain)
    axes.legend(loc="upper left", bbox_to_anchor=(1 + 0.1 / width, 1), fontsize=7, frameon=False,
                title="domain", title_fontsize=7, borderaxespad=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
