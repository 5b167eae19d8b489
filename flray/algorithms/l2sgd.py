"""L2SGD: own models, pulled towards their mean (L2GD; Hanzely, Richtárik, 2020; Hanzely et al., NeurIPS 2020)."""

from collections.abc import Iterable, Sequence

import torch

from flray import functional, registry
from flray.algorithms.base import Algorithm, Client, Message, Phase, Server, Stage
from flray.config.experiment import Experiment
from flray.errors import ConfigError
from flray.registry import hyper, register_algorithm


@register_algorithm("l2sgd")
class L2SGD(Algorithm):
    """Minimise ``1/N sum_i f_i(x_i) + lambda/(2N) sum_i ||x_i - mean||^2`` by local steps and pulls to the mean.

    The practical round: local training as in `Local`, then ``x_i <- (1 - a) x_i + a mean`` with a =
    ``pull``. Up: x_i; down: the mean, equal weights. Floating buffers are pulled too, if
    `aggregation.buffers` averages them.

    With ``coin``, the published method, a round is one toss. With probability 1 - p all clients do
    one step on one batch at the rate ``alpha / (N (1 - p))``, and nothing travels; otherwise all
    are pulled with ``a = alpha lambda / (N p)``. The rate of the step is `local.lr` (with its
    decay), which makes alpha ``N (1 - p) lr`` and a ``lr lambda (1 - p) / p``. Pulls do not change
    the mean, so clients send models only if they took local steps since the last sending.
    `local.epochs` does not count.
    """

    class Params(registry.Params):
        pull: float = hyper(
            0.2,
            "a, strength of the pull after local training (without coin): 0 is local training, 1 averaging",
            "a decision, LG-Mix does not say: eta lambda K at lgcollins/FedRep's lambda 0.5, eta 0.01 and K = 40 steps",
            ge=0,
            le=1,
        )
        coin: bool = hyper(
            False,
            "the published algorithm, one toss a round",
            "a decision: LG-Mix trains E = 1 epochs",
        )
        p: float = hyper(
            0.1,
            "chance of a pull (with coin)",
            "omarfoq/FedEM: 0.1; lgcollins/FedRep: 0.9",
            gt=0,
            lt=1,
        )
        lam: float = hyper(
            0.5,
            "lambda, weight of the distance to the mean (with coin)",
            "lgcollins/FedRep: 0.5",
            ge=0,
        )

    hp: Params
    needs = frozenset({"homogeneous", "all_clients"})
    shared = "none"
    weighting = "uniform"
    views = ("personal",)

    def check(self, config: Experiment) -> None:
        """Refuse settings for which the coin's two branches do not hold."""
        local = config.local
        if not self.hp.coin:
            return
        if local.optimizer != "sgd":
            why = "l2sgd's coin weighs gradient steps against pulls; set sgd, or algorithm.coin: false"
            raise ConfigError("experiment.local.optimizer", str(local.optimizer), why)
        if local.epochs != 1 or local.steps is not None:
            raise ConfigError(
                "experiment.local.epochs" if local.steps is None else "experiment.local.steps",
                str(local.epochs if local.steps is None else local.steps),
                "with a coin a local round is one step; set epochs: 1 alone, or algorithm.coin: false",
            )
        if self.strength(local.lr) > 1:
            raise ConfigError(
                "experiment.algorithm",
                f"a pull of lr lam (1 - p) / p = {self.strength(local.lr):.3g}",
                "beyond 1 l2sgd diverges; lower local.lr or lam, or raise p",
            )

    def unused(self) -> dict[str, str]:
        """Leave out the weights of the mean, which clients send although their models stay."""
        return {
            path: why for path, why in super().unused().items() if path != "aggregation.weights"
        }

    def strength(self, lr: float) -> float:
        """Return a, given the learning rate of the round."""
        if not self.hp.coin:
            return self.hp.pull
        return lr * self.hp.lam * (1 - self.hp.p) / self.hp.p

    # --- client -----------------------------------------------------------------------------------

    def phases(self, client: Client) -> Sequence[Phase]:
        """Train as told, with a coin for one step."""
        return (Phase(epochs=1, steps=1) if self.hp.coin else Phase(),)

    def report(self, client: Client) -> Message:
        """Send the model for the mean; with a coin that waits for a pull."""
        return {} if self.hp.coin else weights_for_mean(client)

    def collect(self, client: Client) -> Message:
        """Send the model unchanged."""
        self.receive(client)
        return weights_for_mean(client)

    def pull(self, client: Client) -> Message:
        """Return nothing; step towards the mean."""
        self.receive(client)
        mean = client.message["mean"]
        client.load(
            functional.pull_to_mean(client.weights(frozenset(mean)), mean, self.strength(client.lr))
        )
        return {}

    # --- server -----------------------------------------------------------------------------------

    def server_setup(self, server: Server) -> None:
        """Nobody has sent a model yet."""
        if self.hp.coin:
            server.state["moved"] = True

    def exchanges(self, server: Server) -> Iterable[Stage]:
        """Train and pull; with a coin one of the two, the pull after collecting models that have moved."""
        if not self.hp.coin:
            return (Stage("train"), Stage("pull"))
        if float(torch.rand((), generator=server.generator("noise", "coin"))) >= self.hp.p:
            server.state["moved"] = True
            return (Stage("train"),)
        moved, server.state["moved"] = server.state["moved"], False
        return (Stage("collect"), Stage("pull")) if moved else (Stage("pull"),)

    def send(self, server: Server, stage: Stage) -> Message:
        """Send the mean to those who are pulled towards it; it is the server's model."""
        if stage.name != "pull":
            return {}
        (parameters,) = server.parameter_names.values()
        names = names_to_average(server.config, server.model, parameters)
        return {"mean": {name: w for name, w in server.model.items() if name in names}}


def weights_for_mean(client: Client) -> Message:
    """Return the part of the client's model that enters the mean."""
    return {
        "weights": client.weights(
            names_to_average(client.config, client.resident.entries, client.parameters)
        )
    }


def names_to_average(
    config: Experiment, entries: Iterable[str], parameters: Iterable[str]
) -> frozenset[str]:
    """Return the names whose mean is taken: all, or the parameters alone where buffers stay local."""
    return frozenset(parameters if config.aggregation.buffers == "local" else entries)
