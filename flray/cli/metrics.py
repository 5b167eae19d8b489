"""The metrics that a sweep can choose by: all names, or those of one experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from flray import registry
from flray.cli.display import console, print_json
from flray.metrics.catalogue import (
    MEASURES_IN_WORDS,
    OTHERS_IN_WORDS,
    SUFFIXES_IN_WORDS,
    VIEWS_IN_WORDS,
    is_validation,
)


def show_metrics(file: str | None, as_json: bool = False) -> None:
    """Print what ``sweep.metric`` can be: the parts of names, or the names that an experiment measures.

    Parameters
    ----------
    file : str, optional
        The experiment's YAML file.
    as_json : bool
        Whether as JSON: meanings by name.
    """
    if file is None:
        views = {
            f"{view}/MEASURE": f"{words}; {'validation' if is_validation(view) else 'test'} data"
            for view, words in VIEWS_IN_WORDS.items()
        }
        if as_json:
            added = {name: _first_line(name) for name in registry.metrics.names()}
            print_json(
                {**views, **MEASURES_IN_WORDS, **added, **SUFFIXES_IN_WORDS, **OTHERS_IN_WORDS}
            )
            return
        _print(
            "metrics: VIEW/MEASURE (those of an experiment: flray list metrics FILE.yaml)", views
        )
        _print("MEASURE", MEASURES_IN_WORDS)
        added = {name: _first_line(name) for name in registry.metrics.names()}
        _print("MEASURE, where evaluation.metrics names it", added)
        _print("behind a name", SUFFIXES_IN_WORDS)
        _print("besides", OTHERS_IN_WORDS)
        return
    from flray.config.loader import load
    from flray.config.selection import choose_on_validation
    from flray.federation.building import build_spec
    from flray.federation.evaluation import available_metrics
    from flray.metrics.summary import AUTO, VALIDATION, score_metric

    config = choose_on_validation(load(Path(file)))
    spec = build_spec(config.experiment)
    found = {AUTO: spec.primary_metric}
    if len(spec.data.validation):
        found[VALIDATION] = score_metric(VALIDATION, spec.primary_metric)
    for name in available_metrics(spec):
        view, measure = name.rsplit("/", 1)
        found[name] = f"{_measure(measure)}: {VIEWS_IN_WORDS[view]}"
    if as_json:
        print_json(found)
        return
    _print(f"metrics of {spec.config.algorithm.name} in {file}", found)


def _measure(name: str) -> str:
    """Return a measure in words, by its name or that of its kind."""
    if name.startswith("top"):
        return MEASURES_IN_WORDS["topK"].partition(" (")[0]
    if name in registry.metrics.names():
        return _first_line(name)
    words = MEASURES_IN_WORDS.get(name) or MEASURES_IN_WORDS.get(name.partition("_")[0], name)
    return words.partition(";")[0]


def _first_line(name: str) -> str:
    """Return the first line of a registered metric's docstring."""
    return (registry.metrics.outline(name).__doc__ or "").strip().partition("\n")[0]


def _print(title: str, rows: Mapping[str, str]) -> None:
    table = Table("name", "what it is", title=title, title_justify="left")
    for name, words in rows.items():
        table.add_row(name, words)
    console.print(table)
