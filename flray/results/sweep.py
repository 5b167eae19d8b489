"""What a sweep brought: a row per trial, mean and standard deviation over seeds per setting, and the table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from flray.config import arms
from flray.config.experiment import Evaluation
from flray.config.setting_labels import flatten_setting, format_value, setting_label
from flray.errors import one_line
from flray.metrics.direction import lower_is_better
from flray.metrics.summary import summarise_history
from flray.runs import directory
from flray.runs.journal import history_of, read_events
from flray.tuning.trial_store import TrialFolder, trial_folders

VIEWS = (
    "global/common",
    "global/local",
    "personal/local",
    "personal/others",
    "online/local",
    "offline/local",
)
CLIENT = "client/"
PROTOCOLS = {
    "last": "",
    "best": ", best round on validation",
    "mean-last": ", mean of the last evaluations",
}
_SHOWN_CLIENTS = 12
_SHOWN_FAILED = 3


class SweepResult:
    """The trials of a sweep's folder.

    Parameters
    ----------
    folder : Path
        The sweep's folder.

    Attributes
    ----------
    folder : Path
        Where everything lies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def results(self) -> pd.DataFrame:
        """One row per trial.

        Columns: ``trial``; the settings; ``seed``, ``status`` (finished, stopped, failed),
        ``rounds``, ``score`` and the ``metric`` it is; the views' means; ``client/NAME``, each
        client's value under the method's own view (personal models for personal methods, the global
        model for the others; on the other clients' test data where the metric is of these);
        ``seconds`` of training, ``sha256`` of what was learnt, ``failure``.
        """
        rows = [_row(folder) for folder in trial_folders(self.folder)]
        settings = self._in_order({name for row in rows for name in row["settings"]})
        views = list(dict.fromkeys(n for row in rows for n in row["views"]))
        clients = list(dict.fromkeys(name for row in rows for name in row["clients"]))
        made = [
            {
                "trial": row["trial"],
                **{s: row["settings"].get(s) for s in settings},
                **{k: row[k] for k in ("seed", "status", "rounds", "score", "metric")},
                **{v: row["views"].get(v, math.nan) for v in views},
                **{c: row["clients"].get(c, math.nan) for c in clients},
                **{k: row[k] for k in ("seconds", "sha256", "failure")},
            }
            for row in rows
        ]
        table = pd.DataFrame(made)
        table.attrs["settings"] = settings
        return table

    @property
    def settings(self) -> list[str]:
        """The columns of `results` that are settings."""
        return list(self.results.attrs["settings"])

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per setting, best first.

        ``score`` is the mean over the seeds that brought one, ``score_std`` their standard
        deviation (n - 1; NaN for one seed), ``seeds`` how many they are; likewise for each client
        and view. ``rounds_min`` and ``rounds_max`` differ where some stopped early; ``stopped`` and
        ``failed`` count trials.
        """
        table, settings = self.results, self.settings
        # The members of a population are no repetitions of each other, even where their settings
        # have met.
        keys = pd.Series(
            [
                row["trial"] if self._population else str([row[name] for name in settings])
                for row in table.to_dict("records")
            ],
            index=table.index,
        )
        measured = ["score", *(c for c in table.columns if c.startswith((*VIEWS, CLIENT)))]
        rows: list[dict[str, Any]] = []
        for _, group in table.groupby(keys, sort=False):
            good = group[group["status"] != "failed"]
            row: dict[str, Any] = {name: group[name].iloc[0] for name in settings}
            row |= {
                "seeds": int(good["score"].notna().sum()),
                "metric": group["metric"].iloc[0],
                "rounds_min": _whole(good["rounds"].min()),
                "rounds_max": _whole(good["rounds"].max()),
                "stopped": int((group["status"] == "stopped").sum()),
                "failed": int((group["status"] == "failed").sum()),
            }
            for name in measured:
                row[name], row[f"{name}_std"] = (
                    float(good[name].mean()),
                    float(good[name].std(ddof=1)),
                )
            rows.append(row)
        made = pd.DataFrame(rows)
        return made.sort_values(
            "score",
            ascending=self.mode == "min",
            na_position="last",
            ignore_index=True,
            kind="stable",
        )

    @property
    def _population(self) -> bool:
        scheduler = self._config["sweep"]["scheduler"]
        return scheduler is not None and scheduler["name"] == "pbt"

    @property
    def mode(self) -> str:
        """Whether the score is better high (``max``) or low (``min``)."""
        return str(self._config["sweep"]["mode"])

    @property
    def best(self) -> dict[str, Any]:
        """The settings, score, standard deviation and number of seeds of the best setting."""
        first = self.summary.iloc[0]
        return {name: first[name] for name in (*self.settings, "score", "score_std", "seeds")}

    @property
    def uri(self) -> str | None:
        """Where the sweep is tracked."""
        uri = self._config["experiment"]["tracking"]["uri"]
        return None if uri is None else str(uri)

    @cached_property
    def _config(self) -> dict[str, Any]:
        return directory.read_config(self.folder)

    def label(self, row: pd.Series[Any]) -> str:
        """Return a row's setting in a few words: the settings that vary."""
        flat = {name: row[name] for name in self._varying() if not _missing(row[name])}
        return setting_label(flat) or str(self._config["experiment"]["algorithm"]["name"])

    @property
    def all_failed(self) -> bool:
        """Whether not one trial brought a result."""
        return bool((self.results["status"] == "failed").all())

    def failures(self) -> list[str]:
        """Return one line per kind of failure: numbers, settings, seeds, and what went wrong first."""
        alike: dict[str, list[str]] = {}
        for _, row in self.results[self.results["status"] == "failed"].iterrows():
            lines = str(row["failure"]).splitlines() or [""]
            alike.setdefault(one_line(lines[0]), []).append(
                f"{row['trial']} ({self.label(row)} seed={row['seed']})"
            )
        return [
            f"trial{'s' if len(trials) > 1 else ''} {', '.join(trials[:_SHOWN_FAILED])}"
            f"{f' and {len(trials) - _SHOWN_FAILED} more' if len(trials) > _SHOWN_FAILED else ''} "
            f"failed: {reason}"
            for reason, trials in alike.items()
        ]

    def table(self) -> Table:
        """Return the table of the settings, best first: mean ± standard deviation over seeds, in percent."""
        summary, varying = self.summary, self._varying()
        percent = _is_share(summary)
        metrics = sorted(set(summary["metric"].dropna()))
        clients = [c for c in summary.columns if c.startswith(CLIENT) and not c.endswith("_std")]
        clients = clients if len(clients) <= _SHOWN_CLIENTS else []
        heading = (
            f"{self._config['experiment']['name']}: "
            f"{' or '.join(metrics)}{', %' if percent else ''}, "
            f"mean ± std over seeds{PROTOCOLS[self._config['experiment']['evaluation'].get('protocol', 'last')]}"
        )
        table = Table(title=Text(one_line(heading), "table.title"), title_justify="left")
        for name in varying or ["algorithm"]:
            table.add_column(Text(one_line(name.removeprefix(arms.PREFIX))))
        for name in ("score", *(c.removeprefix(CLIENT) for c in clients), "seeds", "rounds"):
            table.add_column(Text(one_line(name)), justify="right")
        for _, row in summary.iterrows():
            cells = [
                "" if _missing(row[name]) else format_value(row[name]) for name in varying
            ] or [self.label(row)]
            cells += [_spread(row[n], row[f"{n}_std"], percent) for n in ("score", *clients)]
            table.add_row(*map(Text, cells), str(row["seeds"]), _rounds(row))
        notes = self._notes(len(clients))
        if notes:
            table.caption, table.caption_justify = Text("\n".join(notes), "table.caption"), "left"
        return table

    def _notes(self, shown_clients: int) -> list[str]:
        table = self.results
        stopped = table[table["status"] == "stopped"]
        notes = []
        if len(stopped):
            low, high = int(stopped["rounds"].min()), int(stopped["rounds"].max())
            span = f"{low}" if low == high else f"{low} to {high}"
            notes.append(
                f"* {len(stopped)} of {len(table)} trials stopped early, after {span} "
                f"round{'s' if high > 1 else ''}"
            )
        if any(str(m).startswith("global/") for m in set(table["metric"])) and shown_clients:
            notes.append(
                "per client: the global model for methods with one, the client's own for the others"
            )
        if self._population:
            notes.append(
                "settings are those at the end of each trial; population based training changed "
                "them"
            )
        return notes + self.failures()

    def _in_order(self, names: set[str]) -> list[str]:
        """Return settings in the order of the space."""
        paths = [f"{arms.PREFIX}{axis}" for axis in self._config.get("arms") or {}]
        paths += [
            path.removeprefix("experiment.").removesuffix(".name") for path in self._config["space"]
        ]
        place = {path: position for position, path in enumerate(paths)}

        def key(name: str) -> tuple[int, str]:
            parts = name.split(".")
            prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
            return next((place[prefix] for prefix in prefixes if prefix in place), len(place)), name

        return sorted(names, key=key)

    def _varying(self) -> list[str]:
        table = self.results
        return [
            name
            for name in self.settings
            if len({str(v) for v in table[name] if not _missing(v)}) > 1
        ]

    def history(self, trial: str) -> pd.DataFrame:
        """Return the rounds of one trial: column ``round``, then one per metric."""
        return history_of(read_events(TrialFolder(self.folder, trial).path / directory.JOURNAL))


