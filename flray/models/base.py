"""Models as feature extractor and classifier, so that methods can share, freeze or replace one of the two.

`build` makes a registered one from its name and options, with initial values that depend on nothing
else; `dry_run` finds its outputs for a data set's samples before training.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from flray import registry, rng
from flray.errors import ConfigError, FlrayError


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

    @property
    def feature_dim(self) -> int:
        """The number of features d that `features` returns per sample."""
        return feature_dim(self)


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
    return model.to(dtype=dtype)


def dry_run(name: str, model: nn.Module, shape: Sequence[int]) -> Any:
    """Return a network's outputs for one sample, in evaluation mode.

    Parameters
    ----------
    name : str
        The user's name for it; the message shows it.
    model : nn.Module
        Not changed. It runs on zeros, because torch's meta device would need seconds of imports.
    shape : sequence of int
        Shape of one sample.

    Raises
    ------
    ConfigError
        If the network cannot take such samples.
    """
    training = model.training
    model.eval()
    dtype = next((value.dtype for value in model.parameters()), torch.float32)
    try:
        with torch.no_grad():
            return model(torch.zeros(1, *shape, dtype=dtype))
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        allowed = (
            f"it cannot take this data's samples {list(shape)} ({why}); choose another network, "
        )
        allowed += "or options that fit (`flray list models NAME`)"
        raise ConfigError("experiment.model", name, allowed) from None
    finally:
        model.train(training)
