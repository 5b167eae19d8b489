"""Settings that have no effect on an experiment, which a reader of its file would think to act: a run says so."""

from collections.abc import Iterator
from functools import reduce

from flray import registry
from flray.federation import FederationSpec
from flray.tasks.classification import FewShot

UNUSED = "settings without effect here: "


def unused_line(spec: FederationSpec) -> str:
    """Return a line on the settings that differ from their defaults and do nothing; empty if there are none.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    """
    found = []
    for path, why in dict(_reasons(spec)).items():
        *parents, last = path.split(".")
        section = reduce(getattr, parents, spec.config)
        value = getattr(section, last)
        if value != type(section).model_fields[last].get_default(call_default_factory=True):
            found.append(f"{path}={getattr(value, 'name', value)} ({why})")
    return f"{UNUSED}{', '.join(found)}" if found else ""


def _reasons(spec: FederationSpec) -> Iterator[tuple[str, str]]:
    """Yield the settings that do nothing beside others of the file, or with its method, and why."""
    config, few_shot = spec.config, isinstance(spec.task, FewShot)
    local, participation, stop = config.local, config.participation, config.stop
    everyone = spec.cohort_size == len(spec.data.clients)
    own = registry.samplers.is_own(participation.sampler.name)
    for path, idle, why in (
        ("local.momentum", local.optimizer in ("adam", "adamw"), "SGD alone has it"),
        ("local.betas", local.optimizer == "sgd", "Adam and AdamW alone have them"),
        ("local.epochs", local.steps is not None, "local.steps counts"),
        (
            "participation.fraction",
            participation.clients is not None,
            "participation.clients counts",
        ),
        ("participation.sampler", everyone and not own, "all clients take part"),
        ("participation.straggler_work", not participation.stragglers, "stragglers is 0"),
        ("local.batch_size", few_shot, "a step has an episode"),
        ("stop.min_delta", stop is not None and stop.patience is None, "stop.patience is null"),
    ):
        if idle:
            yield path, why
    name = config.algorithm.name
    yield from ((path, f"{name} {why}") for path, why in spec.algorithm.unused().items())