def _row(folder: TrialFolder) -> dict[str, Any]:
    """Return one trial's row in parts."""
    identity = folder.identity
    history = history_of(read_events(folder.path / directory.JOURNAL))
    metric = identity.get("metric") or ""
    evaluation = Evaluation.model_validate(folder.settings["evaluation"])
    last = summarise_history(history, metric, evaluation.protocol, evaluation.last).values
    view, scope, measure = [*metric.split("/"), "", ""][:3]
    own = f"{view}/{'others' if scope == 'others' else 'local'}/{measure}/client/"
    return {
        "trial": folder.number,
        "settings": flatten_setting(identity.get("setting_at_end") or identity["setting"]),
        "seed": identity["seed"],
        "status": identity["status"],
        "rounds": len(history),
        "score": last.get(metric, math.nan),
        "metric": metric or None,
        "seconds": float(history["time/round"].sum()) if "time/round" in history else 0.0,
        "sha256": identity.get("sha256"),
        "failure": identity.get("failure"),
        "views": {
            f"{view}/{measure}": last[f"{view}/{measure}"]
            for view in VIEWS
            if f"{view}/{measure}" in last
        },
        "clients": {
            f"{CLIENT}{name.removeprefix(own)}": value
            for name, value in last.items()
            if measure and name.startswith(own)
        },
    }


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _whole(value: Any) -> int:
    return 0 if pd.isna(value) else int(value)


