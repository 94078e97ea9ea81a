"""Compilation of a transformer's repeated blocks (torch.compile)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch._dynamo.config as dynamo
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch.utils._pytree import tree_map_only

from chunk_grpo.environment import own_cache
from chunk_grpo.errors import ConfigError
from chunk_grpo.families.quantised import frozen_weights

_LOGGER = logging.getLogger(__name__)

_BACKEND = "inductor"
_OPTIONS = {"triton.coalesce_tiling_analysis": False}
"""With torch 2.11 the analysis failed on FLUX's blocks on a GPU."""

_GRAPHS = 2**20
"""Most graphs of a kind of block: more than there can be numbers of images, with and without gradient and adapter.

Torch's limits are 8, and 256 in all; what comes then would run uncompiled without a word.
"""

_CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""Torch's variable for the folder of compiled graphs; its default is below /tmp, which a container loses."""

_forgetting = False
"""Whether compiled blocks forget what a backward pass would need."""


def compile_blocks(network: Any) -> None:
    """Compile the blocks in place, each when it first runs; names of weights do not change.

    Torch's own trainers compile blocks before they shard them. In place the order changes nothing: a block's hooks,
    which gather its weights, run around the compiled function.

    Each number of images has a graph of its own, which does not depend on those before it: a training that is resumed
    rounds as a whole one. On a GPU, torch 2.11's inductor failed with graphs of any number, or, without the analysis of
    `_OPTIONS`, did not end within 150 s with LoRA.

    Args:
        network: Diffusers transformer; its `_repeated_blocks`, or else its `_no_split_modules`, name the blocks.
    """
    _keep_graphs()
    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = _GRAPHS
    dynamo.fail_on_recompile_limit_hit = True
    names = set(network._repeated_blocks or network._no_split_modules)
    for module in network.modules():
        # Sharding has put a class of its own before that of a block. diffusers' compile_repeated_blocks misses it.
        if names & {kind.__name__ for kind in type(module).__mro__}:
            module.compile(dynamic=False, backend=_BACKEND, options=_OPTIONS)
            module._compiled_call_impl = _able_to_forget(module._compiled_call_impl)


@contextmanager
def graphs_of_training() -> Iterator[None]:
    """Context of a pass without a backward pass that runs the compiled graphs of passes with one.

    The graphs round differently, so that ratios of a policy to itself would not be 1. Blocks keep one block's
    activations at a time; the caller detaches the result.
    """
    global _forgetting
    before, _forgetting = _forgetting, True
    try:
        with torch.enable_grad():
            yield
    finally:
        _forgetting = before


def _able_to_forget(block: Callable[..., Any]) -> Callable[..., Any]:
    """The block; in the context of `graphs_of_training` its outputs are cut off from its inputs.

    They still require a gradient where they did, because the next block's graph depends on it. ConfigError: the
    compiler fails on the block.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            found = block(*args, **kwargs)
        except BackendCompilerFailed as error:
            raise _refused("a block", error) from error
        if not _forgetting:
            return found
        return tree_map_only(torch.Tensor, lambda value: value.detach().requires_grad_(value.requires_grad), found)

    return call


def _keep_graphs() -> None:
    """Keep compiled graphs for later runs, in this user's folder if no other one is set.

    Torch sets the variable to its default when it is imported.
    """
    if os.environ.get(_CACHE, default_cache_dir()) == default_cache_dir():
        os.environ[_CACHE] = str(own_cache("compiled"))


def will_compile(wanted: bool | Literal["auto"], network: nn.Module, device: torch.device) -> bool:
    """Whether to compile the blocks of a network that is not sharded yet: as wanted, or by itself on a GPU.

    Args:
        wanted: `auto`: on a GPU where `try_compiler` succeeds, else with a warning not; and never beside quantised or
            swapped weights, which the compiler cannot take.
        network: The transformer.
        device: Its device.

    Raises:
        ConfigError: True is wanted, and the compiler does not work.
    """
    if wanted == "auto" and (device.type == "cpu" or frozen_weights(network)):
        return False
    if not wanted:
        return False
    try:
        try_compiler(device)
    except ConfigError as error:
        if wanted != "auto":
            raise
        _LOGGER.warning("%s. Blocks run uncompiled", error)
        return False
    return True


def try_compiler(device: torch.device) -> None:
    """Compile and run a small function.

    Raises:
        ConfigError: It does not work, such as without a C++ compiler on the CPU or without triton on a GPU.
    """

    class Small(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() + 1

    _keep_graphs()
    small = Small()
    small.compile(dynamic=False, backend=_BACKEND, options=_OPTIONS)
    try:
        small(torch.ones(4, 4, device=device)).cpu()
    except Exception as error:  # compilers have errors of their own
        raise _refused(f"for {device.type}", error) from error


def _refused(what: str, error: Exception) -> ConfigError:
    reason = next((line for line in str(error).splitlines() if not line.endswith(":")), type(error).__name__)
    return ConfigError(
        f"train.compile: torch cannot compile {what} here ({reason}); install a C++ compiler, on a GPU triton too, or "
        "set train.compile to false"
    )
