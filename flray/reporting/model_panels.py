"""Panels of what models know: correlations between classes, and features in the plane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flray.drawing.grids import GridPanel, PointPanel
from flray.federation.diagnostic_files import FINAL_DIAGNOSTICS, INITIAL_DIAGNOSTICS
from flray.results.result_set import Trial

_MAX_CLASS_NAMES, _MIN_POINTS = 30, 10


def correlations(firsts: Mapping[str, Trial]) -> Iterator[GridPanel]:
    """Yield the correlation matrices before the first round and after the last, mean over clients."""
    for label, trial in firsts.items():
        for name, when in ((INITIAL_DIAGNOSTICS, "before"), (FINAL_DIAGNOSTICS, "after")):
            found = trial.diagnostics(name).get("correlation")
            if found is not None:
                mean = np.asarray(found, dtype=float).mean(axis=0)
                rest = mean[~np.eye(len(mean), dtype=bool)]
                gap = f"{when}; diagonal − rest: {float(np.diag(mean).mean() - rest.mean()):.2f}"
                yield GridPanel(label, (), (gap,), mean)


def features(firsts: Mapping[str, Trial]) -> Iterator[PointPanel]:
    """Yield t-SNE of penultimate features with the method's prototypes, or else the class means."""
    for label, trial in firsts.items():
        found = trial.diagnostics()
        points = found.get("features")
        if (
            points is not None
            and points.shape[1] > 1
            and len(points) >= _MIN_POINTS
            and np.isfinite(points).all()
        ):
            yield _embed(found, label)


def _embed(found: Mapping[str, NDArray[Any]], title: str) -> PointPanel:
    # Start-up: scikit-learn takes a second, which a report without features need not spend.
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    points, labels = np.asarray(found["features"], dtype=np.float32), np.asarray(found["labels"])
    present, index = np.unique(labels, return_inverse=True)
    if "prototypes" in found:
        centres = np.asarray(found["prototypes"], dtype=np.float32)[present]
    else:
        centres = np.stack([points[labels == one].mean(axis=0) for one in present])
    everything = np.concatenate([points, centres])
    with threadpool_limits(limits=1):  # several threads on a busy machine take many times as long
        reduced = PCA(min(30, *everything.shape), svd_solver="full").fit_transform(everything)
        plane = TSNE(
            perplexity=min(30.0, (len(everything) - 1) / 3),
            init=reduced[:, :2] / reduced[:, 0].std() * 1e-4,
            random_state=0,
            max_iter=500,
        ).fit_transform(reduced)
    names = list(map(str, present)) if len(present) <= _MAX_CLASS_NAMES else []
    return PointPanel(title, plane[: len(points)], index, plane[len(points) :], names)
