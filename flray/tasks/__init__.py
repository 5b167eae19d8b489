"""Learning tasks, whose modules are all imported here: the loss that is minimised and the metrics that are reported."""

import inspect
from collections.abc import Mapping, Sequence

from flray import registry
from flray.errors import ConfigError, FlrayError
from flray.metrics import lower_is_better
from flray.tasks.base import Task
from flray.tasks.classification import Binary, Classification, FewShot
from flray.tasks.multi_output import Segmentation

__all__ = ["Binary", "Classification", "FewShot", "Segmentation", "Task", "make_task"]


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
        A registered task.
    classes : sequence of str
        Class names, for segmentation the structures', for several columns theirs.
    few_shot : mapping, optional
        The settings of `FewShot`.
    top_k : int, optional
        As in `Classification`.

    Raises
    ------
    FlrayError
        If no task has this name, it is not a task, or `top_k` is set for a task without fixed classes.
    """
    kind = registry.tasks.get(name)
    if not (inspect.isclass(kind) and issubclass(kind, Task)):
        raise FlrayError(f"task {name!r} is no class derived from flray.tasks.Task")
    if kind.loss is Task.loss or (kind.measure, kind.summarise) == (Task.measure, Task.summarise):
        raise FlrayError(f"task {name!r} lacks a method: it needs loss, and measure or summarise")
    wanted = inspect.signature(kind).parameters
    if top_k is not None and "top_k" not in wanted:
        why = f"top-k accuracy needs the logits of fixed classes, and this task is {name}; null"
        raise ConfigError("experiment.evaluation.top_k", str(top_k), why)
    context = {"classes": classes, "structures": classes, "top_k": top_k, **(few_shot or {})}
    with registry.tasks.guarded(name):
        task: Task = kind(**{one: context[one] for one in wanted if one in context})
    task.name = name
    measures = task.measures
    if not measures or any("/" in one for one in measures) or lower_is_better(measures[0]):
        raise FlrayError(
            f"task {name!r} has the measures {', '.join(measures) or 'none'}; it needs names without /, and the first "
            "has to be better the higher it is, which a name that begins or ends with loss or error is not"
        )
    return task
