"""Folders of domains and classes: their names, the place where they lie, and whether they are complete."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from flray.data.sources.file_stores import Item, Store
from flray.data.sources.image_sets import Table
from flray.errors import ConfigError, DataError, nearest

_DEEPEST = 3  # folders between the given place and those of the domains


@lru_cache(4096)
def normalise_name(name: str) -> str:
    """Return a folder's name without capitals, spaces and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def select_domains(name: str, have: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the wanted domains in the set's order.

    Raises
    ------
    ConfigError
        If one is unknown or named twice, or none is wanted.
    """
    for domain in wanted if wanted is not None else ():
        if domain not in have or list(wanted or ()).count(domain) > 1:
            raise ConfigError(
                f"dataset.{name}.domains",
                repr(domain),
                f"each of {', '.join(have)} at most once{nearest(domain, set(have) - {domain})}",
            )
    if wanted is not None and not wanted:
        raise ConfigError(f"dataset.{name}.domains", "an empty list", f"some of {', '.join(have)}")
    return tuple(domain for domain in have if wanted is None or domain in wanted)


def domain_home(
    store: Store, items: Sequence[Item], domains: Mapping[str, str], layout: str, name: str
) -> str:
    """Return the path (with a slash, or empty) below which most of the domains' folders lie.

    Raises
    ------
    DataError
        If none of them is anywhere.
    """
    homes: dict[str, set[str]] = {}
    for item in items:
        parents = item.path.split("/")[:-1]
        for depth, folder in enumerate(parents[: _DEEPEST + 1]):
            if normalise_name(folder) in domains:
                homes.setdefault("".join(f"{p}/" for p in parents[:depth]), set()).add(
                    domains[normalise_name(folder)]
                )
    if not homes:
        tops = sorted({item.path.split("/")[0] for item in items})
        some = ", ".join(tops[:5]) + (" and more" if len(tops) > 5 else "")
        raise DataError(
            f"data set {name}: no domain's folder in {store.where}, only {some or 'nothing'}; it "
            f"must be laid out as {layout}"
        )
    return min(homes, key=lambda home: (-len(homes[home]), home.count("/"), home))


def check_complete(
    name: str,
    where: Path,
    table: Table,
    domains: Sequence[str],
    classes: Sequence[str],
    incomplete: bool,
) -> None:
    """Refuse a domain without images, or without images of some classes.

    Raises
    ------
    DataError
        Naming domain and classes.
    """
    counts = Counter(zip(table.domains.tolist(), table.labels.tolist(), strict=True))
    for number, domain in enumerate(domains):
        missing = [c for label, c in enumerate(classes) if not counts[number, label]]
        if len(missing) == len(classes):
            raise DataError(
                f"data set {name}: the domain {domain} has no images in {where}; put them there, "
                "or choose other domains with data.domains"
            )
        if missing and not incomplete:
            some = ", ".join(missing[:5]) + (
                f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            )
            raise DataError(
                f"data set {name}: the domain {domain} in {where} has no images of {some}; fetch "
                "it again, or set data.incomplete to true to do without"
            )
