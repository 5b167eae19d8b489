"""A pretend accelerator: tensors that say ``accel:0`` and compute on the CPU, as strict as a GPU.

It raises where CUDA raises (operands on two devices, a generator of the CPU for draws on the
device, ``.numpy()``), and counts kernels, copies between host and device, and synchronisations,
these by the line of flray that asked for them. torch must know of it before the process's first
backward pass: so it is run in processes of its own (`tests.accelerator.run_cases`).
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import flray

aten = torch.ops.aten
NAME = "accel"
ROOT = str(Path(flray.__file__).parent)
COPIES = {aten._to_copy.default, aten.copy_.default}


def _operators(names: str) -> set[Any]:
    """Return operators by their names; without an overload's it is the default one."""
    pairs = (name.partition(".") for name in names.split())
    return {getattr(getattr(aten, name), overload or "default") for name, _, overload in pairs}


NO_KERNEL = _operators(
    """detach alias view _unsafe_view _reshape_alias as_strided expand permute t transpose.int
    select.int slice.Tensor split.Tensor split_with_sizes squeeze.dim squeeze squeeze.dims
    unsqueeze unbind.int view.dtype lift_fresh is_pinned empty.memory_format empty_like
    empty_strided new_empty new_empty_strided _local_scalar_dense is_same_size"""
)
"""What starts nothing on a GPU: views, allocations, questions."""
ASKING = {
    aten._local_scalar_dense.default: "item",
    aten._unique2.default: "unique",
    aten.unique_dim.default: "unique",
    aten.unique_consecutive.default: "unique",
    aten.repeat_interleave.Tensor: "repeat_interleave",
}
ASKING |= {getattr(aten, n).default: n for n in ("equal", "nonzero", "masked_select", "bincount")}
"""What the host waits for: its result, or the size of its result, is a number on the device."""
INDEXED = _operators("index.Tensor index_put index_put_ _index_put_impl_ _unsafe_index.Tensor")


class AccelTensor(Tensor):
    """A tensor on the pretend accelerator; `held` is what it holds, on the CPU."""

    held: Tensor
    __slots__ = ["held"]

    @staticmethod
    def __new__(cls, held: Tensor) -> "AccelTensor":
        how: dict[str, Any] = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        how |= {"dtype": held.dtype, "layout": held.layout, "device": DEVICE}
        made: AccelTensor = Tensor._make_wrapper_subclass(cls, held.size(), **how)
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse, as torch does for CUDA tensors."""
        raise TypeError("can't convert accel:0 device type tensor to numpy; use Tensor.cpu() first")

    __array__ = numpy

    def __repr__(self) -> str:
        return f"AccelTensor({self.held!r})"

    def tolist(self) -> Any:
        """Copy to the host, which waits."""
        counts.note("d2h", "tolist")
        return self.held.tolist()


class Counts:
    """What was counted since the last `reset`; of images, the most that came in one copy, and all."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.kernels = 0
        self.images = self.sent = 0
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()

    def note(self, kind: str, what: str, waits: bool = True) -> None:
        """Count a copy or a synchronisation at the line of flray that asked for it."""
        line = f"{what} at {_line()}"
        if kind != "sync":
            self.copies[f"{kind}: {line}"] += 1
        if waits:
            self.waits[line] += 1

    def state(self) -> tuple[int, Counter[str]]:
        """Return kernels and synchronisations so far."""
        return self.kernels, self.waits.copy()


counts = Counts()


def _line() -> str:
    frame: Any = sys._getframe(1)
    first = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(ROOT):
            return f"{name.removeprefix(ROOT)}:{frame.f_lineno}"
        if "torch" not in name and "accelerator/device" not in name and not first:
            first = f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return first or "backward"


def compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one operator as the accelerator would."""
    flat = list(_leaves(args)) + list(_leaves(kwargs))
    there = [leaf for leaf in flat if isinstance(leaf, AccelTensor)]
    for tensor in there:
        if tensor.shape != tensor.held.shape or tensor.stride() != tensor.held.stride():
            raise AssertionError(f"{func}: a tensor's values were replaced unseen, at {_line()}")
    asked = kwargs.get("device")
    made_there = asked is not None and torch.device(asked).type == NAME
    if not there and not made_there:
        if func is aten._pin_memory.default:
            return _pin(args[0])
        if func is aten.is_pinned.default:
            return _is_pinned(args[0])
        return func(*args, **kwargs)
    if func in (aten._pin_memory.default, aten.is_pinned.default):
        raise RuntimeError(f"cannot pin {args[0]!r}: only dense CPU tensors can be pinned")
    if func in COPIES:
        return _copy(func, args, kwargs, made_there)
    if (generator := next((x for x in flat if isinstance(x, torch.Generator)), None)) is not None:
        kind = generator.device.type
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found '{kind}'")
    _check_operands(func, args, flat)
    _count(func, args)
    options = {name: _plain(x) for name, x in kwargs.items() if name != "pin_memory"}
    if made_there:
        options["device"] = torch.device("cpu")
    result = perform(func, [_plain(x) for x in args], options)
    stays = asked is not None and not made_there
    return result if stays else _outcome(func, args, kwargs, result)


watchers: list[Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]] = []
"""Called with each operator, what it was given, and its result, as they are on the CPU."""


def perform(func: Any, plain: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Compute an operator's result."""
    result = func(*plain, **options)
    for watcher in watchers:
        watcher(func, plain, options, result)
    return result


