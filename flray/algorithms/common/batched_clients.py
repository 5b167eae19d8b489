"""Train several clients of one architecture in one step, with stacked parameters and one call per layer for all.

Each client of a block (``aggregation.block``) sees the same batches in the same order as if it were
trained alone; only a kernel's order of summation differs. All clients are at the same step. A
client without further batches is done. Clients with a smaller last batch take that step in a
separate call, so that nothing is padded or masked.
"""

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode

from flray import devices
from flray.algorithms.base import Algorithm, Batch, Client
from flray.algorithms.common.samples import ResidentModel
from flray.config.components import OptimizerChoice
from flray.config.experiment import Experiment
from flray.errors import ConfigError, brief
from flray.tasks.base import Task
from flray.tasks.classification import FewShot

HOOKS = ("train", "train_phase", "begin", "phases", "step", "after_backward")
"""Hooks that a method must not override if its clients are trained in one step."""


def check_batchable(
    config: Experiment, algorithm: Algorithm, task: Task, model: nn.Module, shape: Sequence[int]
) -> None:
    """Refuse, before round 0, settings that rule out training clients in one step.

    Parameters
    ----------
    config : Experiment
        The experiment's settings.
    algorithm : Algorithm
        The method.
    task : Task
        The learning task.
    model : nn.Module
        A network of the federation, not changed.
    shape : sequence of int
        Shape of one sample.

    Raises
    ------
    ConfigError
        If the clients cannot be trained so; the message names the reason and the setting to change.
    """
    count, block = config.local.clients_per_step, config.aggregation.block
    kind, name = type(algorithm), config.algorithm.name
    changed = [hook for hook in HOOKS if getattr(kind, hook) is not getattr(Algorithm, hook)]
    if kind.loss is not Algorithm.loss and not vars(kind).get("vectorised", False):
        changed.append("loss")
    reason = ""
    if changed:
        reason = f"{name} has its own {', '.join(changed)}; set it to 1"
    elif block is None or block < count:
        now = "null" if block is None else block
        reason = f"they are neighbours of one block: set aggregation.block to {count} or more (it is {now})"
    elif not kind.takes_mean_only():
        reason = f"the server of {name} looks at single replies; set it to 1"
    elif isinstance(config.local.optimizer, OptimizerChoice):
        reason = f"{config.local.optimizer} may look at whole tensors, which hold several clients; set it to 1"
    elif config.local.loss is not None:
        reason = (
            "local.loss is computed for one client's batch; set it to 1, or leave local.loss out"
        )
    elif config.local.compile:
        reason = "local.compile holds for one client's batch; set one of the two"
    elif isinstance(task, FewShot):
        reason = "episodes have no fixed shape; set it to 1"
    elif ResidentModel(model, "all", False).random:
        reason = "the network has dropout, whose draws belong to one client; set it to 1, or leave dropout out"
    else:
        try:
            _dry_run(copy.deepcopy(model).to("meta"), shape)
        except Exception as error:
            reason = f"torch.vmap cannot run this network ({brief(error)}); set it to 1"
    if reason:
        raise ConfigError("experiment.local.clients_per_step", str(count), reason)


