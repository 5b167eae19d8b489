"""SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020, Algorithm 1)."""

from typing import Literal

import torch
from torch import Tensor

from flray import functional, registry
from flray.algorithms.base import Algorithm, Batch, Client, Message, Replies, Server
from flray.algorithms.common.aggregation import average
from flray.config.experiment import Experiment
from flray.errors import ConfigError
from flray.registry import hyper, register_algorithm
from flray.trees import Weights


@register_algorithm("scaffold")
class Scaffold(Algorithm):
    """Every local gradient is corrected by ``c - c_i``; control variates cover parameters, never buffers.

    Server state: ``c`` (zero at first). Client state: ``c_i`` (zero at first), kept while a client
    is not sampled. Weight decay counts as a part of the client's objective.
    """

    class Params(registry.Params):
        server_lr: float = hyper(
            1.0,
            "step of the server along the mean update",
            "SCAFFOLD, experiments: eta_g = 1",
            gt=0,
        )
        option: Literal["I", "II"] = hyper(
            "II",
            "new c_i: I, the gradient at the received weights (one more pass); II, the mean of the round's steps",
            "SCAFFOLD, experiments: option II",
        )

    hp: Params
    needs = frozenset({"homogeneous"})
    averages_waited = True
    sent = ("c",)
    weighting = "uniform"

    def check(self, config: Experiment) -> None:
        """Refuse optimisers whose displacement is not a multiple of the mean gradient, as option II assumes."""
        local = config.local
        if self.hp.option == "II" and (local.optimizer != "sgd" or local.momentum):
            found = (
                f"momentum {local.momentum:g}" if local.optimizer == "sgd" else str(local.optimizer)
            )
            why = "scaffold's option II holds for plain SGD only; set momentum: 0 and optimizer: "
            why += "sgd, or algorithm.option: I"
            raise ConfigError("experiment.local", found, why)

    def server_setup(self, server: Server) -> None:
        """Start from c = 0."""
        names = server.parameter_names[next(iter(server.models))]
        server.state["c"] = {
            name: torch.zeros_like(w) for name, w in server.model.items() if name in names
        }

    def setup(self, client: Client) -> None:
        """Start from c_i = 0."""
        client.state["c"] = {name: torch.zeros_like(w) for name, w in client.parameters.items()}

    def begin(self, client: Client) -> None:
        """Fix the round's correction; for option I also the gradient at the received weights."""
        c, c_i = client.message["c"], client.state["c"]
        client.scratch["correction"] = {name: c[name] - c_i[name] for name in c}
        if self.hp.option == "I":
            client.scratch["gradient"] = mean_gradient(client)

    def after_backward(self, client: Client, batch: Batch) -> None:
        """Correct the gradient: g + c - c_i."""
        for name, w in client.parameters.items():
            if w.grad is not None:
                w.grad.add_(client.scratch["correction"][name])

    def report(self, client: Client) -> Message:
        """Keep the new c_i and send its change beside the weights."""
        c, c_i, received = client.message["c"], client.state["c"], client.message["weights"]
        new: Weights = c_i
        if self.hp.option == "I":
            new = client.scratch["gradient"]
        elif client.steps:
            start, end = {name: received[name] for name in c}, client.weights(frozenset(c))
            new = functional.control_variate(c_i, c, start, end, client.steps * client.lr)
        client.state["c"] = new
        return {**super().report(client), "c": {name: new[name] - c_i[name] for name in c}}

    def after_average(self, server: Server, replies: Replies) -> None:
        """Move c by the sum of the changes over all N clients, sampled or not."""
        for change in average(replies, lambda reply: 1.0, "c").values():
            share = len(replies) / len(server.clients)
            server.state["c"] = {
                name: value + share * change[name] for name, value in server.state["c"].items()
            }

    def apply(self, server: Server, architecture: str, mean: Weights) -> None:
        """Step along the mean update: w + eta_g (mean - w); floating buffers are averaged."""
        w, parameters = server.models[architecture], server.parameter_names[architecture]
        stepped = {
            name: torch.lerp(w[name], mean[name], self.hp.server_lr)
            for name in mean
            if name in parameters
        }
        super().apply(server, architecture, {**mean, **stepped})


def mean_gradient(client: Client) -> dict[str, Tensor]:
    """Return the gradient of the task's loss over the client's training data at the current weights, in eval mode."""
    client.model.eval()
    sums = {name: torch.zeros_like(w) for name, w in client.parameters.items()}
    for x, y in client.train.in_order(client.config.evaluation.batch_size):
        loss = client.task.loss(client.model(x), y) * (len(y) / len(client.train))
        for name, gradient in zip(
            sums, torch.autograd.grad(loss, list(client.parameters.values())), strict=True
        ):
            sums[name] += gradient
    return sums
