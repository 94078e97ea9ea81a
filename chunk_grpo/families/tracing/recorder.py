"""Operations of a pass, and the bytes of tensors that live at once."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count


@dataclass
class Costs:
    """Costs at one place of a pass."""

    forward: float = 0.0
    """Operations of the forward pass."""
    backward: float = 0.0
    """Operations of the backward pass."""
    recomputed: float = 0.0
    """Operations of the forward pass that run again in the backward pass."""
    start: int = 0
    """Bytes when the place begins in the forward pass."""
    peak: int = 0
    """Most bytes in the forward pass."""
    back_start: int = 0
    """Bytes when its backward pass begins."""
    back_peak: int = 0
    """Most bytes in the backward pass."""

    @property
    def flop(self) -> tuple[float, float, float]:
        """Operations: forward, backward, recomputed."""
        return self.forward, self.backward, self.recomputed


class Recorder(TorchDispatchMode):
    """Costs of the operations inside the context, by place.

    Attributes:
        visit: Number of the last block that began, from 0; -1 before the first.
        is_inside: Whether it still runs.
        is_backward: Whether the backward pass has begun.
        places: Costs by (visit, is_inside).
        scores: Most elements of a tensor of attention scores.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        """Count tensors beyond the known ones."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation here
        self.visit, self.is_inside, self.is_backward = -1, False, False
        self.places: dict[tuple[int, bool], Costs] = defaultdict(Costs)
        self.scores = 0
        self._now = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._seen: set[int] = set()

    def move(self, visit: int, *, is_inside: bool) -> None:
        """Say where the next operations are."""
        if (visit, is_inside) == (self.visit, self.is_inside):
            return
        self.visit, self.is_inside = visit, is_inside
        if self.is_backward:
            self._place.back_start = self._now
        else:
            self._place.start = self._now
        self._rise(0)

    def begin_backward(self) -> None:
        """Say that the backward pass begins."""
        self.is_backward = True
        self._rise(0)

    def _rise(self, size: int) -> None:
        self._now += size
        if self.is_backward:
            self._place.back_peak = max(self._place.back_peak, self._now)
        else:
            self._place.peak = max(self._place.peak, self._now)

    @property
    def _place(self) -> Costs:
        return self.places[self.visit, self.is_inside]

    def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.prim.device.default:
            # Asked for all the time: a fake tensor's is at hand.
            return getattr(args[0], "fake_device", None) or function(*args)
        made = function(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, Tensor):
                self._see(value.untyped_storage())
        self._count(function, args, kwargs or {}, made)
        return made

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen or key in self._known:
            return
        self._seen.add(key)
        self._rise(size)

        def gone() -> None:
            self._seen.discard(key)
            self._now -= size

        weakref.finalize(storage, gone)

    def _count(self, function: Any, args: Any, kwargs: Any, made: Any) -> None:
        packet = function._overloadpacket
        formula = _ATTENTION.get(packet) or flop_registry.get(packet)
        if formula is None:
            return
        if packet in _ATTENTION and packet is not _BACKWARD:
            query, key = args[:2]
            self.scores = max(self.scores, query.shape[:-1].numel() * key.shape[-2])
        flop = float(formula(*args, **kwargs, out_val=made))
        if not self.is_backward:
            self._place.forward += flop
        elif torch.is_grad_enabled():  # what checkpointing computes again; gradients are computed without
            self._place.recomputed += flop
        else:
            self._place.backward += flop


@contextmanager
def wide_norms() -> Iterator[None]:
    """Norms in float32, as under a GPU's autocast (ATen/autocast_mode.h); a CPU's leaves them in bfloat16."""
    layer_norm, rms_norm = functional.layer_norm, functional.rms_norm

    def wide_layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return layer_norm(x, shape, weight, bias, eps)
        wide = [None if part is None else part.float() for part in (weight, bias)]
        return layer_norm(x.float(), shape, wide[0], wide[1], eps)

    def wide_rms_norm(x: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return rms_norm(x, shape, weight, eps)
        return rms_norm(x.float(), shape, None if weight is None else weight.float(), eps)

    with patch.object(functional, "layer_norm", wide_layer_norm), patch.object(functional, "rms_norm", wide_rms_norm):
        yield


def _forward(query: Any, key: Any, value: Any, *args: object, **options: object) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _backward(grad: Any, query: Any, key: Any, value: Any, *args: object, **options: object) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_ATTENTION: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _forward,
    _BACKWARD: _backward,
}
"""torch counts the fused attention of GPUs, not that of CPUs; the formula is the same."""