def _is_share(summary: pd.DataFrame) -> bool:
    """Tell whether the score is a share between 0 and 1, which is shown in percent."""
    known = summary["score"].dropna()
    length = any(lower_is_better(str(metric)) for metric in set(summary["metric"].dropna()))
    return not length and bool(((known >= 0) & (known <= 1)).all())


def _spread(mean: float, std: float, percent: bool) -> str:
    if math.isnan(mean):
        return "-"
    factor, digits = (100.0, 2) if percent else (1.0, 4)
    spread = "" if math.isnan(std) else f" ± {factor * std:.{digits}f}"
    return f"{factor * mean:.{digits}f}{spread}"


def _rounds(row: pd.Series[Any]) -> str:
    low, high = row["rounds_min"], row["rounds_max"]
    text = str(high) if low == high else f"{low}-{high}"
    return f"{text} *" if row["stopped"] else text


def scores_by_label(result: SweepResult) -> Iterator[tuple[str, list[float]]]:
    """Yield each setting's label with the scores of its seeds, best first, for the overview figure."""
    table = result.results
    for _, setting in result.summary.iterrows():
        label = result.label(setting)
        same = [result.label(row) == label for _, row in table.iterrows()]
        scores = table[same]["score"].dropna()
        if len(scores):
            yield label, [float(score) for score in scores]
