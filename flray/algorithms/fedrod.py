"""FedRoD, linear: a generic head for balanced risk, a personal one for the client's own (Chen, Chao, ICLR 2022)."""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from flray import functional, registry
from flray.algorithms.base import Algorithm, Batch, Client, Message, Predictor, View
from flray.algorithms.common.client_parts import classifier_of
from flray.models import as_split
from flray.registry import Preset, hyper, register_algorithm


@register_algorithm("fedrod")
class FedRoD(Algorithm):
    """Body and generic head are trained by the balanced softmax and averaged; the personal head never travels.

    In each step the personal head g then learns by ``CE(z + g(f), y)`` with the generic logits z
    and the features f as constants. ``z + g(f)`` predicts for the client, z alone is the global
    model; class shares appear in neither.
    """

    class Params(registry.Params):
        presets = (Preset("fedco2", "released code", generic_loss="ce"),)

        generic_loss: Literal["balanced", "ce"] = hyper(
            "balanced",
            "loss of body and generic head; ce is what Fed-CO2's table was made with",
            "FedRoD, Eq. of balanced risk minimisation",
        )
        personal_init: Literal["copy", "zero"] = hyper(
            "copy",
            "the personal head starts as the initial generic one, or at zero",
            "Yutong-Dai/FedNH's FedRoD: a copy; zero makes both predictors equal at the start",
        )

    hp: Params
    needs = frozenset({"split", "classification", "exact_logits"})
    views = ("personal", "global")

    def __init__(self, hp: Params | None = None) -> None:
        super().__init__(hp)
        if self.hp.generic_loss == "ce":  # which has no use for class counts
            self.needs -= {"exact_logits"}

    def own_loss(self) -> str:
        """Return the balanced softmax if the generic head has it."""
        ce = self.hp.generic_loss == "ce"
        return "" if ce else "the balanced softmax (algorithm.generic_loss: ce does not)"

    def setup(self, client: Client) -> None:
        """Start the personal head."""
        zero = client.parameters.keys() if self.hp.personal_init == "zero" else ()
        client.state["head"] = {
            name.removeprefix("classifier."): torch.zeros_like(w) if name in zero else w.clone()
            for name, w in classifier_of(client.resident.initial).items()
        }

    def begin(self, client: Client) -> None:
        """Take up the personal head."""
        head = self.head(client).train()
        optimizer = client.optimizer_for(list(head.parameters()))
        client.scratch.update(head=head, head_optimizer=optimizer)

    def head(self, client: Client) -> nn.Module:
        """Return the client's personal head."""
        head = copy.deepcopy(as_split(client.model).classifier)
        head.load_state_dict(client.state["head"])
        return head

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return the generic predictor's loss."""
        if self.hp.generic_loss == "ce":
            return super().loss(client, batch)
        return functional.balanced_softmax_loss(batch.outputs, batch.y, client.class_counts)

    def step(self, client: Client, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Step body and generic head, then the personal head on the same forward pass."""
        super().step(client, batch, optimizer)
        head, own = client.scratch["head"], client.scratch["head_optimizer"]
        own.zero_grad(set_to_none=True)
        client.task.loss(batch.outputs.detach() + head(batch.features.detach()), batch.y).backward()
        client.clip_gradients(head.parameters())
        own.step()

    def report(self, client: Client) -> Message:
        """Keep the personal head, send the rest."""
        client.state["head"] = dict(client.scratch["head"].state_dict())
        return super().report(client)

    def predictor(self, client: Client, view: View) -> Predictor:
        """Return the sum of both heads' logits."""
        model, own = as_split(client.model.eval()), self.head(client).eval()

        def predict(x: Tensor) -> Tensor:
            features = model.features(x)
            logits: Tensor = model.classifier(features) + own(features)
            return logits

        return predict