def _outcome(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    """Wrap results; what was changed in place stays the same tensor."""
    schema = func._schema
    changed = [
        kwargs.get(a.name, args[i] if i < len(args) else None)
        for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    ]
    if changed or (schema.name[-1] == "_" and schema.name[-2:] != "__"):
        if not schema.returns:
            return None
        if len(schema.returns) == 1 and schema.returns[0].alias_info is not None:
            return changed[0]
    return _wrapped(result)


def _plain(tree: Any) -> Any:
    """Return operands as they are on the CPU."""
    if isinstance(tree, AccelTensor):
        return tree.held
    return [_plain(x) for x in tree] if isinstance(tree, list | tuple) else tree


def _wrapped(tree: Any) -> Any:
    """Return results as tensors of the accelerator."""
    if isinstance(tree, list | tuple):
        return type(tree)(_wrapped(x) for x in tree)
    return AccelTensor(tree) if type(tree) is Tensor else tree


def _copy(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made_there: bool) -> Any:
    """Copy within the device or between host and device."""
    patient = not kwargs.get("non_blocking", False)
    if func is aten.copy_.default:
        target, source = args[0], args[1]
        patient = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        if isinstance(target, AccelTensor) and isinstance(source, AccelTensor):
            counts.kernels += 1
        else:
            _note_copy(source, isinstance(target, AccelTensor), patient, "copy_")
        perform(func, [_plain(target), _plain(source)], {})
        return target
    source = args[0]
    asked = kwargs.get("device")
    if asked is not None and torch.device(asked).type == "meta":
        return func(source.held, **kwargs)
    to_device = made_there or (asked is None and isinstance(source, AccelTensor))
    if isinstance(source, AccelTensor) and to_device:
        counts.kernels += 1
    else:
        _note_copy(source, to_device, patient, ".to")
    options = {name: value for name, value in kwargs.items() if name != "non_blocking"}
    if asked is not None:
        options["device"] = torch.device("cpu")
    held = perform(func, [_plain(source)], options)
    return AccelTensor(held) if to_device else held


def _note_copy(source: Tensor, to_device: bool, patient: bool, what: str) -> None:
    if not source.numel():
        return
    if to_device and source.dtype == torch.uint8 and source.dim() == 4:
        counts.images = max(counts.images, len(source))
        counts.sent += len(source)
    free = not patient and (not to_device or _is_pinned(source))
    counts.note("h2d" if to_device else "d2h", what, waits=not free)


pinned: dict[int, int] = {}
"""Addresses of pinned memory with its size."""


def _pin(tensor: Tensor) -> Tensor:
    copy = tensor.clone()
    pinned[copy.untyped_storage().data_ptr()] = copy.untyped_storage().nbytes()
    return copy


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in pinned


def _check_operands(func: Any, args: Sequence[Any], flat: Sequence[Any]) -> None:
    """Refuse operands of two devices, but for what CUDA takes: numbers, and places to index with."""
    indices = {id(x) for x in (args[1] if func in INDEXED and len(args) > 1 else ()) or ()}
    strict = func in (aten.cat.default, aten.stack.default)
    names = [x for x in flat if isinstance(x, Tensor)]
    first = names[0] if names else None
    for tensor in names:
        if isinstance(tensor, AccelTensor) or id(tensor) in indices:
            continue
        in_place = tensor is first and func._schema.name[-1] == "_"
        if tensor.dim() == 0 and not strict and not in_place:
            continue
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cpu "
            f"({list(tensor.shape)}) and {NAME}:0, in {func} at {_line()}"
        )


def _count(func: Any, args: Sequence[Any]) -> None:
    if func in ASKING:
        counts.note("sync", ASKING[func])
    elif func in INDEXED:
        for index in args[1]:
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                counts.note("sync", "a mask as index")
            elif isinstance(index, Tensor) and not isinstance(index, AccelTensor):
                counts.note("h2d", "an index of the host", waits=not _is_pinned(index))
    if func not in NO_KERNEL:
        counts.kernels += 1


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from _leaves(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _leaves(item)
    else:
        yield tree


class Everywhere(TorchDispatchMode):
    """Sees what no tensor of the accelerator takes part in: what is made there, and what comes there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


MODULE = SimpleNamespace(manual_seed_all=lambda seed: None, _is_in_bad_fork=lambda: False)
MODULE.is_initialized = MODULE.is_available = lambda: True
MODULE.current_device, MODULE.device_count = lambda: 0, lambda: 1
"""What ``torch.accel`` is."""
_setup_privateuseone_for_python_backend(NAME, backend_module=MODULE)
DEVICE = torch.device(f"{NAME}:0")


def _empty(size: Sequence[int], stride: Sequence[int], **options: Any) -> Tensor:
    return AccelTensor(torch.empty_strided(size, stride, dtype=options.get("dtype")))


def _copy_from(source: Tensor, target: AccelTensor, non_blocking: bool = False) -> Tensor:
    _note_copy(source, True, not non_blocking, "torch.tensor")
    target.held.copy_(source)
    return target


# ``torch.tensor(..., device=...)`` hides what it does from everything else.
_library = torch.library.Library("aten", "IMPL")
_library.impl("empty_strided", _empty, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")


@contextmanager
def pretending() -> Iterator[Counts]:
    """Have the accelerator, and count from nothing."""
    counts.reset()
    # A module's conversion would else give a parameter the shape of the new tensor, and not what it holds.
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with Everywhere():
            yield counts
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
        pinned.clear()
