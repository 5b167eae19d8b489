"""APFL: a personal model that is a learned mixture of an own and the global one (Deng, Kamani, Mahdavi, 2020)."""

import torch
from torch import nn

from flray import functional, registry, trees
from flray.algorithms.base import Algorithm, Batch, Client, Message, Predictor, View
from flray.algorithms.common.client_parts import gradient_at, refuse_diverged
from flray.registry import hyper, register_algorithm


@register_algorithm("apfl")
class APFL(Algorithm):
    """FedAvg on w; beside it each client trains its v through the mixture ``alpha v + (1 - alpha) w`` (Algorithm 1).

    In each step, on one batch: g is the loss's gradient at the mixture, ``w <- w - eta grad(w)``
    and ``v <- v - eta alpha g``, with separate optimisers. Once a round, at the first step, ``alpha
    <- clip(alpha - eta <v - w, g>, 0, 1)``. Parameters are mixed, not outputs; batch norm's
    statistics are mixed likewise, v's being those of the mixture's forward passes. The mixture with
    the new w predicts.

    Client state: ``v``, which starts as the initial model, and ``alpha``. With alpha fixed at 1, v
    is `Local`'s model; with alpha fixed at 0 the mixture is w. Whatever alpha, w is FedAvg's.
    """

    class Params(registry.Params):
        alpha: float = hyper(
            0.5,
            "share of the own model at the start",
            "KarhouTam/FL-bench: 0.5; APFL tunes 0.25, 0.5, 0.75; LG-Mix Fig. 2: learned values of 0.5 to 0.6",
            ge=0,
            le=1,
        )
        adaptive: bool = hyper(True, "alpha is learned", "APFL, adaptive alpha; LG-Mix Fig. 2")

    hp: Params
    views = ("personal",)

    def setup(self, client: Client) -> None:
        """Start v as the initial model."""
        client.state.update(v=trees.clone(client.resident.initial), alpha=self.hp.alpha)

    def begin(self, client: Client) -> None:
        """Load v in the model's memory layout, and make its optimiser."""
        v = {
            name: entry.copy_(client.state["v"][name]) for name, entry in client.snapshot().items()
        }
        own = {name: nn.Parameter(v.pop(name)) for name in client.parameters}
        optimizer = client.optimizer_for(list(own.values()))
        client.scratch.update(own=own, buffers=v, optimizer=optimizer)

    def step(self, client: Client, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Step w and v from their values before the step, on the same batch and with the same dropout."""
        own, alpha = client.scratch["own"], client.state["alpha"]
        v, w = {name: value.detach() for name, value in own.items()}, client.weights(frozenset(own))
        gradient, _ = gradient_at(
            client, batch, functional.apfl_mix(v, w, alpha), client.scratch["buffers"]
        )
        if self.hp.adaptive and batch.step == 0:
            slope = functional.apfl_alpha_gradient(v, w, gradient)
            refuse_diverged(client.config, "the gradients of the mixture", torch.tensor(slope))
            client.state["alpha"] = functional.apfl_alpha_step(alpha, slope, client.lr)
        super().step(client, batch, optimizer)
        for name, parameter in own.items():
            parameter.grad = alpha * gradient[name]
        client.clip_gradients(own.values())
        client.scratch["optimizer"].step()

    def report(self, client: Client) -> Message:
        """Keep v; send w."""
        client.state["v"] = {**client.scratch["own"], **client.scratch["buffers"]}
        client.log("apfl/alpha", client.state["alpha"])
        return super().report(client)

    def predictor(self, client: Client, view: View) -> Predictor:
        """Return the mixture of v and the new w."""
        w = client.snapshot()
        client.load(functional.apfl_mix(client.state["v"], w, client.state["alpha"]))
        return super().predictor(client, view)