def train_batched(algorithm: Algorithm, clients: Sequence[Client]) -> list[dict[str, Tensor]]:
    """Train clients of one architecture together, as `Algorithm.train` does one after another.

    Parameters
    ----------
    algorithm : Algorithm
        One that `check_batchable` accepts.
    clients : sequence of Client
        New ones that share a model; the model's values are arbitrary afterwards.

    Returns
    -------
    list of tree
        Each client's parameters and buffers after training; losses and steps are recorded in the
        clients.
    """
    first, done = clients[0], []
    for client in clients:
        algorithm.receive(client)
        client.check()
        done.append(client.snapshot())
    (phase,) = algorithm.phases(first)
    streams = [client.run(phase) for client in clients]
    values = {name: torch.stack([start[name] for start in done]) for name in done[0]}
    weights = {name: nn.Parameter(values.pop(name)) for name in first.parameters}
    optimizer = first.optimizer_for(list(weights.values()))
    loss, left = _Loss(algorithm, first), set(range(len(clients)))
    while True:
        same_size: dict[int, dict[int, Batch]] = defaultdict(dict)
        for i in sorted(left):
            batch, _ = next(streams[i], (None, None))
            if batch is None:
                left.remove(i)  # later steps still change its row, which nobody reads
                done[i] = {
                    name: value[i].detach().clone()
                    for name, value in (*weights.items(), *values.items())
                }
            else:
                same_size[len(batch.y)][i] = batch
        if not left:
            break
        optimizer.zero_grad(set_to_none=True)
        for batches in same_size.values():
            losses = _losses(loss, weights, values, batches, len(clients))
            losses.sum().backward()
            for i, value in zip(batches, losses, strict=True):
                clients[i].record_loss(value)
        if first.local.clip_norm is not None:
            _clip([w.grad for w in weights.values() if w.grad is not None], first.local.clip_norm)
        optimizer.step()
    return done


class _Loss(nn.Module):
    """A method's loss as a function of the client's parameters, for `functional_call`."""

    def __init__(self, algorithm: Algorithm, client: Client) -> None:
        super().__init__()
        self.model, self._algorithm, self._client = client.model, algorithm, client

    def forward(
        self, parameters: dict[str, nn.Parameter], x: Tensor, y: Tensor, batch: Batch
    ) -> Tensor:
        """Return the scalar loss on one client's batch."""
        client = copy.copy(self._client)
        client.resident = copy.copy(client.resident)
        client.resident.parameters = parameters
        return self._algorithm.loss(client, replace(batch, model=self.model, x=x, y=y))


def _losses(
    loss: _Loss,
    weights: Mapping[str, Tensor],
    buffers: dict[str, Tensor],
    batches: Mapping[int, Batch],
    count: int,
) -> Tensor:
    """Return the losses of some clients' batches of one size; their buffers are updated."""
    some = (
        None
        if len(batches) == count
        else devices.to_device(torch.tensor(list(batches)), next(iter(weights.values())).device)
    )
    mine = {name: value if some is None else value[some] for name, value in weights.items()}
    kept = {name: value if some is None else value[some] for name, value in buffers.items()}
    any_batch = next(iter(batches.values()))

    def one(
        parameters: dict[str, Tensor], state: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> Tensor:
        entries = {f"model.{name}": value for name, value in (*parameters.items(), *state.items())}
        result: Tensor = functional_call(loss, entries, (parameters, x, y, any_batch))
        return result

    x, y = (
        torch.stack([getattr(batch, part) for batch in batches.values()]) for part in ("x", "y")
    )
    with BatchNormWithoutCuDNN() if x.is_cuda else nullcontext():
        losses: Tensor = vmap(one)(mine, kept, x, y)
    if some is not None:
        for name, value in kept.items():
            buffers[name][some] = value
    return losses


class BatchNormWithoutCuDNN(TorchFunctionMode):
    """Batch normalisation by torch's own kernels, because cuDNN asks for a memory format that `vmap` does not know."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function."""
        if function is not nn.functional.batch_norm:
            return function(*args, **(kwargs or {}))
        with torch.backends.cudnn.flags(enabled=False):
            return function(*args, **(kwargs or {}))


def _clip(gradients: list[Tensor], limit: float) -> None:
    """Clip each client's gradient to a norm, as `torch.nn.utils.clip_grad_norm_` does for one."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    factors = (limit / (norms + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(factors.view(-1, *[1] * (g.dim() - 1)))


def _dry_run(model: nn.Module, shape: Sequence[int]) -> None:
    """Run a network on the meta device for two clients at once, on shapes alone."""
    entries = {name: torch.stack([value, value]) for name, value in model.state_dict().items()}
    like = next(model.parameters())
    x = torch.empty(2, 2, *shape, dtype=like.dtype, device="meta")
    vmap(lambda state, inputs: functional_call(model.train(), state, (inputs,)))(entries, x)
