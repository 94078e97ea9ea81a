"""The optimisers of training. Their state dicts hold tensors that a checkpoint can write, sharded or not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from chunk_grpo.errors import ConfigError
from chunk_grpo.families.sharding import local_shard

OptimizerName = Literal["adamw", "adamw-fused", "adamw-8bit"]

_SMALLEST = 4096
"""Fewest values of a weight whose moments are quantised, as in the libraries."""

_MOMENTS = {"exp_avg": True, "exp_avg_sq": False}
"""Name of a moment in AdamW's state, and whether its values have signs."""


def make_optimizer(
    name: OptimizerName, parameters: list[nn.Parameter], learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """AdamW over the parameters.

    Args:
        name: `adamw`: few operations over all weights; `adamw-fused`: one kernel; `adamw-8bit`: moments of a byte a
            weight, in blocks of 256 with a common scale (arXiv 2110.02861).
        parameters: Trained parameters, sharded or not.
        learning_rate: Learning rate.
        weight_decay: Weight decay.

    Raises:
        ConfigError: The package of `adamw-8bit` is not installed.
    """
    if name == "adamw-8bit":
        return _eight_bit()(parameters, lr=learning_rate, weight_decay=weight_decay)
    if name == "adamw-fused":
        return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)
    return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=weight_decay)


def require_optimizer(name: OptimizerName) -> None:
    """Check that the package of an optimiser is installed; ConfigError if it is not."""
    if name == "adamw-8bit":
        _eight_bit()


@cache
def _eight_bit() -> Callable[..., torch.optim.Optimizer]:
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise ConfigError(
            f"train.optimizer: adamw-8bit needs torchao, which cannot be imported ({error}); run "
            "`pip install 'torchao>=0.18,<0.19'`, or set adamw or adamw-fused"
        ) from error

    class RowwiseAdamW8bit(AdamW8bit):  # type: ignore[misc]  # torchao ships no types
        """AdamW8bit whose blocks lie within rows, so that any number of processes can read its state.

        torchao divides each process's shard into blocks, and only its own classes read its tensors. Here a moment is
        saved as codes, of the weight's shape, and scales, of one row a row of the weight; both are sharded as it is.
        """

        def __init__(self, parameters: list[nn.Parameter], *, lr: float, weight_decay: float) -> None:
            super().__init__(parameters, lr=lr, weight_decay=weight_decay)
            self.register_state_dict_post_hook(_saved)
            self.register_load_state_dict_pre_hook(_loaded)

        def _new_buffer(self, p: Tensor, signed: bool) -> Tensor:
            local = _local(p)
            if not _is_quantised(p, self.block_size) or not local.numel():
                return torch.zeros_like(p)
            return _sharded_as(p, self._subclass_zeros(local, signed, self.block_size), p.shape)

    return RowwiseAdamW8bit


def _is_quantised(weight: Tensor, block: int) -> bool:
    """Whether the moments of a weight are quantised: it is large, and its rows consist of whole blocks."""
    return weight.ndim > 1 and weight.numel() >= _SMALLEST and math.prod(weight.shape[1:]) % block == 0


def _saved(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The state dict with codes and scales in place of each quantised moment."""

    def plain(weight: Tensor, name: str, value: Any) -> Any:
        if name not in _MOMENTS or not _is_quantised(weight, optimizer.block_size):
            return value
        local, blocks = _local(value), math.prod(weight.shape[1:]) // optimizer.block_size
        if local.numel():
            codes, scales = local.codes, local.scale.view(-1, blocks)
        else:  # a process without a row has no blocks either
            codes, scales = local.to(torch.uint8), local.new_zeros(0, blocks)
        return {
            "codes": _sharded_as(weight, codes, weight.shape),
            "scales": _sharded_as(weight, scales, torch.Size((weight.shape[0], blocks))),
        }

    return _each(optimizer, state, plain)


def _loaded(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `_saved`, with this process's part of the codes and scales."""

    def quantised(weight: Tensor, name: str, value: Any) -> Any:
        if name not in _MOMENTS or not _is_quantised(weight, optimizer.block_size):
            return value
        buffer = optimizer._new_buffer(weight, _MOMENTS[name])
        local = _local(buffer)
        if local.numel():
            codes = _sharded_as(weight, local.codes, weight.shape)
            scales = _sharded_as(weight, local.scale.view(len(local), -1), value["scales"].shape)
            codes.copy_(local_shard(codes, value["codes"]))
            scales.copy_(local_shard(scales, value["scales"]))
        return buffer

    return _each(optimizer, state, quantised)


def _each(optimizer: Any, state: dict[str, Any], change: Callable[[Tensor, str, Any], Any]) -> dict[str, Any]:
    """The state dict with `change(weight, name, value)` in place of each value."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    changed = {
        number: {name: change(weights[number], name, value) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": changed}


def _local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _sharded_as(like: Tensor, local: Tensor, shape: torch.Size) -> Tensor:
    """A tensor of this shape, sharded by rows as `like`, of which this process has `local`."""
    if not isinstance(like, DTensor):
        return local
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, like.device_mesh, like.placements, run_check=False, shape=shape, stride=stride)
