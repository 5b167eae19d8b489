"""Models as feature extractor and classifier, so that methods can share, freeze or replace one of the two.

`build` makes a registered one from its name and options, with initial values that depend on nothing
else; `dry_run` finds its outputs for a data set's samples before training.

Groups of a model's state are named: features, classifier, batch norm, and others that a method shares, freezes or
compares. Batch norm is found by module type, not by name: the norm in a ResNet's shortcut has no "bn" in its name.
"""

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flray import registry, rng
from flray.errors import ConfigError, FlrayError, brief, nearest


class SplitModel(nn.Module):
    """A network cut into two: ``classifier(features(x))``.

    Parameters
    ----------
    features : nn.Module
        Maps a batch of inputs to flat penultimate features [B, d] (for segmentation maps [B, d, H,
        W]), after the last ReLU, if any.
    classifier : nn.Module
        Maps features [B, d] to logits [B, C], maps to maps.
    taps : sequence of str
        Dotted names of the submodules whose outputs stand for the depths of the network, shallow to
        deep; see `flray.models.layer_taps`.
    """

    def __init__(
        self, features: nn.Module, classifier: nn.Module, taps: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier
        self.taps = tuple(taps)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, C] or [B, C, H, W] of a batch of inputs."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


def is_its_parts(model: nn.Module) -> bool:
    """Return whether ``classifier(features(x))`` is all that calling a model does: no hook, no other forward."""
    own = vars(model)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(model) is SplitModel and "forward" not in own and not any(map(own.get, hooks))


def as_split(module: nn.Module) -> SplitModel:
    """Return the module unchanged, having checked that it can be used as a `SplitModel`.

    Call it only if a method needs the split. The module need not be a `SplitModel`: two children
    called ``features`` and ``classifier`` that hold the whole state are enough, with forward =
    classifier(features(x)).

    Raises
    ------
    FlrayError
        If a child is missing, or if some parameter or buffer lies in neither: such an entry would
        be neither shared nor kept by a method that shares one part and keeps the other.
    """
    name = type(module).__name__
    children, parts = dict(module.named_children()), ("features", "classifier")
    missing = [part for part in parts if part not in children]
    if missing:
        found = ", ".join(children) or "none"
        raise FlrayError(
            f"model {name}: this needs a feature/classifier split, but there is no child called {' or '.join(missing)} "
            f"(its children: {found}); build it as flray.models.SplitModel(features, classifier)"
        )
    outside = [entry for entry in module.state_dict() if entry.split(".")[0] not in parts]
    if outside:
        raise FlrayError(
            f"model {name}: {outside[0]!r} lies outside features and classifier; move it into one of them"
        )
    return cast(SplitModel, module)


def check_forward(name: str, model: nn.Module, shape: Sequence[int], *, split: bool) -> None:
    """Refuse a network whose outputs follow from more than its state and the inputs.

    A process's clients share one network, and each sets its parameters and buffers. Any other memory would depend on
    the process, and a resume would lose it.

    Parameters
    ----------
    name : str
        The user's name for it; the message shows it.
    model : nn.Module
        Not changed. One that cannot be trained on two random samples is not tried.
    shape : sequence of int
        Shape of one sample.
    split : bool
        Whether methods compute ``classifier(features(x))`` in its place.

    Raises
    ------
    ConfigError
        If there is more than that, or the split computes something else.
    """
    network, why = copy.deepcopy(model), ""
    entries = network.state_dict(keep_vars=True)
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    x = x.to(next((value.dtype for value in model.parameters()), x.dtype))

    def outputs(training: bool) -> Any:
        for entry, value in model.state_dict().items():
            entries[entry].copy_(value)
        torch.default_generator.manual_seed(0)
        return network.train(training)(x).clone()

    with suppress(Exception), torch.random.fork_rng(devices=[]), torch.no_grad():
        first, second = ([outputs(training) for training in (True, False)] for _ in range(2))
        inside = all(v is entries[n] for n, v in network.state_dict(keep_vars=True).items())
        if not inside or not all(map(torch.equal, first, second)):
            why = (
                "its outputs follow from more than parameters, buffers and inputs, and a resume or another process "
                "would not know that; keep it with register_buffer, change it in place (add_, copy_), and draw with "
                "torch alone"
            )
        elif split:
            why = (
                "its forward(x) has to be classifier(features(x)) for this method, and computes something else; move "
                "the rest into one of the two, or build it as flray.models.SplitModel(features, classifier)"
            )
            parts = as_split(network)
            if torch.equal(parts.classifier(parts.features(x)), second[1]):
                why = ""
    if why:
        raise ConfigError("experiment.model", name, why)


@contextmanager
def in_place_of_forward(part: nn.Module, call: Callable[..., Any]) -> Iterator[None]:
    """Have ``call(forward, x)`` run in place of a module's ``forward(x)``: a hook would keep it from being compiled."""
    own, plain = vars(part).get("forward"), part.forward
    part.forward = partial(call, plain)
    try:
        yield
    finally:
        del part.forward
        if own is not None:
            part.forward = own


