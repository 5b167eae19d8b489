"""Per-FedAvg: an initialisation that is good after one local step (Fallah, Mokhtari, Ozdaglar, NeurIPS 2020)."""

from typing import Literal

from flray import functional, registry
from flray.algorithms.base import Algorithm, Client, Message, Phase, Predictor, View
from flray.algorithms.common.client_parts import gradient_at
from flray.registry import hyper, register_algorithm
from flray.trees import Weights


@register_algorithm("perfedavg")
class PerFedAvg(Algorithm):
    """Each step uses independent batches D, D', D'': ``w~ = w - alpha grad(w; D)``, ``g = grad(w~; D')``, w moves by d.

    First-order form: ``d = g``. Hessian-free form: ``d = g - alpha [grad(w + delta g; D'') - grad(w
    - delta g; D'')] / (2 delta)``. The paper's beta is `local.lr`, and the experiment's optimiser
    steps along d. Batch norm's statistics follow the forward passes at w~ alone.

    Personal models are made for the test alone: w, after a few plain gradient steps of size alpha
    on the client's training data. With alpha = 0 both forms are FedAvg.
    """

    class Params(registry.Params):
        form: Literal["fo", "hf"] = hyper(
            "fo",
            "first-order or Hessian-free",
            "a decision, LG-Mix does not say: as CharlieDinh/pFedMe",
        )
        alpha: float = hyper(
            0.01,
            "inner step, in training and for the test",
            "Per-FedAvg, experiments; KarhouTam/FL-bench",
            ge=0,
        )
        delta: float = hyper(
            1e-3,
            "width of the difference that stands for the Hessian (hf)",
            "Per-FedAvg, experiments; KarhouTam/FL-bench",
            gt=0,
        )
        adapt_steps: int = hyper(
            1,
            "steps before a personal model is tested",
            "Per-FedAvg, its objective: one step",
            ge=0,
        )

    hp: Params
    weighting = "uniform"
    views = ("personal",)

    def train(self, client: Client) -> Message:
        """Run the client's side: one meta-step for each batch of D', which is the stream of FedAvg."""
        self.receive(client)
        self.begin(client)
        outer, third = client.run(Phase()), client.run(Phase("third"))
        w = client.weights(frozenset(client.parameters))  # follows the model
        for inner, _ in client.run(Phase("inner")):
            # Thrown away after the step.
            buffers = client.snapshot(frozenset(client.resident.entries) - w.keys())
            gradient, _ = gradient_at(client, inner, w, buffers)
            batch, optimizer = next(outer)
            gradient, loss = gradient_at(client, batch, step_along(w, gradient, -self.hp.alpha))
            if self.hp.form == "hf":
                batch, _ = next(third)
                ahead, behind = (
                    gradient_at(client, batch, step_along(w, gradient, step), buffers)[0]
                    for step in (self.hp.delta, -self.hp.delta)
                )
                gradient = functional.meta_gradient(
                    gradient, ahead, behind, self.hp.alpha, self.hp.delta
                )
            for name, parameter in client.parameters.items():
                parameter.grad = gradient[name]
            client.clip_gradients()
            optimizer.step()
            client.record_loss(loss)
        return self.report(client)

    def predictor(self, client: Client, view: View) -> Predictor:
        """Return the adapted model; nothing of it outlives the test."""
        plain = {
            "optimizer": "sgd",
            "lr": self.hp.alpha,
            "momentum": 0.0,
            "weight_decay": 0.0,
            "clip_norm": None,
        }
        steps = self.hp.adapt_steps
        self.adapt(client, Phase("adapt", epochs=steps, local=plain, steps=steps))
        return super().predictor(client, view)


def step_along(w: Weights, direction: Weights, step: float) -> Weights:
    """Return ``w + step direction``."""
    return {name: value + step * direction[name] for name, value in w.items()}
