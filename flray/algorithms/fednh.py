"""FedNH: class vectors spread over the sphere that absorb the classes' directions slowly (Dai et al., AAAI 2023)."""

import math

import torch
from torch import Tensor, nn

from flray import functional, registry
from flray.algorithms.base import Algorithm, Client, Message, Predictor, Replies, Server, View
from flray.algorithms.common.client_parts import features_of
from flray.functional.numerics import unit
from flray.models import linear_classifier
from flray.registry import hyper, register_algorithm

W = "classifier.weight"


class CosineClassifier(nn.Module):
    """Logits ``s <f / ||f||, W_c>``; W never receives a gradient.

    Parameters
    ----------
    weight : Tensor [C, d]
        Unit rows.
    scale : float
        s.
    trained : bool
        Whether s is a parameter.
    """

    def __init__(self, weight: Tensor, scale: float, trained: bool) -> None:
        super().__init__()
        self.in_features = weight.shape[1]
        self.weight = nn.Parameter(weight)
        self.scale: nn.Parameter | float = (
            nn.Parameter(weight.new_tensor(scale)) if trained else scale
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits [B, C] of features [B, d]."""
        logits: Tensor = functional.cosine_logits(features, self.weight.detach(), self.scale)
        return logits


@register_algorithm("fednh")
class FedNH(Algorithm):
    """Body and scale are trained and averaged; the class vectors W change at the server alone.

    Down: everything. Up: body and scale, the direction of each class's mean of normalised features,
    and its count. The network's linear classifier is replaced by a cosine one. The authors clip
    gradients at 10 (`local.clip_norm`).
    """

    class Params(registry.Params):
        rho: float = hyper(0.9, "momentum of W; 1 keeps it fixed", "Yutong-Dai/FedNH", ge=0, le=1)
        scale: float = hyper(
            1.0,
            "s at the start",
            "Yutong-Dai/FedNH: 1 for its small CNN, 20 for ResNet18, 30 where fixed",
            gt=0,
        )
        train_scale: bool = hyper(True, "s is trained and averaged", "Yutong-Dai/FedNH: trainable")
        personal: bool = hyper(
            False,
            "also test each client's model as its last training left it, with the newest W; clients then keep it",
            "FedNH reports both; FedSKC's table has the global model",
        )

    hp: Params
    needs = frozenset({"split", "homogeneous", "classification", "exact_logits"})
    averages_waited = True
    weighting = "uniform"

    def __init__(self, hp: Params | None = None) -> None:
        super().__init__(hp)
        if self.hp.personal:
            self.views = ("global", "personal")

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network with a cosine classifier whose class vectors are spread out."""
        vectors = spread(linear_classifier(model).weight.detach())
        model.classifier = CosineClassifier(vectors, self.hp.scale, self.hp.train_scale)
        return model

    def report(self, client: Client) -> Message:
        """Send body and scale, and the directions of the classes."""
        features, labels = features_of(client)
        means, counts = functional.class_means(unit(features), labels, client.num_classes)
        trained = client.weights(client.resident.shared - {W})
        if self.hp.personal:
            client.state["trained"] = client.snapshot(frozenset(client.resident.entries) - {W})
        return {"weights": trained, "directions": {"vectors": unit(means), "counts": counts}}

    def predictor(self, client: Client, view: View) -> Predictor:
        """Return the client's own last model, or the received one before its first training."""
        client.load(client.state.get("trained", {}))
        return super().predictor(client, view)

    def after_average(self, server: Server, replies: Replies) -> None:
        """Move W towards the classes' directions."""
        if not replies:
            return
        sent = [reply["directions"] for reply in replies]
        directions, counts = (
            torch.stack([one[name] for one in sent]) for name in ("vectors", "counts")
        )
        moved = functional.update_directions(server.model[W], directions, counts, self.hp.rho)
        for architecture, weights in server.models.items():
            server.models[architecture] = {**weights, W: moved}


def spread(initial: Tensor) -> Tensor:
    """Return unit class vectors [C, d] far apart from each other, made from random ones [C, d].

    Orthonormal if the dimensions suffice (d >= C), as in the authors' code. Otherwise the largest
    cosine between two of them is made small, as in the paper: pairs of opposites up to C = 2 d,
    which gives 0, the least possible above C = d + 1; evenly on the circle for d = 2; else by
    descent on a soft maximum that sharpens.
    """
    classes, size = initial.shape
    start = initial.double()
    if classes <= 2 * size:
        basis = torch.linalg.qr(start[:size].T).Q.T
        return torch.cat([basis, -basis])[:classes].to(initial.dtype)
    if size == 2:
        angles = torch.arange(classes, dtype=torch.float64) * (2 * math.pi / classes)
        return torch.stack([angles.cos(), angles.sin()], dim=1).to(initial.dtype)
    vectors, itself = unit(start), torch.eye(classes, dtype=torch.bool)
    for sharpness in torch.logspace(1, 8, 200, base=2, dtype=torch.float64):
        shares = torch.softmax(
            (sharpness * (vectors @ vectors.T)).masked_fill(itself, -math.inf), dim=1
        )
        vectors = unit(vectors - (shares + shares.T) @ vectors / sharpness)
    return vectors.to(initial.dtype)
