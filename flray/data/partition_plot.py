"""Who holds what, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flray.config.shapes import read_partition
from flray.data.types import FederatedData
from flray.errors import DataError

PICTURES = (".png", ".svg", ".pdf")
_MOST = 200
"""Clients with a bubble and a name each."""
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")


def partition_table(data: FederatedData) -> pd.DataFrame:
    """Return one row per client.

    Returns
    -------
    DataFrame
        Columns ``client, domain, origin, train, val, test`` (numbers of samples; a pooled client's
        origin lists those of all domains, joined by ``+``), ``noise`` where there is any (standard
        deviation on normalised inputs) and one column per class with its number of training
        samples, where samples have classes.
    """
    rows = []
    classes, table = data.class_table()
    for client, counts in zip(data.clients, table, strict=True):
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
                **({"noise": float(data.noise[client.train[0]])} if data.noise is not None else {}),
                **(dict(zip(classes, counts.tolist(), strict=True)) if data.has_classes else {}),
            }
        )
    return pd.DataFrame(rows)


def check_picture(path: Path) -> None:
    """Refuse a name that does not say what kind of picture it is to be.

    Raises
    ------
    DataError
        Naming the kinds.
    """
    if path.suffix.lower() not in PICTURES:
        raise DataError(
            f"{path}: a picture's name ends in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}"
        )


@dataclass(frozen=True)
class ClientHoldings:
    """How many training samples of each class each client holds.

    Attributes
    ----------
    dataset : str
        The data set's name.
    classes : tuple of str
        Their names.
    clients, domains : tuple of str
        Each client's name and domain.
    counts : ndarray of int [K, C]
        Training samples.
    has_classes : bool
        Whether samples have classes; otherwise there is one column for all.
    """

    dataset: str
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    domains: tuple[str, ...]
    counts: NDArray[np.int64]
    has_classes: bool

    @classmethod
    def of(cls, data: FederatedData) -> ClientHoldings:
        """Return those of a federation's data."""
        classes, counts = data.class_table()
        return cls(
            data.dataset,
            tuple(classes),
            tuple(client.name for client in data.clients),
            tuple(client.domain for client in data.clients),
            counts,
            data.has_classes,
        )

    @classmethod
    def read(cls, path: Path) -> ClientHoldings:
        """Return those kept in a run's ``partition.json``; see `flray.federation.diagnostics.partition_summary`."""
        kept = read_partition(path)
        clients = kept["clients"]
        return cls(
            kept["dataset"],
            tuple(kept["classes"]),
            tuple(client["name"] for client in clients),
            tuple(client["domain"] for client in clients),
            np.array([client["train"] for client in clients], dtype=np.int64).reshape(
                len(clients), -1
            ),
            bool(kept.get("has_classes", True)),
        )


def bubble_chart(held: ClientHoldings, path: Path) -> None:
    """Draw clients by classes, with the area of each bubble in proportion to the client's training samples.

    Parameters
    ----------
    held : Holdings
        Readable from 5 to 100 clients and 2 to 100 classes; colours are domains. More than 200
        clients become columns of a picture whose shade is the number of samples, above a strip of
        their domains.
    path : Path
        Image file to write; its suffix decides the format (``.png``, ``.svg``, ``.pdf``).

    Raises
    ------
    DataError
        If the suffix is another one, or the file cannot be written.
    """
    check_picture(path)
    figure = _columns(held) if len(held.clients) > _MOST else _bubbles(held)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from None


