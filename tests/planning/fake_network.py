"""FLUX transformers of any size on fake tensors: torch's count of operations, and the peak of allocations."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal
from unittest.mock import patch

import torch
from diffusers import FluxTransformer2DModel
from peft import LoraConfig
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from chunk_grpo.planning.transformer import Adapter, Sequence2D, Transformer, Tuning

Trained = Literal["all", "adapter", "nothing"]
RANK, TARGETS = 32, ("to_q", "to_k", "to_v", "to_out.0")
FLUX_1_DEV = Transformer(24, 128, 19, 38, 64, 64, 4096, 768, True)


def small(double_blocks: int, single_blocks: int) -> Transformer:
    """FLUX.1-dev with fewer blocks."""
    return Transformer(24, 128, double_blocks, single_blocks, 64, 64, 4096, 768, True)


def tuning_of(sizes: Transformer, trained: Trained, checkpointing: bool) -> Tuning:
    adapter = Adapter.on(sizes, RANK, TARGETS) if trained == "adapter" else None
    return Tuning(sizes, adapter, checkpointing)


class Peak(TorchDispatchMode):
    """Bytes of the tensors made inside the context that live at once.

    Attributes:
        now: Bytes now.
        peak: Largest value of `now`.
    """

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.now, self.peak = 0, 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, Tensor):
                self._see(value.untyped_storage())
        return made

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen or key in self._known:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone() -> None:
            self._seen.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


def counted(sizes: Transformer, tokens: Sequence2D, **options: Any) -> int:
    """Operations of a pass, by torch's count; options as of `_pass`."""
    with FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION) as counter:
        _pass(sizes, tokens, **options)
    return int(counter.get_total_flops())


def allocated(sizes: Transformer, tokens: Sequence2D, **options: Any) -> int:
    """Peak bytes of a pass beyond weights, gradients and inputs; options as of `_pass`."""
    peaks: list[Peak] = []

    def watch(held: list[Tensor]) -> Peak:
        peaks.append(Peak(held))
        return peaks[0]

    _pass(sizes, tokens, watch=watch, **options)
    return peaks[0].peak


def _pass(
    sizes: Transformer,
    tokens: Sequence2D,
    *,
    images: int = 1,
    trained: Trained = "nothing",
    checkpointing: bool = False,
    autocasts: bool = False,
    watch: Callable[[list[Tensor]], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Run one pass of a bfloat16 network on fake tensors, backward too unless nothing is trained.

    Not both watched and counted: the counter's hooks keep tensors alive.
    """
    dtype = torch.bfloat16
    with torch.device("meta"):
        network = FluxTransformer2DModel(
            num_layers=sizes.double_blocks,
            num_single_layers=sizes.single_blocks,
            num_attention_heads=sizes.heads,
            attention_head_dim=sizes.head_channels,
            in_channels=sizes.in_channels,
            joint_attention_dim=sizes.text_channels,
            pooled_projection_dim=sizes.pooled_channels,
            guidance_embeds=sizes.has_guidance,
            axes_dims_rope=(sizes.head_channels - 2 * (sizes.head_channels // 3 // 2 * 2),)
            + (sizes.head_channels // 3 // 2 * 2,) * 2,
        )
    network.requires_grad_(trained == "all")
    if trained == "adapter":
        network.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=list(TARGETS)))
    if checkpointing:
        network.enable_gradient_checkpointing()
    with FakeTensorMode():
        held: list[Tensor] = []
        for module in network.modules():
            for name, weight in list(module._parameters.items()):
                if weight is None:
                    continue
                wide = torch.float32 if weight.requires_grad and trained == "adapter" else dtype
                fake = nn.Parameter(torch.empty(weight.shape, dtype=wide), requires_grad=weight.requires_grad)
                module._parameters[name] = fake
                held.append(fake)
                if fake.requires_grad:
                    fake.grad = torch.zeros_like(fake)
                    held.append(fake.grad)
        inputs = {
            "hidden_states": torch.randn(images, tokens.image, sizes.in_channels, dtype=dtype),
            "encoder_hidden_states": torch.randn(images, tokens.text, sizes.text_channels, dtype=dtype),
            "pooled_projections": torch.randn(images, sizes.pooled_channels, dtype=dtype),
            "timestep": torch.rand(images, dtype=dtype),
            "guidance": torch.full((images,), 3.5, dtype=dtype) if sizes.has_guidance else None,
            "txt_ids": torch.zeros(tokens.text, 3, dtype=dtype),
            "img_ids": torch.zeros(tokens.image, 3, dtype=dtype),
        }
        norms = _wide_norms() if autocasts else nullcontext()
        with norms, watch(held), torch.set_grad_enabled(trained != "nothing"):
            with torch.autocast("cpu", dtype, enabled=autocasts, cache_enabled=False):
                output = network(**inputs, return_dict=False)[0]
            if trained != "nothing":
                output.float().square().mean().backward()


@contextmanager
def _wide_norms() -> Iterator[None]:
    """Norms in float32, as under a GPU's autocast; a CPU's leaves them in bfloat16."""
    layer_norm, rms_norm = functional.layer_norm, functional.rms_norm

    def wide_layer_norm(
        x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Tensor:
        wide = [None if part is None else part.float() for part in (weight, bias)]
        return layer_norm(x.float(), shape, wide[0], wide[1], eps)

    def wide_rms_norm(x: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
        return rms_norm(x.float(), shape, None if weight is None else weight.float(), eps)

    with (
        patch.object(functional, "layer_norm", wide_layer_norm),
        patch.object(functional, "rms_norm", wide_rms_norm),
    ):
        yield


def _forward(query: Any, key: Any, value: Any, *args: object, **options: object) -> int:
    return int(sdpa_flop_count(query, key, value))


def _backward(grad: Any, query: Any, key: Any, value: Any, *args: object, **options: object) -> int:
    return int(sdpa_backward_flop_count(grad, query, key, value))


_CPU_ATTENTION: dict[Any, Any] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
}
"""torch counts the fused attention of GPUs, not that of CPUs; the formula is the same."""