def feature_dim(model: nn.Module) -> int:
    """Return the number of inputs of a split model's classifier.

    Raises
    ------
    FlrayError
        If the model is not split, or its classifier has no layer that tells its number of inputs.
    """
    for layer in as_split(model).classifier.modules():
        for attribute in ("in_features", "num_features", "in_channels"):
            size = getattr(layer, attribute, None)
            if isinstance(size, int):
                return size
    raise FlrayError(
        f"model {type(model).__name__}: its classifier has no nn.Linear, so its feature size is unknown"
    )


def linear_classifier(model: nn.Module) -> nn.Linear:
    """Return the classifier of a split model, having checked that it is a single linear layer.

    Raises
    ------
    FlrayError
        If the model is not split, or its classifier is anything else.
    """
    classifier = as_split(model).classifier
    if not isinstance(classifier, nn.Linear):
        raise FlrayError(
            f"model {type(model).__name__}: this needs one linear layer as classifier, found "
            f"{type(classifier).__name__}; take the last layer alone ('digit-cnn' and 'alexnet' do with split: head)"
        )
    return classifier


def image_shape(name: str, shape: Sequence[int], minimum: int) -> tuple[int, int, int]:
    """Return ``(channels, height, width)``, having checked that a network can take such images.

    Parameters
    ----------
    name : str
        The model's registered name; the message shows it.
    shape : sequence of int
        Shape of one sample.
    minimum : int
        Least height and width in pixels.

    Raises
    ------
    FlrayError
        If a sample is not an image [C, H, W] or is too small.
    """
    if len(shape) != 3 or min(shape) < 1:
        raise FlrayError(
            f"model {name!r} takes images [channels, height, width], found samples of shape "
            f"{tuple(shape)}; choose 'linear' or 'mlp' for other data"
        )
    channels, height, width = shape
    if min(height, width) < minimum:
        raise FlrayError(
            f"model {name!r} needs images of at least {minimum}x{minimum}, found {height}x{width} (shape "
            f"{tuple(shape)}); resize the images or choose a model with fewer down-sampling steps"
        )
    return channels, height, width


