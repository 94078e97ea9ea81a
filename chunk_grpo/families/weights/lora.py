"""Low-rank adapters (peft) on a diffusers transformer: add, switch off, save in diffusers' format, load."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from diffusers.loaders.lora_base import LORA_ADAPTER_METADATA_KEY
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import Conditioning, TuningOptions
from chunk_grpo.families.quantised import has_nf4, leave_out_of_replicas, without_remark_on_merging
from chunk_grpo.families.sharding import StoredTensor, local_shard
from chunk_grpo.families.weights.adapter_file import PREFIX, WEIGHTS, Adapter, LayerNames, read_adapter

if TYPE_CHECKING:
    from chunk_grpo.families.diffusers_family import DiffusersFamily

_ADAPTER = "default"


def has_lora(network: nn.Module) -> bool:
    """Whether the network has an adapter, on or off."""
    return next(_layers(network), None) is not None


def add_lora(network: Any, options: TuningOptions, seed: int) -> None:
    """Freeze the network and add a trainable float32 adapter with B = 0, which leaves the output unchanged.

    The network is changed in place; its own weights keep their type. Rank, targets, shapes and `seed` determine A,
    independent of earlier random draws. ConfigError if rank, alpha or targets are wrong.
    """
    if options.lora_rank is None or options.lora_rank < 1:
        raise ConfigError(f"train.lora.rank: must be at least 1, got {options.lora_rank}")
    if not options.lora_alpha > 0:
        raise ConfigError(f"train.lora.alpha: must be above 0, got {options.lora_alpha}")
    check_targets(network, options.lora_targets)
    # peft annotates alpha as int, but accepts any number and divides it by the rank.
    config = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,  # type: ignore[arg-type]
        target_modules=sorted(set(options.lora_targets)),
    )
    # peft draws from torch's global CPU generator. torch.manual_seed would also seed the GPU generators.
    with torch.random.fork_rng(devices=[]), without_remark_on_merging():
        torch.default_generator.manual_seed(seed)
        network.add_adapter(config, adapter_name=_ADAPTER)
    _widen(network)
    if options.lora_precision == "network":
        _compute_as_network(network)
    leave_out_of_replicas(network)


def check_targets(network: nn.Module, targets: tuple[str, ...]) -> None:
    """ConfigError unless each target is, by peft's rule, the name of linear layers only, or its end after a dot."""
    modules = dict(network.named_modules())
    linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    there = ", ".join(sorted({_short(name) for name in linear}))
    if not targets:
        raise ConfigError(f"train.lora.targets: must name linear layers, got none. Available: {there}")
    for target in targets:
        named = [m for name, m in modules.items() if name == target or name.endswith(f".{target}")]
        if not named or not all(isinstance(module, nn.Linear) for module in named):
            raise ConfigError(
                f"train.lora.targets: must name linear layers of {type(network).__name__}, got {target!r}. "
                f"Available: {there}"
            )


def _short(name: str) -> str:
    """Last part of a module's name, such as to_q; the last two if the last is a number, such as to_out.0."""
    parts = name.split(".")
    return ".".join(parts[-2:] if parts[-1].isdigit() else parts[-1:])


def lora_parameters(network: nn.Module) -> Iterator[nn.Parameter]:
    """Adapter weights in the order of the network's layers, A before B."""
    for layer in _layers(network):
        yield from layer.lora_A[_ADAPTER].parameters()
        yield from layer.lora_B[_ADAPTER].parameters()


def _layers(network: nn.Module) -> Iterator[LoraLayer]:
    return (module for module in network.modules() if isinstance(module, LoraLayer))


def _widen(network: Any) -> None:
    """Cast the adapter to float32, on the network's device: peft creates it in the type and place of its layer."""
    for layer in _layers(network):
        layer.lora_A[_ADAPTER].to(network.device, torch.float32)
        layer.lora_B[_ADAPTER].to(network.device, torch.float32)


class _CastLinear(nn.Linear):
    """A layer whose weights are cast to the type of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype))


def _compute_as_network(network: nn.Module) -> None:
    """Let the float32 adapter compute in the type of its layers' inputs. peft would cast the inputs instead."""
    for layer in _layers(network):
        layer.cast_input_dtype_enabled = False
        for part in (layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER]):
            part.__class__ = _CastLinear


@contextmanager
def lora_off(network: nn.Module) -> Iterator[None]:
    """Context in which the adapter is off. Afterwards its state is restored."""
    # peft makes an adapter trainable when it is switched on and frozen when off; both states are restored.
    layers = [(layer, layer.disable_adapters) for layer in _layers(network)]
    trainable = [(parameter, parameter.requires_grad) for parameter in lora_parameters(network)]
    try:
        for layer, _ in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer, was_off in layers:
            layer.enable_adapters(not was_off)
        for parameter, flag in trainable:
            parameter.requires_grad_(flag)


