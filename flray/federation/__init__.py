"""The specification of a federation: configuration, data, method and networks, checked before round 0."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from flray import models, registry, trees
from flray.algorithms.base import Algorithm, ClientInfo, Weighting
from flray.algorithms.common.samples import ResidentModel
from flray.config.components import ModelChoice
from flray.config.experiment import Experiment
from flray.config.sections import OwnEpochs
from flray.config.start import Start
from flray.data.types import (
    ClientIndices,
    DataSet,
    FederatedData,
    Images,
    Ints,
    Pooled,
    Rows,
    label_placeholders,
)
from flray.devices import GpuIdentity, check_kinds
from flray.errors import ConfigError
from flray.metrics import primary_metric_name
from flray.tasks import Task, make_task
from flray.tasks.base import WithMetrics

Weights = Mapping[str, Tensor]
FIELD = "experiment.start"


def read_start(start: Start | None) -> dict[str, Weights]:
    """Return the weights of ``experiment.start`` by architecture; those of a plain file under no name.

    Parameters
    ----------
    start : Start or None
        The file, with its digest.

    Raises
    ------
    ConfigError
        If it is gone, is not the one that was there when the run began, or holds no weights.
    """
    if start is None:
        return {}
    path, data = Path(start.weights), start.read(FIELD)
    try:
        with suppress(KeyError):  # a run's checkpoint is a tree
            return dict(trees.from_bytes(data)["models"])
        return {"": safetensors.torch.load(data)}
    except (ValueError, SafetensorError):
        raise ConfigError(
            FIELD, str(path), "it holds no weights; a safetensors file is needed"
        ) from None


def load_start(model: nn.Module, key: str, start: Mapping[str, Weights]) -> None:
    """Copy the weights that training starts from into a fresh network; what they lack stays fresh.

    Parameters
    ----------
    model : nn.Module
        The network, changed in place.
    key : str
        Its architecture. Of several weights those of that name are taken, or the only ones that fit: networks that
        differ in options alone are numbered in the order of their clients, which the seed may deal.
    start : mapping of str to mapping
        From `read_start`; empty for none.

    Raises
    ------
    ConfigError
        If they are another network's.
    """
    if not start:
        return
    entries = model.state_dict()
    shapes = {name: value.shape for name, value in entries.items()}
    misfits = {
        name: [entry for entry, value in weights.items() if shapes.get(entry) != value.shape]
        for name, weights in start.items()
    }
    fitting = [name for name, wrong in misfits.items() if not wrong]
    chosen = fitting[0] if key not in fitting and len(fitting) == 1 else key
    if chosen not in start and len(start) > 1:
        raise ConfigError(FIELD, ", ".join(start), f"none is called {key}, as a network here is")
    chosen = chosen if chosen in start else next(iter(start))
    for name in misfits[chosen]:
        has = f"has {tuple(shapes[name])}" if name in shapes else "has none"
        why = f"{key} {has}: weights of the same network are needed"
        raise ConfigError(FIELD, f"{name} of shape {tuple(start[chosen][name].shape)}", why)
    trees.copy_into(entries, start[chosen])


EVAL_CHUNK, EVAL_TASK = 2048, 512
"""Samples of the common test set whose batches are cut together, and of an evaluation task, if batches are no larger.

