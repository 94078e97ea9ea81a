"""Names of layers in the original code, against diffusers' own conversion of original checkpoints."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from diffusers import (
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    QwenImage21Transformer2DModel,
    SD3Transformer2DModel,
    ZImageTransformer2DModel,
)
from diffusers.loaders import single_file_utils
from safetensors.torch import save_file
from torch import Tensor, nn

from chunk_grpo.families.registry import family_class
from chunk_grpo.families.weights.adapter_file import read_adapter


class Rest(dict[str, Tensor]):
    """A checkpoint that has what the conversion asks for besides: norms and biases, with any values."""

    def pop(self, name: str, *default: Any) -> Any:
        return super().pop(name, torch.zeros(21504 if "linear1" in name else 6, 1))


def flux() -> nn.Module:
    """As wide as FLUX.1-dev: the conversion has its sizes."""
    return FluxTransformer2DModel(num_layers=2, num_single_layers=2, guidance_embeds=True)


def sd3() -> nn.Module:
    return SD3Transformer2DModel(
        num_layers=3, num_attention_heads=2, attention_head_dim=16, caption_projection_dim=32,
        dual_attention_layers=(0, 1), qk_norm="rms_norm",
    )  # fmt: skip


def flux2() -> nn.Module:
    return Flux2Transformer2DModel(
        num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2, guidance_embeds=True
    )


def z_image() -> nn.Module:
    return ZImageTransformer2DModel(dim=64, n_layers=2, n_heads=2, n_kv_heads=2, axes_dims=[8, 12, 12])


def qwen_image_21() -> nn.Module:
    return QwenImage21Transformer2DModel(
        num_layers=3, attention_head_dim=16, num_attention_heads=2, axes_dims_rope=(4, 6, 6)
    )


CONVERSIONS: Mapping[str, tuple[Callable[[], nn.Module], str, int]] = {
    "flux": (flux, "convert_flux_transformer_checkpoint_to_diffusers", 36),
    "sd3": (sd3, "convert_sd3_transformer_checkpoint_to_diffusers", 37),
    "flux2": (flux2, "convert_flux2_transformer_checkpoint_to_diffusers", 31),
    "flux2_klein": (flux2, "convert_flux2_transformer_checkpoint_to_diffusers", 31),
    "qwen_image_21": (qwen_image_21, "convert_qwen_image21_transformer_checkpoint_to_diffusers", 3),
    "z_image": (z_image, "convert_z_image_transformer_checkpoint_to_diffusers", 15),
}
"""By family: a network, its conversion in diffusers, and how many of its layers LoRA may be trained on."""


def original_shapes(name: str, network: nn.Module) -> dict[str, tuple[int, int]]:
    """Rows and columns of each layer of the original code that LoRA may be trained on."""
    modules, found = dict(network.named_modules()), {}
    for (original, own), layers in family_class(name).original_layers.items():
        for number in range(3):
            for layer, targets in layers.items():
                there = [modules.get(f"{own}{target}".format(number)) for target in targets.split()]
                if "processor" not in layer and isinstance(there[0], nn.Linear) and all(there):
                    rows = sum(module.weight.shape[0] for module in there if module is not None)
                    found[f"{original}{layer}".format(number)] = (rows, there[0].in_features)
    return found


@pytest.mark.parametrize(
    "spelling", [lambda layer: f"lora_unet_{layer.replace('.', '_')}", "diffusion_model.{}".format]
)
@pytest.mark.parametrize("name", CONVERSIONS)
def test_rows_go_where_diffusers_puts_those_of_a_checkpoint(name, spelling, tmp_path):
    """B of rank 1 is a column of a weight: the conversion of a checkpoint must place it like the adapter."""
    build, conversion, layers = CONVERSIONS[name]
    with torch.device("meta"):
        network = build()
    stream = torch.Generator().manual_seed(0)
    shapes = original_shapes(name, network)
    columns = {layer: torch.randn(rows, 1, generator=stream) for layer, (rows, _) in shapes.items()}
    given = Rest({f"{layer}.weight": column.clone() for layer, column in columns.items()})
    given["context_embedder.weight"] = torch.zeros(32, 1)  # its rows tell the width of SD3
    expected = getattr(single_file_utils, conversion)(given)
    file = {}
    for number, (layer, column) in enumerate(columns.items()):
        file[f"{spelling(layer)}.lora_up.weight"] = column
        file[f"{spelling(layer)}.lora_down.weight"] = torch.ones(1, shapes[layer][1])
        file[f"{spelling(layer)}.alpha"] = torch.tensor(2.0 + number)
    save_file(file, tmp_path / "a.safetensors")
    adapter = read_adapter(tmp_path / "a.safetensors", network, family_class(name).original_layers)
    assert len(adapter.scales) >= len(columns) == layers
    for layer in adapter.scales:
        assert torch.equal(adapter.weights[f"{layer}.lora_B.weight"], expected[f"{layer}.weight"]), layer
    assert set(adapter.scales.values()) == {2.0 + number for number in range(len(columns))}
