"""Values of integer and boolean fake tensors, so that a network may read its masks and lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

_LARGEST = 1 << 20
"""Most elements of a tensor whose values are computed."""

_DEVICE = torch.ops.prim.device.default
_INDEX = torch.ops.aten.index.Tensor
_READING = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.repeat_interleave.Tensor,
)
"""Operations whose result, or its shape, depends on values."""


class Values(TorchDispatchMode):
    """Computes the values of fake tensors that follow from integers and booleans alone.

    Fake tensors have no values, so reading one fails. Networks read the mask of a prompt, say, to find its length; a
    family's example of a prompt has that mask.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        """Follow the tensors of `fake`."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation here
        self._fake = fake
        self._known = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if function is _DEVICE:
            return function(*args)
        kwargs = kwargs or {}
        if function is _INDEX:
            args = (args[0], [each for index in args[1] for each in self._places(index)])
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not all(self._has_value(each) for each in inputs):
            if function._schema.is_mutable and args and isinstance(args[0], FakeTensor):
                self._known.pop(args[0], None)
            return function(*args, **kwargs)
        if function in _READING:
            return self._wrapped(self._computed(function, args, kwargs))
        made = function(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        if outputs and all(_is_exact(each) and isinstance(each, FakeTensor) for each in outputs):
            values = tree_leaves(self._computed(function, args, kwargs))
            for output, value in zip(outputs, (v for v in values if isinstance(v, Tensor)), strict=True):
                self._known[output] = value
        return made

    def _has_value(self, tensor: Tensor) -> bool:
        return not isinstance(tensor, FakeTensor) or tensor in self._known

    def _computed(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        real = tree_map(
            lambda leaf: self._known.get(leaf, leaf) if isinstance(leaf, FakeTensor) else leaf, (args, kwargs)
        )
        with unset_fake_temporarily():
            return function(*real[0], **real[1])

    def _wrapped(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        fake = self._fake.from_tensor(value)
        self._known[fake] = value
        return fake

    def _places(self, index: Tensor | None) -> list[Tensor | None]:
        """Indices [N] of each dimension of a mask, whose number a fake tensor does not know."""
        if index is None or index.dtype not in (torch.bool, torch.uint8) or not self._has_value(index):
            return [index]
        with unset_fake_temporarily():
            found = self._known.get(index, index).nonzero(as_tuple=True)
        return [self._wrapped(places) for places in found]


def _is_exact(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() <= _LARGEST
