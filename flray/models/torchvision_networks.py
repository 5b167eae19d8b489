"""Any of torchvision's networks for classification by its name, fresh or with weights from a file at hand."""

import io
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import safetensors.torch
import torch
from pydantic import Field
from torch import Tensor, nn

from flray.config.start import Pretrained, Weights
from flray.errors import ConfigError, brief, nearest
from flray.files import read
from flray.models import SplitModel, batch_norm_modules, image_shape, norm_layer
from flray.registry import register_model

NetworkName = Annotated[
    str, Field(description="torchvision's name, such as resnet50 or mobilenet_v3_small")
]
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")  # of GoogLeNet and Inception, used in training alone
_MOST_TAPS = 5


class ThreeChannels(nn.Module):
    """Repeats a grey image's channel as red, green and blue."""

    def forward(self, x: Tensor) -> Tensor:
        """Return images [B, 1, H, W] as [B, 3, H, W]."""
        return x.expand(-1, 3, -1, -1)


@register_model("torchvision")
def torchvision_network(
    shape: tuple[int, ...],
    num_classes: int,
    *,
    network: NetworkName = "resnet18",
    weights: Pretrained = None,
    norm: Literal["batch", "group"] = "batch",
) -> nn.Module:
    """Any network of torchvision for classification, its last layer made anew for the data's classes.

    ``weights`` is a file of the network's weights (safetensors, or a file of ``torch.save``), or
    torchvision's name for some, such as IMAGENET1K_V1, if their file lies in torch's cache; nothing
    is downloaded. Grey images become red, green and blue. ``group`` puts group norms in the place
    of batch norms.
    """
    made = _architecture(network, shape, weights is not None)
    linear = [(name, one) for name, one in made.named_modules() if isinstance(one, nn.Linear)]
    if not linear:
        why = (
            "its last layer is not a linear one, so it has no features and classifier; take another"
        )
        raise ConfigError("experiment.model.network", network, why)
    last, head = linear[-1]
    if weights is not None:
        if norm == "group":
            why = (
                "the weights are of a network with its own norms; write batch, or leave weights out"
            )
            raise ConfigError("experiment.model.norm", norm, why)
        _load(made, network, _read(network, weights), last)
    _replace(made, last, nn.Identity())
    if norm == "group":
        for path, old in batch_norm_modules(made):
            _replace(made, path, norm_layer("group", old.num_features))
    for layer in made.modules():
        if hasattr(layer, "inplace"):
            setattr(layer, "inplace", False)  # noqa: B010, methods look at what stands before a ReLU
    coloured = {"rgb": ThreeChannels()} if shape[0] == 1 else {}
    layers = OrderedDict[str, nn.Module](**coloured, network=made)
    return SplitModel(
        nn.Sequential(layers), nn.Linear(head.in_features, num_classes), _taps(made, network)
    )


@register_model("densenet121")
def densenet121(
    shape: tuple[int, ...], num_classes: int, *, norm: Literal["batch", "group"] = "batch"
) -> nn.Module:
    """DenseNet-121 with torchvision's layers and initial values, not pre-trained (6,955,906 parameters, 2 classes).

    LG-Mix trains it on Camelyon17.
    """
    # Takes seconds to import, so only on use.
    from torchvision.models import densenet121 as architecture

    channels, _, _ = image_shape("densenet121", shape, 29)
    network = architecture(weights=None, num_classes=num_classes)
    if channels != 3:
        network.features.conv0 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(network.features.conv0.weight)
    if norm == "group":
        for path, layer in batch_norm_modules(network):
            _replace(network, path, norm_layer("group", layer.num_features))
    layers = OrderedDict[str, nn.Module](
        dense=network.features,
        relu=nn.ReLU(),
        average=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    depths = ("conv0", "denseblock1", "denseblock2", "denseblock3", "norm5")
    return SplitModel(
        nn.Sequential(layers), network.classifier, [f"features.dense.{depth}" for depth in depths]
    )


def _architecture(network: str, shape: tuple[int, ...], pretrained: bool) -> nn.Module:
    """Return torchvision's network, with fresh weights and torchvision's last layer."""
    # Takes seconds to import, so only on use.
    import torchvision.models as zoo

    channels, height, _ = image_shape("torchvision", shape, 1)
    known = zoo.list_models(module=zoo)
    why = ""
    if network not in known:
        near = nearest(network, known)
        why = f"torchvision has no such network{near}; it has {', '.join(known[:4])}, ..."
    elif channels not in (1, 3):
        why = f"torchvision's networks take images of 3 channels, or grey ones, and these have {channels}"
    if why:
        raise ConfigError("experiment.model.network", network, why)
    options: dict[str, Any] = {}
    if network in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True, "transform_input": pretrained}
    elif network.startswith("vit"):
        options = {"image_size": height}
    try:
        made: nn.Module = zoo.get_model(network, weights=None, **options)
    except Exception as error:
        raise ConfigError(
            "experiment.model.network", network, f"not for samples {list(shape)}: {brief(error)}"
        ) from None
    return made