def build(
    name: str,
    shape: tuple[int, ...],
    num_classes: int,
    options: Mapping[str, Any],
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Return a registered model, on the CPU, initialised from the seed.

    The same (name, shape, num_classes, options, seed) give the same bits; no global random state
    changes. Another `dtype` casts the float32 values, so that a float64 run starts at the same
    point.

    Parameters
    ----------
    name : str
        A registered model.
    shape : tuple of int
        Shape of one sample, without the batch.
    num_classes : int
        Number of logits.
    options : mapping
        The model's options, checked against its signature.
    seed : int
        The experiment's seed.
    dtype : torch.dtype
        Type of the parameters and floating buffers.

    Raises
    ------
    FlrayError
        If the model or an option is unknown, a value is not allowed, or the samples do not fit the
        network.
    """
    checked = registry.models.checked(name, options)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, which would also seed the accelerators, whose state is not restored
        # here.
        torch.default_generator.manual_seed(rng.key(seed, "init", extra=name))
        model = registry.models.call(name, tuple(shape), num_classes, **checked)
        if not isinstance(model, nn.Module):
            raise FlrayError(
                f"model {name!r}: its builder returned {type(model).__name__}, not a torch.nn.Module"
            )
        if any(map(nn.parameter.is_lazy, model.parameters())):  # LazyLinear: sizes from a sample
            dry_run(name, model, shape, structured=True)
    return model.to(dtype=dtype)


def dry_run(name: str, model: nn.Module, shape: Sequence[int], *, structured: bool = False) -> Any:
    """Return a network's outputs for one sample, in evaluation mode.

    Parameters
    ----------
    name : str
        The user's name for it; the message shows it.
    model : nn.Module
        Not changed. It runs on zeros, because torch's meta device would need seconds of imports.
    shape : sequence of int
        Shape of one sample.
    structured : bool
        Whether outputs may be more than one tensor.

    Raises
    ------
    ConfigError
        If the network cannot take such samples, or returns something else than a tensor.
    """
    training = model.training
    model.eval()
    dtype = next((value.dtype for value in model.parameters()), torch.float32)
    try:
        with torch.no_grad():
            outputs = model(torch.zeros(1, *shape, dtype=dtype))
    except Exception as error:
        raise ConfigError(
            "experiment.model",
            name,
            f"it cannot take this data's samples {list(shape)} ({brief(error)}); choose another network, "
            "or options that fit (`flray list models NAME`)",
        ) from None
    finally:
        model.train(training)
    if not (structured or isinstance(outputs, torch.Tensor)):
        why = f"its forward returns {type(outputs).__name__}; return the tensor of outputs alone"
        raise ConfigError("experiment.model", name, why)
    return outputs


GROUPS = ("all", "none", "features", "classifier", "batch_norm", "not_batch_norm", "buffers")
Norm = Literal["batch", "group", "none"]
_MAX_GROUPS = 32  # Wu and He, Group Normalization, ECCV 2018, Table 3


def select(model: nn.Module, group: str) -> frozenset[str]:
    """Return the names of a group's entries in ``model.state_dict()``, parameters and buffers alike.

    Parameters
    ----------
    model : nn.Module
        Any model; the groups ``features`` and ``classifier`` need the split.
    group : str
        One of `GROUPS`, or several joined by ``+`` (union) and ``-`` (difference), read from left
        to right: ``"features-batch_norm"``, ``"classifier+batch_norm"``.

    Raises
    ------
    FlrayError
        If a name is unknown (the message gives the nearest one) or the model lacks the split.
    """
    first, *rest = re.split(r"([+-])", group)
    chosen = _group(model, first.strip(), group)
    for operator, name in zip(rest[::2], rest[1::2], strict=True):
        other = _group(model, name.strip(), group)
        chosen = chosen | other if operator == "+" else chosen - other
    return chosen


def complement(group: str) -> str:
    """Return the group of everything that is not in a group: ``"all-classifier-buffers"`` for ``"classifier+buffers"``.

    Groups are read from left to right, so the complement of a union is a difference and the other
    way round.
    """
    return "all-" + group.translate(str.maketrans("+-", "-+"))


def _group(model: nn.Module, name: str, expression: str) -> frozenset[str]:
    names = frozenset(model.state_dict())
    if name == "all":
        return names
    if name == "none":
        return frozenset()
    if name == "buffers":
        return names - {n for n, _ in model.named_parameters()}
    if name in ("features", "classifier"):
        return frozenset(n for n in as_split(model).state_dict() if n.startswith(f"{name}."))
    if name in ("batch_norm", "not_batch_norm"):
        prefixes = tuple(f"{path}." if path else "" for path, _ in batch_norm_modules(model))
        norm = frozenset(n for n in names if n.startswith(prefixes))
        return norm if name == "batch_norm" else names - norm
    where = "" if name == expression else f" in {expression!r}"
    raise FlrayError(
        f"unknown parameter group {name!r}{where}{nearest(name, GROUPS)}; groups are "
        f"{', '.join(GROUPS)}, joined by + (union) and - (difference)"
    )


def batch_norm_modules(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    """Return ``(dotted name, module)`` of every batch norm of any dimension, in the model's order."""
    found = model.named_modules(remove_duplicate=False)
    return [(name, module) for name, module in found if isinstance(module, _BatchNorm)]


def supports_single_sample(model: nn.Module, shape: Sequence[int]) -> bool:
    """Tell whether a network can be trained on a batch of a single sample, by a dry run on shapes alone.

    Batch norm cannot if a sample has one value per channel, as in fully connected layers. A network
    that does not run on shapes alone is assumed to support it.

    Parameters
    ----------
    model : nn.Module
        Moved to the meta device: its values are gone afterwards.
    shape : sequence of int
        Shape of one sample.
    """
    if not batch_norm_modules(model):
        return True
    entry = next(model.parameters())
    try:
        model.to("meta").train()(torch.empty(1, *shape, dtype=entry.dtype, device="meta"))
    except ValueError:  # torch's for a batch norm without a variance
        return False
    except Exception:
        return True
    return True


def layer_taps(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return ``(dotted name, module)`` of the layers that multi-layer methods compare, shallow to deep.

    Their outputs are taken with forward hooks. The built-in networks are tapped before the ReLU
    that ends a stage (FedRCL compares pre-activations) and never write in place into a tapped
    output; five taps for the ResNets with four stages. A user's split model may name its tapped
    layers in a ``taps`` attribute; their outputs are [B, m] or [B, m, ...], with channels before
    positions. Otherwise they are the direct children of ``features`` that have parameters.

    Raises
    ------
    FlrayError
        If the model has no such layer.
    """
    names: tuple[str, ...] = tuple(getattr(model, "taps", ()))
    if not names:
        children = as_split(model).features.named_children()
        names = tuple(
            f"features.{name}" for name, child in children if any(True for _ in child.parameters())
        )
    modules = dict(model.named_modules())
    unknown = [name for name in names if name not in modules]
    if unknown:
        raise FlrayError(
            f"model {type(model).__name__}: no submodule {unknown[0]!r}{nearest(unknown[0], modules)}"
        )
    if not names:
        raise FlrayError(
            f"model {type(model).__name__} has no layers before its classifier, which this method "
            "compares; choose a deeper one, for example 'mlp' or 'lenet'"
        )
    return [(name, modules[name]) for name in names]


def norm_layer(norm: Norm, channels: int, *, images: bool = True) -> nn.Module:
    """Return a normalisation layer for `channels` channels; ``nn.Identity`` for ``"none"``.

    Parameters
    ----------
    norm : {"batch", "group", "none"}
        Group norm uses the most groups, up to 32, that leave at least two channels in each; on flat
        features it uses one group, since the few values in a small group would be normalised to
        almost nothing.
    channels : int
        Channels of images, or size of flat features.
    images : bool
        Whether the input is [B, C, H, W] or flat [B, C].
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels) if images else nn.BatchNorm1d(channels)
    if norm == "group":
        divisible = images and channels % 2 == 0
        return nn.GroupNorm(math.gcd(_MAX_GROUPS, channels // 2) if divisible else 1, channels)
    return nn.Identity()
