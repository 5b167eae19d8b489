"""FedOpt: the mean update as a gradient for a server optimiser (Reddi et al., ICLR 2021; FedAvgM: Hsu et al., 2019)."""

from typing import Literal

import torch

from flray import functional
from flray.algorithms.base import Algorithm, Server
from flray.algorithms.common.variants import require
from flray.registry import Params, hyper, register_algorithm
from flray.trees import Weights

Form = Literal["avgm", "adagrad", "adam", "yogi"]


class FedOptParams(Params):
    """Hyper-parameters of all four forms; null stands for the form's own value."""

    server_optimizer: Form = hyper(
        "adam",
        "the server's optimiser",
        "a decision: FedSKC's table says FedOPT without naming the form",
    )
    server_lr: float | None = hyper(
        None,
        "eta, the server's step; null: 0.1, for avgm 1",
        "0.1 as in adap/flower, within the range tuned by Reddi et al.; avgm: Hsu et al.",
        gt=0,
    )
    beta1: float | None = hyper(
        None,
        "decay of the first moment; null: 0.9, for adagrad 0",
        "Reddi et al., experiments; avgm: Hsu et al.",
        ge=0,
        lt=1,
    )
    beta2: float = hyper(
        0.99, "decay of the second moment (adam, yogi)", "Reddi et al., experiments", ge=0, lt=1
    )
    tau: float = hyper(
        1e-3, "added to the root of the second moment", "Reddi et al., experiments", gt=0
    )
    initial: float | None = hyper(
        None,
        "second moment before round 1; null: tau squared",
        "Reddi et al. Algorithm 2: v_{-1} >= tau^2",
        ge=0,
    )

    def resolved(self) -> "FedOptParams":
        """Fill in the form's own values."""
        form = self.server_optimizer
        return self.filled(
            server_lr=1.0 if form == "avgm" else 0.1,
            beta1=0.0 if form == "adagrad" else 0.9,
            initial=self.tau**2,
        )


@register_algorithm("fedopt")
class FedOpt(Algorithm):
    """Clients as in FedAvg; the server's optimiser steps along the mean update Delta (minus the pseudo-gradient).

    Adagrad, Adam and Yogi: ``m <- beta1 m + (1 - beta1) Delta``, v by each optimiser's rule, then
    ``w <- w + eta m / (sqrt(v) + tau)``, without bias correction. FedAvgM: ``m <- beta1 m +
    Delta``, ``w <- w + eta m``. Floating buffers are averaged. Server state, per architecture:
    ``m`` and ``v``, in float64.
    """

    Params = FedOptParams
    hp: FedOptParams

    def server_setup(self, server: Server) -> None:
        """Start from m = 0 and the initial v."""
        for moment, value in (("m", 0.0), ("v", require(self.hp.initial))):
            server.state[moment] = {
                key: {
                    name: torch.full_like(w, value, dtype=torch.float64)
                    for name, w in weights.items()
                    if name in server.parameter_names[key]
                }
                for key, weights in server.models.items()
            }

    def apply(self, server: Server, architecture: str, mean: Weights) -> None:
        """Step every parameter."""
        hp, state, weights = self.hp, server.state, server.models[architecture]
        m, v = state["m"][architecture], state["v"][architecture]
        lr, beta1 = require(hp.server_lr), require(hp.beta1)
        delta = {name: mean[name].double() - weights[name].double() for name in m}
        if hp.server_optimizer == "avgm":
            step, m = functional.momentum_step(delta, m, lr, beta1)
        else:
            step, m, v = functional.adaptive_step(
                delta, m, v, hp.server_optimizer, lr, beta1, hp.beta2, hp.tau
            )
        state["m"], state["v"] = {**state["m"], architecture: m}, {**state["v"], architecture: v}
        stepped = {
            name: (weights[name].double() + step[name]).to(weights[name].dtype) for name in step
        }
        super().apply(server, architecture, {**mean, **stepped})


@register_algorithm("fedavgm")
class FedAvgM(FedOpt):
    """FedAvgM: FedOpt with momentum at the server (Hsu et al., 2019)."""

    class Params(FedOptParams):
        server_optimizer: Literal["avgm"] = hyper(
            "avgm", "the server's optimiser", "Hsu et al., 2019"
        )


@register_algorithm("fedadagrad")
class FedAdagrad(FedOpt):
    """FedAdagrad: FedOpt with Adagrad at the server (Reddi et al., ICLR 2021)."""

    class Params(FedOptParams):
        server_optimizer: Literal["adagrad"] = hyper(
            "adagrad", "the server's optimiser", "Reddi et al. Algorithm 2"
        )


@register_algorithm("fedadam")
class FedAdam(FedOpt):
    """FedAdam: FedOpt with Adam at the server (Reddi et al., ICLR 2021)."""

    class Params(FedOptParams):
        server_optimizer: Literal["adam"] = hyper(
            "adam", "the server's optimiser", "Reddi et al. Algorithm 2"
        )


@register_algorithm("fedyogi")
class FedYogi(FedOpt):
    """FedYogi: FedOpt with Yogi at the server (Reddi et al., ICLR 2021)."""

    class Params(FedOptParams):
        server_optimizer: Literal["yogi"] = hyper(
            "yogi", "the server's optimiser", "Reddi et al. Algorithm 2"
        )
