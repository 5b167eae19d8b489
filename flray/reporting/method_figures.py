"""Figures of what methods do inside: weights, discrepancies, correlations, distances, features, the partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flray.federation.diagnostics import FINAL_DIAGNOSTICS, INITIAL_DIAGNOSTICS
from flray.reporting import charts
from flray.reporting.html_text import escape
from flray.results import measures
from flray.results.result_set import ResultSet, Trial

Figure = tuple[str, str, str]
Groups = Mapping[str, Mapping[str, Sequence[Trial]]]
_TRACKED = (
    (
        "train/lgmix/lambda",
        "Mixing ratio λ of LG-Mix",
        "Each client's λ in the update of its personal model: 1 is its "
        "own update alone, 0 the global one.",
    ),
    (
        "fedskc/e_k",
        "Aggregation weights of FedSKC (GDA)",
        "Each client's weight e_k in the average; gaps are rounds without it.",
    ),
    (
        "fedskc/d_k",
        "Discrepancies of FedSKC",
        "Each client's distance d_k of its knowledge from the global one.",
    ),
)
_MOST_LINES, _MOST_PARTITIONS, _MOST_MAPS, _MOST_CLASSES = 24, 6, 9, 30


def figures(source: ResultSet, groups: Groups) -> Iterator[Figure]:
    """Yield what was tracked; of what was not, nothing."""
    yield from _partitions(source)
    for name, title, caption in _TRACKED:
        plots = [
            plot
            for group, settings in groups.items()
            for label, trials in settings.items()
            if (plot := _by_client(trials, name, f"{group} · {label}" if group else label))
        ]
        if plots:
            shown = max(
                (
                    measures.clients(trials[0], name)
                    for s in groups.values()
                    for trials in s.values()
                ),
                key=len,
            )
            first = any(
                measures.comparable_trials(trials) is not trials
                for s in groups.values()
                for trials in s.values()
            )
            yield (
                title,
                charts.legend(shown[:_MOST_LINES]) + f'<div class="plots">{"".join(plots)}</div>',
                f"{caption} {'First seed.' if first else 'Mean over seeds.'}",
            )
    firsts = [
        (f"{group} · {label}" if group else label, trials[0])
        for group, settings in groups.items()
        for label, trials in settings.items()
    ]
    for make in (_distances, _correlations, _features):
        made = make(firsts)
        if made is not None:
            yield made


def _partitions(source: ResultSet) -> Iterator[Figure]:
    """Draw each partition once: those of the first seed."""
    seen: dict[str, str] = {}
    first = source.trials[0].seed
    for trial in source.trials:
        found = trial.partition
        if (
            found is not None
            and trial.seed == first
            and str(found["clients"]) not in seen
            and len(seen) < _MOST_PARTITIONS
        ):
            where = [
                name for name in trial.setting if "method" not in name and "algorithm" not in name
            ]
            name = " · ".join(str(trial.setting[one]) for one in where if one in source.varying())
            seen[str(found["clients"])] = _bubbles(found, name or found["dataset"])
    if seen:
        yield (
            "Who holds what",
            f'<div class="plots">{"".join(seen.values())}</div>',
            f"Training samples by client and class at seed {first}: the area of a bubble is their "
            f"number; colours "
            "are domains.",
        )


def _bubbles(found: Mapping[str, Any], title: str) -> str:
    counts = np.array([client["train"] for client in found["clients"]], dtype=float)
    clients, classes = counts.shape
    domains = list(dict.fromkeys(client["domain"] for client in found["clients"]))
    names = [client["name"] for client in found["clients"]]
    named, listed = clients <= 30, classes <= 50
    plot = charts.Plot(
        (-0.7, clients - 0.3),
        (-0.7, classes - 0.3),
        "" if named else "client",
        "" if listed else "class",
        f"{title} (largest {int(counts.max())})",
        height=90 + min(420, max(120, 15 * classes)),
        x_names=names if named else None,
        y_names=list(map(str, found["classes"])) if listed else None,
    )
    (x0, _), (x1, _) = plot.at(0, 0), plot.at(1, 0)
    (_, y0), (_, y1) = plot.at(0, 0), plot.at(0, 1)
    largest = 0.55 * min(abs(x1 - x0), abs(y1 - y0))
    for k, label in zip(*np.nonzero(counts), strict=True):
        size = max(0.7, largest * float(np.sqrt(counts[k, label] / counts.max())))
        plot.dot(
            float(k),
            float(label),
            domains.index(found["clients"][k]["domain"]),
            f"{names[k]}, {found['classes'][label]}: {int(counts[k, label])}",
            size,
        )
    return plot.svg()


def _by_client(every: Sequence[Trial], name: str, title: str) -> str:
    """Draw a metric of every client over the rounds, with gaps where it was not measured."""
    trials = measures.comparable_trials(every)
    names = measures.clients(trials[0], name)[:_MOST_LINES]
    lines: list[list[tuple[float, float]]] = []
    rounds = sorted({float(one) for trial in trials for one in trial.history["round"]})
    for client in names:
        column = f"{name}/client/{client}"
        found = [
            pd.Series(trial.history[column].to_numpy(dtype=float), index=trial.history["round"])
            for trial in trials
            if column in trial.history
        ]
        mean = pd.concat(found, axis=1).mean(axis=1).dropna()
        lines.append(list(zip(mean.index.astype(float), mean.astype(float), strict=True)))
    points = [point for line in lines for point in line]
    if not points:
        return ""
    plot = charts.Plot(
        charts.padded_range([x for x, _ in points], 0.02),
        charts.padded_range([y for _, y in points]),
        "round",
        name.rpartition("/")[2],
        title,
        whole=True,
    )
    for k, (client, line) in enumerate(zip(names, lines, strict=True)):
        for part in _continuous(line, rounds):
            plot.line(part, k, client)
    return plot.svg()


def _continuous(
    line: Sequence[tuple[float, float]], rounds: Sequence[float]
) -> Iterator[list[tuple[float, float]]]:
    """Yield the parts of a line that miss no round."""
    part: list[tuple[float, float]] = []
    for point in line:
        if part and rounds.index(point[0]) != rounds.index(part[-1][0]) + 1:
            yield part
            part = []
        part.append(point)
    if part:
        yield part


def _distances(firsts: Sequence[tuple[str, Trial]]) -> Figure | None:
    plots: list[str] = []
    clients: list[str] = []
    for label, trial in firsts:
        found = trial.diagnostics()
        distance = found.get("distance")
        if distance is None or not np.isfinite(distance).all() or float(distance.max()) <= 0:
            continue
        names = [str(name).removeprefix("features.") for name in found["layers"]]
        plot = charts.Plot(
            (-0.5, len(names) - 0.5),
            (0.0, float(distance.max()) * 1.08),
            "",
            "relative distance",
            label,
            x_names=names,
            height=300,
        )
        for k, row in enumerate(distance):
            plot.line(
                [(float(i), float(value)) for i, value in enumerate(row)], k, str(found["names"][k])
            )
        clients = max(clients, [str(name) for name in found["names"]], key=len)
        plots.append(plot.svg())
    if not plots:
        return None
    return (
        "Personal and global models, layer by layer",
        charts.legend(clients) + f'<div class="plots">{"".join(plots)}</div>',
        "Distance of each client's parameters from those it received, divided by their norm, at "
        "the end "
        "of the first seed's run; of layers that never travel, from the initial ones. Settings "
        "whose clients have "
        "the global model are left out.",
    )


def _correlations(firsts: Sequence[tuple[str, Trial]]) -> Figure | None:
    parts = []
    for label, trial in firsts[:_MOST_MAPS]:
        pair = ""
        for name, when in ((INITIAL_DIAGNOSTICS, "before"), (FINAL_DIAGNOSTICS, "after")):
            found = trial.diagnostics(name).get("correlation")
            if found is not None:
                mean = np.asarray(found, dtype=float).mean(axis=0)
                gap = float(np.diag(mean).mean() - mean[~np.eye(len(mean), dtype=bool)].mean())
                pair += f"<div>{when}{charts.matrix(mean, f'{label}, {when}')}diagonal − rest: {gap:.2f}</div>"
        if pair:
            parts.append(f'<div class="pair"><b>{escape(label)}</b>{pair}</div>')
    if not parts:
        return None
    return (
        "Correlation between classes",
        f'<div class="matrices">{"".join(parts)}</div>',
        "FCCL+ Eq. 1: correlation, over samples that all clients see, of each class's logit at a "
        "client with each "
        "class's mean logit of all clients; averaged over the clients, before the first round and "
        "after the last "
        "of the first seed's run. Blue: positive, orange: negative.",
    )


def _features(firsts: Sequence[tuple[str, Trial]]) -> Figure | None:
    plots = []
    for label, trial in firsts[:_MOST_MAPS]:
        found = trial.diagnostics()
        features = found.get("features")
        if (
            features is not None
            and features.shape[1] > 1
            and len(features) >= 10
            and np.isfinite(features).all()
        ):
            plots.append(_map(found, label))
    if not plots:
        return None
    return (
        "Features",
        f'<div class="plots">{"".join(plots)}</div>',
        "t-SNE of penultimate features of test samples, each under its own client's model, first "
        "seed; colours are "
        "classes. Diamonds: the method's prototypes where it has them, otherwise class means.",
    )


def _map(found: Mapping[str, Any], label: str) -> str:
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    features, labels = np.asarray(found["features"], dtype=np.float32), np.asarray(found["labels"])
    present = np.unique(labels)
    if "prototypes" in found:
        centres = np.asarray(found["prototypes"], dtype=np.float32)[present]
    else:
        centres = np.stack([features[labels == one].mean(axis=0) for one in present])
    everything = np.concatenate([features, centres])
    with threadpool_limits(limits=1):  # several threads on a busy machine take many times as long
        size = min(30, *everything.shape)
        reduced = PCA(size, svd_solver="full").fit_transform(everything)
        flat = TSNE(
            perplexity=min(30.0, (len(everything) - 1) / 3),
            init=reduced[:, :2] / reduced[:, 0].std() * 1e-4,
            random_state=0,
            max_iter=500,
        ).fit_transform(reduced)
    plot = charts.Plot(
        charts.padded_range(flat[:, 0]),
        charts.padded_range(flat[:, 1]),
        "",
        "",
        label,
        height=330,
        x_names=(),
        y_names=(),
    )
    colours = {
        int(one): f"hsl({round(360 * k / len(present))} 62% {(48, 60)[k % 2]}%)"
        for k, one in enumerate(present)
    }
    clients = found["names"][found["client"]]
    for (x, y), one, client in zip(flat[: len(features)], labels, clients, strict=True):
        plot.dot(
            float(x),
            float(y),
            0,
            f"class {one}, {client}",
            2.4,
            f' style="fill:{colours[int(one)]}"',
        )
    for (x, y), one in zip(flat[len(features) :], present, strict=True):
        plot.diamond(
            float(x),
            float(y),
            f"fill:{colours[int(one)]}",
            f"class {one}",
            str(one) if len(present) <= _MOST_CLASSES else "",
        )
    return plot.svg()