def _read(network: str, weights: Weights | str) -> Mapping[str, Tensor]:
    """Return the weights of a file without executing anything in it."""
    import torchvision.models as zoo

    where = "experiment.model.weights"
    if isinstance(weights, Weights):
        file, data = Path(weights.weights), weights.read(where)
    else:
        known = {one.name: one.url for one in zoo.get_model_weights(network)}
        if weights not in known:
            raise ConfigError(
                where, weights, f"no file, and {network} has no such weights: {', '.join(known)}"
            )
        url = known[weights]
        file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
        if not file.is_file():
            raise ConfigError(
                where, weights, f"{file} is not there, and nothing is downloaded; put {url} there"
            )
        data = read(file)
    try:
        found = (
            safetensors.torch.load(data)
            if file.suffix == ".safetensors"
            else torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        )
        if not all(isinstance(value, Tensor) for value in found.values()):
            raise ValueError("no tensors by name")
    except Exception:
        why = "it holds no weights; needed is a safetensors file, or a state_dict that torch.save wrote"
        raise ConfigError(where, str(file), why) from None
    former = r"(denselayer\d+\.(?:norm|conv))\.([12]\.)"
    return {re.sub(former, r"\1\2", name): value for name, value in found.items()}


def _load(made: nn.Module, network: str, found: Mapping[str, Tensor], last: str) -> None:
    """Copy weights into a network, but for its last layer."""
    fresh = (f"{last}.", *_AUXILIARY)
    given = {name: value for name, value in found.items() if not name.startswith(fresh)}
    entries = {n: v for n, v in made.state_dict().items() if not n.startswith(fresh)}
    # Files of old versions lack the counters of batch norms.
    needed = {name for name in entries if not name.endswith("num_batches_tracked")}
    wrong = sorted(needed - given.keys()) or sorted(
        name for name, v in given.items() if name not in entries or entries[name].shape != v.shape
    )
    if wrong:
        shape = tuple(given[wrong[0]].shape) if wrong[0] in given else "none"
        raise ConfigError(
            "experiment.model.weights",
            f"{wrong[0]}: {shape}",
            f"{network} has {tuple(entries[wrong[0]].shape) if wrong[0] in entries else 'none'}: "
            "weights of the same network are needed",
        )
    for name, value in given.items():
        entries[name].copy_(value)


def _replace(model: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)


def _taps(made: nn.Module, network: str) -> list[str]:
    """Return up to five layers, shallow to deep."""
    if network.startswith(("swin", "vit")):  # inside, their channels come last
        return ["features.network"]
    inner = getattr(made, "features", None)
    body, before = (inner, "features.") if isinstance(inner, nn.Sequential) else (made, "")
    names = [
        f"features.network.{before}{name}"
        for name, child in body.named_children()
        if any(True for _ in child.parameters())
    ]
    if network.startswith("densenet"):
        names = names[:-1]  # its forward writes in place into the output of the last one
    count = min(len(names), _MOST_TAPS)
    return [names[round(i * (len(names) - 1) / max(count - 1, 1))] for i in range(count)]
