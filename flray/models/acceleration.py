"""The same network run faster: another layout, in bfloat16, compiled. Names and values stay."""

import copy
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from flray.errors import FlrayError


def in_channels_last(model: nn.Module) -> None:
    """Lay a network's weights out in memory channels last, but for layers that channels_last would break.

    The weights' gradient of a 1x1 convolution with stride and fewer than eight input channels is
    written past its buffer by oneDNN's kernels for AVX2 in this layout
    (https://github.com/uxlfoundation/oneDNN/issues/6035): such a layer stays contiguous, on every
    CPU alike.

    Parameters
    ----------
    model : nn.Module
        Changed in place.
    """
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for layer in model.modules():
        if (
            isinstance(layer, nn.Conv2d)
            and layer.kernel_size == (1, 1)
            and layer.stride != (1, 1)
            and layer.in_channels < 8
        ):
            layer.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            layer.register_forward_pre_hook(_contiguous_input)


def _contiguous_input(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.contiguous() for x in inputs)


def in_bfloat16(model: nn.Module) -> None:
    """Have a network compute in bfloat16 from now on, wherever torch's autocast deems it safe, and return float32.

    Parameters stay float32. The border is the network's, or each part's of a split one, since
    methods call these alone: outputs are float32 again, so that losses, distances, similarities and
    correlations are formed with 24 bits instead of 8. Copies of the model compute likewise.

    Parameters
    ----------
    model : nn.Module
        Its parameters are float32; changed in place.
    """
    for part in {model, *parts(model)}:
        part.forward = MethodType(_in_lower_precision, part)


def compile_model(model: nn.Module, batch_size: int, **options: Any) -> None:
    """Compile a network's training steps on whole batches; all other passes run as written.

    A compiled graph holds for one shape. The shapes that a process has met, and their order, depend
    on the clients that it has trained. So that results do not depend on them, some passes are never
    compiled: batches of other sizes (the small last one, evaluation, a phase with a different
    size), frozen copies, and passes that a hook observes. If torch cannot trace the whole network,
    or reaches its limit of recompilations, training fails; it does not continue uncompiled.

    Parameters
    ----------
    model : nn.Module
        Changed in place; if both are wanted, call `in_bfloat16` first.
    batch_size : int
        Samples of a whole batch.
    **options
        Further options of `torch.compile`, such as ``mode="reduce-overhead"``, which on CUDA
        replays a graph of kernels.
    """
    for part in parts(model):
        part.forward = _CompiledForward(part, batch_size, options)


def parts(model: nn.Module) -> list[nn.Module]:
    """Return the modules that methods call: features and classifier of a split network, else the network itself."""
    found = [getattr(model, part, None) for part in ("features", "classifier")]
    inner = [part for part in found if isinstance(part, nn.Module)]
    return inner if len(inner) == 2 else [model]


def _in_lower_precision(self: nn.Module, x: Tensor) -> Tensor:
    # Each weight is used once per pass, so that autocast's cache of cast weights would gain
    # nothing.
    with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
        outputs: Tensor = type(self).forward(self, x)
    return outputs.float()


class _CompiledForward:
    """A module's ``forward``, compiled for whole training batches; a copy of the module gets the original one."""

    def __init__(self, module: nn.Module, batch_size: int, options: dict[str, Any]) -> None:
        self._module, self._plain, self._batch_size = module, module.forward, batch_size
        self._inside = tuple(module.modules())
        self._own_pre_hooks = self._pre_hooks()
        self._fast = torch.compile(self._plain, dynamic=False, fullgraph=True, **options)

    def __call__(self, x: Tensor) -> Tensor:
        outputs: Tensor
        if (
            len(x) != self._batch_size
            or not (self._module.training and torch.is_grad_enabled())
            or any(module._forward_hooks for module in self._inside)
            or self._pre_hooks() > self._own_pre_hooks
        ):
            outputs = self._plain(x)
            return outputs
        try:
            outputs = self._fast(x)
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = " ".join([f"{type(error).__name__}:", *lines[:2]])
            raise FlrayError(
                f"local.compile: torch.compile failed on this network or machine ({reason}); set it to false"
            ) from error
        return outputs

    def _pre_hooks(self) -> int:
        # Those of the module itself run before its forward, compiled or not.
        inner = (module for module in self._inside if module is not self._module)
        return sum(len(module._forward_pre_hooks) for module in inner)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._plain, memo)