def _bubbles(held: ClientHoldings) -> Figure:
    classes, counts = held.classes, held.counts
    num_clients, num_classes = counts.shape
    cell = float(np.clip(12 / max(num_clients, num_classes), 0.2, 0.45))  # inches
    names = held.clients
    domains = list(dict.fromkeys(held.domains))
    # Fixed margins in inches, so that a cell has the same size for every number of clients.
    left, right = 0.5 + 0.08 * max(len(name) for name in classes), 1.7
    bottom, top = 0.5 + 0.08 * max(len(name) for name in names), 0.5
    width, height = max(num_clients * cell, 2.5), num_classes * cell
    bottom = max(
        bottom, 0.16 * (len(domains) + 2) - height
    )  # the legend's lines may be more than the rows
    figure = Figure(figsize=(left + width + right, bottom + height + top), dpi=150)
    FigureCanvasAgg(figure)
    total = figure.get_size_inches()
    axes = figure.add_axes(
        (left / total[0], bottom / total[1], width / total[0], height / total[1])
    )
    largest = int(counts.max())
    points = (
        0.95 * 72 * min(cell, width / num_clients)
    ) ** 2  # area of a full cell's bubble, in points squared
    for d, domain in enumerate(domains):
        mine = np.array([own == domain for own in held.domains])
        client, label = np.nonzero(counts * mine[:, None])
        axes.scatter(
            client,
            label,
            s=points * counts[client, label] / largest,
            color=_PALETTE[d % len(_PALETTE)],
            linewidths=0,
        )
    axes.set_xlim(-0.5, num_clients - 0.5)
    axes.set_ylim(-0.5, num_classes - 0.5)
    axes.set_xticks(range(num_clients), names, rotation=90, fontsize=7)
    axes.set_yticks(range(num_classes), list(classes), fontsize=7)
    axes.set_ylabel("class" if held.has_classes else "", fontsize=8)
    axes.tick_params(length=2)
    axes.grid(color="0.92", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.set_title(
        f"{held.dataset}: training samples (largest bubble {largest})", fontsize=9, loc="left"
    )
    _legend(axes, domains, width)
    return figure


def _columns(held: ClientHoldings) -> Figure:
    classes, counts = held.classes, held.counts
    num_clients, num_classes = counts.shape
    domains = list(dict.fromkeys(held.domains))
    left, right, bottom, top, width = (
        0.5 + 0.08 * max(len(name) for name in classes),
        1.7,
        0.7,
        0.5,
        12.0,
    )
    height = max(0.2 * num_classes, 0.16 * (len(domains) + 2))
    figure = Figure(figsize=(left + width + right, bottom + height + top), dpi=150)
    FigureCanvasAgg(figure)
    total = figure.get_size_inches()
    axes = figure.add_axes(
        (left / total[0], bottom / total[1], width / total[0], height / total[1])
    )
    # The square root, so that few samples are seen beside many.
    axes.imshow(
        np.sqrt(counts.T), aspect="auto", origin="lower", cmap="Blues", interpolation="nearest"
    )
    axes.set_yticks(range(num_classes), list(classes), fontsize=7)
    axes.set_ylabel("class" if held.has_classes else "", fontsize=8)
    axes.tick_params(length=2, labelsize=7)
    axes.spines[:].set_visible(False)
    axes.set_title(
        f"{held.dataset}: training samples (darkest {int(counts.max())})", fontsize=9, loc="left"
    )
    strip = figure.add_axes((left / total[0], 0.4 / total[1], width / total[0], 0.1 / total[1]))
    shades = [to_rgb(_PALETTE[domains.index(own) % len(_PALETTE)]) for own in held.domains]
    strip.imshow(np.array([shades]), aspect="auto", interpolation="nearest")
    strip.set_axis_off()
    axes.set_xlabel(f"{num_clients} clients", fontsize=8, labelpad=14)
    _legend(axes, domains, width)
    return figure


def _legend(axes: Axes, domains: Sequence[str], width: float) -> None:
    """Name the domains beside axes `width` inches wide."""
    for domain, shade in zip(domains, _PALETTE * len(domains), strict=False):
        axes.plot([], [], "o", color=shade, markersize=5, label=domain)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1 + 0.1 / width, 1),
        fontsize=7,
        frameon=False,
        title="domain",
        title_fontsize=7,
        borderaxespad=0,
    )
