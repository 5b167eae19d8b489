"""The trained models of a run: the global ones, and the one that each client is tested with."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flray import trees
from flray.algorithms.types import Predictor
from flray.errors import FlrayError, nearest
from flray.federation import FederationSpec
from flray.federation.building import build_spec
from flray.federation.evaluation import personal_tasks
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import ClientRunner, InlineExecutor
from flray.files import storage
from flray.records import directory
from flray.runs import resume_checks
from flray.runs.code import changed_files


class TrainedModels:
    """The models of a run's newest checkpoint.

    Parameters
    ----------
    folder : Path
        The folder of a run or of a sweep's trial.
    plugins : sequence of str
        Your files that replace those that the settings name; see
        `flray.runs.resume_checks.load_config`.

    Attributes
    ----------
    spec : FederationSpec
        The experiment: data, networks, clients.
    round : int
        Rounds done.

    Raises
    ------
    FlrayError
        If it has no checkpoint, its data are not those it was trained on, or the user's files have changed since and
        none are named.
    """

    def __init__(self, folder: Path, plugins: Sequence[str] = ()) -> None:
        changed = [] if plugins else changed_files(directory.read(folder).get("code") or {})
        if changed:
            raise FlrayError(
                f"{folder}: {', '.join(changed)} changed since this was run (SHA-256), so the network may be another "
                "one; put it back, or give the file that holds: flray export ... --plugin FILE.py"
            )
        self.spec: FederationSpec = build_spec(
            resume_checks.load_config(folder, plugins).experiment
        )
        self._device = torch.device("cpu")
        federation = Federation(
            self.spec,
            InlineExecutor(self.spec, self._device),
            lambda line: None,  # a method's notes belong to the run
            self._device,
        )
        with contextlib.closing(federation), checkpoint_of(folder) as place:
            self.round = federation.restore(place)
            if self.round == 0:
                raise FlrayError(
                    f"{folder}: it has no checkpoint, so no model; go on with flray resume {folder}"
                )
            self._global = dict(federation.server.models)
            self._tasks = personal_tasks(federation) if self.personal else []

    @property
    def clients(self) -> list[str]:
        """Names of the clients, in order."""
        return [client.name for client in self.spec.data.clients]

    @property
    def personal(self) -> bool:
        """Whether each client has a personal model, or the global one with personal statistics."""
        return "personal" in self.spec.algorithm.views or not self.spec.has_common

    def global_models(self) -> dict[str, nn.Module]:
        """Return the global model of each architecture, in eval mode.

        Raises
        ------
        FlrayError
            If the method has none.
        """
        name = self.spec.config.algorithm.name
        if not self.spec.has_common:
            lacks = (
                "running statistics: they are the clients' own (aggregation.buffers: local)"
                if "global" in self.spec.algorithm.views
                else "global model"
            )
            raise FlrayError(
                f"{name} has no {lacks}; name a client: one of {', '.join(self.clients)}"
            )
        return {key: self._built(key, values) for key, values in self._global.items()}

    def client_model(self, client: str) -> nn.Module:
        """Return the model that a client is tested with, in eval mode: personal, or global for its architecture.

        If a method scores with more than one network, the module's ``forward`` combines them as the
        method does.

        Raises
        ------
        FlrayError
            If the client does not exist.
        """
        if client not in self.clients:
            raise FlrayError(
                f"no client {client!r}{nearest(client, self.clients)}; one of {', '.join(self.clients[:20])}"
            )
        number = self.clients.index(client)
        architecture = self.spec.architecture_of[number]
        if not self.personal:
            return self.global_models()[architecture]
        # A new one: what it returns holds until its next task.
        runner = ClientRunner(self.spec, self._device)
        job = self._tasks[number]
        before = torch.get_num_threads()
        with torch.random.fork_rng(devices=[]):
            found, predictor = runner.personal_model(job)
            torch.set_num_threads(before)
            if predictor is found.model:
                return self._built(architecture, found.weights(frozenset(found.resident.entries)))
            return Scoring(predictor).eval()

    def _built(self, architecture: str, values: dict[str, Tensor]) -> nn.Module:
        model = self.spec.build(architecture)
        entries = model.state_dict(keep_vars=True)
        trees.copy_into(entries, {name: values[name] for name in entries})
        return model.eval()


def trained_model(folder: Path, client: str | None = None) -> nn.Module:
    """Return a model of a run or trial; see `flray.runs.runner.Result.model`."""
    models = TrainedModels(folder)
    if client is not None:
        return models.client_model(client)
    found = models.global_models()
    if len(found) > 1:
        raise FlrayError(
            f"there are {len(found)} global models, {', '.join(found)}; name a client: one of "
            f"{', '.join(models.clients)}"
        )
    return next(iter(found.values()))


class Scoring(nn.Module):
    """The scoring function of a method that scores with more than its network; the networks are children.

    Parameters
    ----------
    predictor : callable
        Maps a batch of inputs to outputs.
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self._predictor = (predictor,)  # a tuple: no child of its own
        for name, part in _modules_of(predictor):
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for a batch."""
        return self._predictor[0](x)


def _modules_of(predictor: Any) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(predictor, nn.Module):
        yield "network", predictor
        return
    for name, cell in zip(predictor.__code__.co_freevars, predictor.__closure__ or (), strict=True):
        content = cell.cell_contents
        if isinstance(content, nn.Module):
            yield name, content
        elif isinstance(content, list | tuple) and all(isinstance(m, nn.Module) for m in content):
            yield from ((f"{name}_{place}", part) for place, part in enumerate(content))


@contextlib.contextmanager
def checkpoint_of(folder: Path) -> Iterator[Path]:
    """Yield the folder of a run's or trial's checkpoints."""
    if folder.parent.name != directory.TRIALS:
        yield folder / directory.CHECKPOINT
        return
    sweep = folder.parent.parent
    output = directory.read_config(folder)["experiment"].get("output", "runs")
    base = directory.remote_uri(sweep, output) or str(sweep)
    newest = next(iter(directory.checkpoints(f"{base}/{directory.TUNE}", folder.name)), None)
    if newest is None:
        raise FlrayError(f"{folder}: the trial's checkpoint is gone; run it again")
    with storage.local_folder(newest.uri) as place:
        yield place
