"""A pretended accelerator: the device `pretend`, whose tensors live in the CPU's memory but do not mix with the CPU's.

It is PyTorch's PrivateUse1 device, registered when this module is imported. As on CUDA, an operation on tensors of both
devices raises RuntimeError, except for copies, 0-dimensional tensors of the CPU, and tensors of the CPU as indices.
`WAITS` counts what would make the CPU wait for a GPU, by the line of this repository's code that asked for it.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

aten = torch.ops.aten
ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(str(ROOT / folder) for folder in ("chunk_grpo", "stages"))

COPIES = {aten.copy_.default, aten._to_copy.default}
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}
READING = {
    aten._local_scalar_dense.default,  # item, float, int, bool
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}
"""Operations whose result, or the shape of it, the CPU needs at once."""

LOWER_PRECISION = (
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv2d", "scaled_dot_product_attention",
)  # fmt: skip
FLOAT32 = (
    "layer_norm",
    "rms_norm",
    "group_norm",
    "softmax.int",
    "pow.Tensor_Scalar",
    "rsqrt",
    "exp",
    "sum.dim_IntList",
)
"""Operations that autocast runs in its type, and in float32."""


class Waits:
    """Waits of the CPU for the device: `read` for values and copies from it, `sent` for copies to it."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, kind: Counter[str], operation: object) -> None:
        """Add a wait of the line of our code that is being run."""
        with self._lock:
            kind[f"{_line_of_ours()} {operation}"] += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count from 0 inside the block; the counts stay readable after it."""
        self.read.clear()
        self.sent.clear()
        yield


WAITS = Waits()


class PretendedTensor(Tensor):
    """Tensor of the device `pretend` around a tensor of the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendedTensor:
        # In inference mode, a view of a normal tensor must be a normal tensor too, and a wrapper knows no views.
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
            made = Tensor._make_wrapper_subclass(
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=DEVICE,
            )
        made.held = held.detach()
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Operations that autograd would have taken apart: in a tensor around this one, it is over.
        if torch.is_inference_mode_enabled() or operation._overloadpacket is aten.to:
            found = operation.decompose(*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        return _run(operation, args, kwargs or {})

    def tolist(self) -> Any:
        """The values; torch's own refuses subclasses."""
        return self.cpu().tolist()

    def untyped_storage(self) -> Any:
        """The memory that safetensors looks for when it searches for shared tensors."""
        return self.held.untyped_storage()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved, it is a tensor of the CPU, as the code reads it back (map_location="cpu")."""
        return self.detach().cpu().__reduce_ex__(protocol)

    # Tells Module.to and Module.float to exchange parameters by swap_tensors: assigning `data` would not reach `held`.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(parts: Any, *_: Any) -> PretendedTensor:
        return PretendedTensor(parts["held"])

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"PretendedTensor({tuple(self.shape)}, {self.dtype})"  # its values would be a wait


class _Module(_DummyBackendModule):
    """What torch asks of `torch.pretend`: precision, random state and current device."""

    def is_available(self) -> bool:
        return False  # to code that asks for any accelerator, such as torch.utils.benchmark, there is none

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    def device(self, number: object) -> Any:
        return nullcontext()


class _Hook(_DummyPrivateUse1Hook):
    def is_available(self) -> bool:
        return False


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _call(operation: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(operation, args, kwargs)


def _run(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the tensors that are held, and put its results on the device."""
    if operation is aten._fused_sdp_choice.default:
        return 0  # the formula itself; the CPU's fused kernel belongs to the CPU's dispatch
    tensors: list[Tensor] = []
    inner_args, inner_kwargs = (_held(args, tensors), {name: _held(part, tensors) for name, part in kwargs.items()})
    _check(operation, args, kwargs, tensors)
    _count(operation, args, kwargs)
    found = operation(*inner_args, **inner_kwargs)
    if operation._schema.is_mutable:
        return return_and_correct_aliasing(operation, args, kwargs, found)  # the argument that was changed
    if operation is aten._to_copy.default and _target(kwargs).type == "cpu":
        return found
    return _on_device(found)


def _held(value: Any, tensors: list[Tensor]) -> Any:
    """The argument with tensors and devices of the CPU; adds the tensors that were given to the list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.held if isinstance(value, PretendedTensor) else value
    if isinstance(value, list | tuple):
        return type(value)(_held(part, tensors) for part in value)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _on_device(found: Any) -> Any:
    if isinstance(found, Tensor):
        return PretendedTensor(found)
    return type(found)(map(_on_device, found)) if isinstance(found, list | tuple) else found


def _target(kwargs: dict[str, Any]) -> torch.device:
    """Device of a copy."""
    return torch.device(kwargs.get("device") or DEVICE)


def _count(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count the operation if it makes the CPU wait."""
    if operation is aten.copy_.default:
        into, source = args[0].device, args[1].device
    elif operation is aten._to_copy.default:
        into, source = _target(kwargs), args[0].device
    else:
        if operation in READING or (operation in INDEXING and _has_mask(args[1])):
            WAITS.count(WAITS.read, operation)
        return
    if into.type != source.type:
        WAITS.count(WAITS.read if into.type == "cpu" else WAITS.sent, operation)


def _check(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
    """Refuse what CUDA refuses."""
    if isinstance(kwargs.get("generator"), torch.Generator) and kwargs["generator"].device != DEVICE:
        raise RuntimeError(f"{operation}: expected a generator of {DEVICE}, got one of the CPU")
    if operation in COPIES:
        return
    alone = torch.Tag.pointwise in operation.tags or operation in INDEXING  # as CUDA's kernels for scalars
    foreign = [t for t in tensors if not isinstance(t, PretendedTensor) and not (alone and t.ndim == 0)]
    if operation in INDEXING and isinstance(args[0], PretendedTensor):
        indices = [index for index in args[1] if index is not None and index.device != DEVICE]
        for _ in indices:
            WAITS.count(WAITS.sent, operation)
        foreign = [tensor for tensor in foreign if all(tensor is not index for index in indices)]
    if foreign:
        shapes = [tuple(tensor.shape) for tensor in foreign]
        raise RuntimeError(f"{operation}: expected all tensors on {DEVICE}, got tensors of the CPU {shapes}")


def _casting(operation: Any, dtype: torch.dtype | None) -> Callable[..., Any]:
    """The operation on floating-point tensors of this type; None: of autocast's."""

    def cast(tensor: Tensor) -> Tensor:
        wanted = dtype or torch.get_autocast_dtype(DEVICE.type)
        return tensor.to(wanted) if tensor.is_floating_point() and tensor.device == DEVICE else tensor

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            args, kwargs = tree_map_only(Tensor, cast, (args, kwargs))
            return operation(*args, **kwargs)

    return call


def _has_mask(indices: Any) -> bool:
    """Whether a mask of the device must be counted to know the shape of the result."""
    return any(isinstance(index, PretendedTensor) and index.dtype == torch.bool for index in indices)


def _line_of_ours() -> str:
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "elsewhere"
    return f"{Path(frame.f_code.co_filename).relative_to(ROOT).as_posix()}:{frame.f_lineno}"


_setup_privateuseone_for_python_backend("pretend", backend_module=_Module(), hook=_Hook())
DEVICE = torch.device("pretend", 0)
# Operations without a tensor to ask, such as torch.zeros, arrive here.
_LIBRARY = torch.library.Library("_", "IMPL")
_LIBRARY.fallback(_call, "PrivateUse1")
# torch.tensor and as_tensor copy to the device below the subclass, where the fallback finds no tensors of a subclass.
# Ranges would resize an empty tensor, and a wrapper keeps its shape.
_ATEN = torch.library.Library("aten", "IMPL")
for name in ("copy_", "arange", "arange.start", "arange.start_step", "linspace", "randperm", "eye", "eye.m"):
    _ATEN.impl(name, partial(_call, _operation(name)), "PrivateUse1")
# A device's autocast is its backend's: the rules of CUDA for the operations of this repository's models.
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_LIBRARY.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
for names, dtype in ((LOWER_PRECISION, None), (FLOAT32, torch.float32)):
    for name in names:
        _ATEN.impl(name, _casting(_operation(name), dtype), "AutocastPrivateUse1")
