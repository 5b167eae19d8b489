"""Learning tasks: the loss that is minimised and the metrics that are reported."""

from collections.abc import Mapping, Sequence

from flray.errors import ConfigError, FlrayError
from flray.tasks.base import Task
from flray.tasks.classification import Binary, Classification
from flray.tasks.few_shot import FewShot
from flray.tasks.segmentation import Segmentation

__all__ = ["NAMES", "Binary", "Classification", "FewShot", "Segmentation", "Task", "make_task"]

NAMES = ("classification", "binary", "segmentation", "few-shot")


def make_task(
    name: str,
    classes: Sequence[str] = (),
    few_shot: Mapping[str, int] | None = None,
    top_k: int | None = None,
) -> Task:
    """Return the task called `name`.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    classes : sequence of str
        Class names, for segmentation the structures'.
    few_shot : mapping, optional
        The settings of `FewShot`.
    top_k : int, optional
        As in `Classification`.

    Raises
    ------
    FlrayError
        If no task has this name, or `top_k` is set for a task without fixed classes.
    """
    if top_k is not None and name in ("segmentation", "few-shot"):
        raise ConfigError(
            "experiment.evaluation.top_k",
            str(top_k),
            f"top-k accuracy needs the logits of fixed classes, and this task is {name}; null",
        )
    if name == "segmentation":
        return Segmentation(classes)
    if name == "few-shot":
        return FewShot(**(few_shot or {}))
    if name not in NAMES:
        raise FlrayError(f"unknown task {name!r}; one of {', '.join(NAMES)}")
    return Binary(top_k) if name == "binary" else Classification(top_k)