They are fixed, so that results do not depend on the workers."""


@dataclass(frozen=True)
class SharedDataset:
    """A loaded data set that several federations use; its large arrays are in `samples` only.

    Attributes
    ----------
    outline : DataSet
        Names, labels and statistics; its images are empty.
    samples : Pooled
        All samples, once.
    fingerprint : str
        The data set's.
    """

    outline: DataSet
    samples: Pooled
    fingerprint: str

    @classmethod
    def of(cls, dataset: DataSet) -> "SharedDataset":
        """Split a data set into its outline and its samples."""
        domains = tuple(
            replace(
                d,
                train_x=d.train_x[:0],
                test_x=d.test_x[:0],
                train_y=label_placeholders(d.train_y),
                test_y=label_placeholders(d.test_y),
            )
            for d in dataset.domains
        )
        return cls(
            replace(dataset, domains=domains, public=None), Pooled.of(dataset), dataset.fingerprint
        )


@dataclass(frozen=True)
class FederationSpec:
    """The resolved experiment; immutable and identical in every process.

    Attributes
    ----------
    config : Experiment
        The experiment.
    data : FederatedData
        All samples and their assignment to clients.
    algorithm : Algorithm
        The method with its hyper-parameters.
    architectures : dict of str to ModelChoice
        Networks by key.
    architecture_of : tuple of str
        Each client's key.
    components : dict
        The user's components that client tasks need, by kind; other processes receive them.
    start : dict
        Weights that training starts from, by architecture; see `flray.federation`.
    """

    config: Experiment
    data: FederatedData
    algorithm: Algorithm
    architectures: dict[str, ModelChoice]
    architecture_of: tuple[str, ...]
    components: dict[str, dict[str, Any]] = field(default_factory=dict)
    start: dict[str, Weights] = field(default_factory=dict)

    @cached_property
    def task(self) -> Task:
        """The learning task: loss and metrics."""
        few_shot = {**self.config.episodes.model_dump(), "seed": self.config.seed}
        top_k = self.config.evaluation.top_k
        task = make_task(self.data.task, self.data.classes, few_shot, top_k)
        added = [(one.name, one.options) for one in self.config.evaluation.metrics]
        return WithMetrics(task, added) if added else task

    @property
    def repeatable(self) -> dict[str, bool]:
        """The settings that `flray.devices.make_repeatable` takes."""
        precision, bits = self.config.local.precision, self.config.resources.bits
        return {"tf32": precision == "tf32", "fast": bits == "fast"}

    def check_gpus(self, found: Sequence[GpuIdentity]) -> str:
        """Check the GPUs that the federation computes on, see `flray.devices.check_kinds`."""
        resources = self.config.resources
        return check_kinds(found, resources.gpu_model, self.config.local.precision, resources.bits)

    @cached_property
    def with_statistics(self) -> frozenset[str]:
        """Architectures whose clients have personal running statistics (BatchNorm), which no other model learns."""
        local, shared = self.config.aggregation.buffers == "local", self.algorithm.shared
        if shared == "all" and not local:
            return frozenset()
        residents = {
            key: ResidentModel(self.build(key), shared, local) for key in self.architectures
        }
        return frozenset(
            key
            for key, resident in residents.items()
            for name in resident.personal
            if resident.entries[name].is_floating_point()
            and not isinstance(resident.entries[name], nn.Parameter)
        )

    @property
    def has_common(self) -> bool:
        """Whether the global model can be tested as it is, or else only with a client's own statistics."""
        return "global" in self.algorithm.views and not self.with_statistics

    @property
    def has_one_common(self) -> bool:
        """Whether this model is the same for all clients, or else one of each network."""
        return self.has_common and len(self.architectures) == 1

    @property
    def primary_metric(self) -> str:
        """Name of the method's primary metric, which reports and comparisons use."""
        return primary_metric_name(
            self.algorithm.views, self.task.measures[0], common=self.has_one_common
        )

    @property
    def weighting(self) -> Weighting:
        """Weights of the mean: as set, or as the method declares."""
        declared = self.config.aggregation.weights
        return self.algorithm.weighting if declared == "method" else declared

    def register_components(self) -> None:
        """Register the user's components in this process, before anything is built in it."""
        for kind, entries in self.components.items():
            registry.ALL[kind].add(entries)

    def build(self, key: str) -> nn.Module:
        """Return an architecture's network, untrained, as the method trains it: bitwise the same in every process."""
        choice = self.architectures[key]
        dtype = torch.float64 if self.config.local.precision == "float64" else torch.float32
        network = models.build(
            choice.name,
            self.data.shape,
            self.data.num_classes,
            choice.options,
            self.config.seed,
            dtype,
        )
        made = self.algorithm.network(self.task.network(network))
        load_start(made, key, self.start)
        return made

    def without_samples(self, public: Images | None = None) -> "FederationSpec":
        """Return the specification without its large arrays, which are sent separately, but with public samples."""
        data = self.data
        empty = np.empty((0, *data.x.shape[1:]), data.x.dtype)
        return replace(
            self, data=replace(data, x=empty, y=label_placeholders(data.y), public=public)
        )

    def with_samples(self, samples: Pooled) -> "FederationSpec":
        """Return the specification with its large arrays, not copied."""
        return replace(
            self, data=replace(self.data, x=samples.x, y=samples.y, public=samples.public)
        )

    def training_rows(self, client: int) -> Ints:
        """Return the rows that a client's task trains on: the client's, or all clients' if the method pools them."""
        if not self.algorithm.pools or client >= len(self.data.clients):
            return self.data.everyone[client].train
        return np.sort(np.concatenate([one.train for one in self.data.clients]))

    def evaluation_chunks(self, rows: Rows) -> list[Rows]:
        """Return rows in the parts that evaluation tasks of a global model test: whole batches of a chunk."""
        batch = self.config.evaluation.batch_size
        size = batch * max(1, EVAL_TASK // batch)
        return [
            chunk[start : start + size]
            for chunk in (rows[at : at + EVAL_CHUNK] for at in range(0, len(rows), EVAL_CHUNK))
            for start in range(0, len(chunk), size)
        ]

    @cached_property
    def evaluated(self) -> list[Rows]:
        """The rows of each evaluation task of a global model: the common test set, then all validation parts."""
        data = self.data
        return [*self.evaluation_chunks(data.test), *self.evaluation_chunks(data.validation)]

    @property
    def cohort_size(self) -> int:
        """Clients sampled in each round."""
        participation = self.config.participation
        if participation.clients is not None:
            return participation.clients
        return round(participation.fraction * len(self.data.clients))


def work_share(config: Experiment, client: ClientInfo | ClientIndices) -> float:
    """Return the share of the local steps that a client does when it is not slow."""
    work = config.participation.work
    own = work.get(client.name, work.get(client.domain, 1.0))
    return own.epochs / config.local.epochs if isinstance(own, OwnEpochs) else own


def partition_summary(data: FederatedData) -> dict[str, Any]:
    """Return the number of training samples by client and class, and the data's fingerprints, as JSON values."""
    classes, counts = data.class_table()
    return {
        "dataset": data.dataset,
        "classes": list(classes),
        "has_classes": data.has_classes,
        **data.words,
        "origins": dict(data.origins),
        "fingerprints": {"data": data.fingerprint, "partition": data.partition_fingerprint},
        "clients": [
            {
                "name": client.name,
                "domain": client.domain,
                "test": len(client.test),
                "train": counts[k].tolist(),
            }
            for k, client in enumerate(data.clients)
        ],
    }
