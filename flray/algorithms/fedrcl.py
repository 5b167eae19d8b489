"""FedRCL: contrast at several depths, relaxed for classes that collapse (Seo, Kim, Kim, Han, CVPR 2024)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

from torch import Tensor, nn

from flray import functional, registry
from flray.algorithms.base import Algorithm, Client
from flray.algorithms.common.samples import Batch, mean_over_positions
from flray.models import layer_taps
from flray.registry import hyper, register_algorithm


@register_algorithm("fedrcl")
class FedRCL(Algorithm):
    """Clients minimise ``CE + weight * mean_l (l_scl + beta l_pen)`` over the tapped layers l.

    Layers are tapped before their ReLU and averaged over the image. The temperature multiplies
    gradients by 20: train as the authors do, with `local.clip_norm` 10.
    """

    class Params(registry.Params):
        weight: float = hyper(1.0, "weight of the mean over layers", "skynbe/FedRCL", ge=0)
        beta: float = hyper(1.0, "weight of the penalty within it", "skynbe/FedRCL", ge=0)
        tau: float = hyper(0.05, "temperature", "skynbe/FedRCL", gt=0)
        threshold: float = hyper(
            0.7,
            "lambda, similarity from which a pair of one class is too close; above 1: no penalty",
            "skynbe/FedRCL",
            ge=-1,
        )
        pairs: Literal["top", "all"] = hyper(
            "top",
            "the hardest pairs, as in the released code, or all, as in the paper's sums",
            "skynbe/FedRCL, with which the paper's numbers were made",
        )
        negatives: int = hyper(
            2, "most similar samples of other classes that count, with top", "skynbe/FedRCL", ge=1
        )

    hp: Params
    needs = frozenset({"features", "homogeneous", "labels"})
    weighting = "uniform"

    def network(self, model: nn.Module) -> nn.Module:
        """Refuse networks without a layer to look at."""
        layer_taps(model)
        return model

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return CE with the mean of the tapped layers' terms."""
        hp = self.hp
        with collect_taps(client.model) as layers:
            loss = super().loss(client, batch)
        features = [mean_over_positions(layer) for layer in layers]
        settings = (hp.tau, hp.threshold, hp.beta, hp.negatives, hp.pairs)
        return loss + hp.weight * functional.relaxed_contrastive_loss(features, batch.y, *settings)


@contextmanager
def collect_taps(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the outputs of the model's tapped layers, shallow to deep, during a forward pass."""
    outputs: list[Tensor] = []
    with ExitStack() as hooks:
        for _, layer in layer_taps(model):
            hooks.enter_context(
                layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
            )
        yield outputs