class WithoutLora:
    """The untrained policy of a family: its adapter is off, its weights are shared."""

    def __init__(self, family: DiffusersFamily) -> None:
        """Wrap a family, whose adapter is on outside of this policy."""
        self._family = family

    # Without no_grad, DistributedDataParallel would prepare a backward pass for this forward pass, and gradient
    # checkpointing would recompute it with the adapter on.
    @torch.no_grad()
    def velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        """Velocity [B, L, D] of the untrained policy, through the network set by `use_network`."""
        with lora_off(self._family.transformer):
            return self._family.velocity(x, t, conditioning)


def lora_state(network: nn.Module) -> dict[str, Tensor]:
    """Adapter weights by diffusers' names, not copied."""
    state: dict[str, Tensor] = get_peft_model_state_dict(network, adapter_name=_ADAPTER)
    return state


def save_lora(network: Any, state: Mapping[str, Tensor], folder: Path) -> None:
    """Write the folder that diffusers' `load_lora_weights` reads: the adapter alone, float32.

    Equal weights give equal bytes. diffusers' own writer does not guarantee that: its metadata contain a set, and two
    entries that safetensors writes in any order. The metadata hold only settings that differ from peft's defaults, so
    that other versions of peft can read them.
    """
    config = network.peft_config[_ADAPTER]
    metadata = {
        f"{PREFIX}r": config.r,
        f"{PREFIX}lora_alpha": config.lora_alpha,
        f"{PREFIX}target_modules": sorted(config.target_modules),
    }
    state = {f"{PREFIX}{name}": value.contiguous() for name, value in state.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / WEIGHTS, metadata={LORA_ADAPTER_METADATA_KEY: json.dumps(metadata, sort_keys=True)})


def with_lora(network: Any, path: Path, names: LayerNames) -> Any:
    """A frozen network with the adapter from a file, read as by `read_adapter`.

    Its base weights are shared with `network`, which is not changed; an adapter of `network` is not copied.
    """
    adapted = copy.deepcopy(network, memo={id(weight): weight for weight in network.parameters()})
    if has_lora(adapted):
        adapted.unload_lora()
    adapter = read_adapter(path, adapted, names)
    if (dora := _dora(adapter)) and has_nf4(network):
        raise DataError(
            f"{path}: must be LoRA beside a base of model.base_precision: nf4, got DoRA ({dora}), which peft does not "
            "load there; set int8, float8 or null"
        )
    try:
        # low_cpu_mem_usage creates the adapter on the meta device, so no random values are drawn.
        with without_remark_on_merging():
            adapted.load_lora_adapter(dict(adapter.weights), prefix=None, adapter_name=_ADAPTER, low_cpu_mem_usage=True)
        _widen(adapted)
        # Load again in float32: on a half-precision network the loader has rounded the values.
        load_exactly(lora_state(adapted), adapter.weights)
    except (RuntimeError, TypeError, ValueError, DataError) as error:
        raise DataError(
            f"{path}: not an adapter of this {type(network).__name__} ({error}). Load it on the checkpoint on "
            "which it was trained."
        ) from error
    for name, layer in adapted.named_modules():
        if isinstance(layer, LoraLayer):
            layer.scaling[_ADAPTER] = adapter.scales[name]
    return adapted.requires_grad_(False).eval()


def merge_lora(network: Any) -> Any:
    """The network, changed in place, with its adapter in its weights."""
    network.fuse_lora()
    network.unload_lora()
    return network


def rescaled_state(path: Path, names: LayerNames, network: nn.Module, scale: float) -> dict[str, Tensor]:
    """Weights of an adapter, float32, with B such that with `scale` in place of its alpha / rank it does the same."""
    adapter = read_adapter(path, network, names)
    if dora := _dora(adapter):
        raise DataError(
            f"{path}: must be LoRA where train.lora trains one, got DoRA ({dora}); train all "
            "weights (train.lora: null), or merge it into the base model"
        )
    factors = {f"{name}.lora_B.weight": found / scale for name, found in adapter.scales.items()}
    return {name: weight * factors.get(name, 1.0) for name, weight in adapter.weights.items()}


def _dora(adapter: Adapter) -> str | None:
    """First weight of an adapter that only DoRA has."""
    return next((name for name in adapter.weights if name.endswith("lora_magnitude_vector")), None)


@torch.no_grad()
def load_exactly(target: Mapping[str, Tensor], given: Mapping[str, Tensor | StoredTensor]) -> None:
    """Copy unsharded or stored tensors into `target`, whose tensors may be sharded.

    Raises:
        DataError: Names or shapes differ; the message names the first weight. Nothing was changed.
    """
    for name in sorted({*target, *given}):
        found, wanted = (list(side[name].shape) if name in side else None for side in (given, target))
        if found != wanted:
            raise DataError(f"{name}: must have the shape {wanted}, got {found} (None: no such weight)")
    for name, tensor in target.items():
        tensor.copy_(local_shard(tensor, given[name]))
