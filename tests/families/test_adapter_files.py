"""Files of adapters in the layouts that programs write: each key is used, or the file is refused by the key's name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chunk_grpo.config.families import family_names
from chunk_grpo.errors import DataError
from chunk_grpo.families.base import TuningOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.weights.adapter_file import WEIGHTS, read_adapter
from chunk_grpo.families.weights.policy import comfyui_lora
from tests.families.conftest import options, velocity
from tests.families.parity import PROMPTS, as_loaded, encoded

NAMES = family_names()
RANK, ALPHA = 3, 6.0
TARGETS = ("to_q", "to_k")

State = dict[str, Tensor]
Load = Callable[[], FluxFamily]


def spelled(state: State, prefix: str, down: str, up: str, *, dots: bool = True, alpha: float | None = ALPHA) -> State:
    """An adapter in another program's layout. Without alpha, B carries the factor."""
    found: State = {}
    for key, weight in state.items():
        layer, part = key.split(".lora_")
        name = prefix + (layer if dots else layer.replace(".", "_"))
        factor = ALPHA / RANK if alpha is None and part.startswith("B") else 1.0
        found[f"{name}.{down if part.startswith('A') else up}.weight"] = weight * factor
        if alpha is not None:
            found[f"{name}.alpha"] = torch.tensor(alpha)
    return found


LAYOUTS: dict[str, Callable[[State], State]] = {
    # names: sd-scripts networks/lora_flux.py, musubi-tuner networks/lora.py
    "kohya, musubi-tuner": lambda s: spelled(s, "lora_unet_", "lora_down", "lora_up", dots=False),
    # toolkit/network_mixins.py with and without convert_lora_weights_before_save; alpha is the rank there
    "ai-toolkit": lambda s: spelled(s, "diffusion_model.", "lora_A", "lora_B", alpha=None),
    "ai-toolkit, FLUX.1": lambda s: spelled(s, "transformer.", "lora_A", "lora_B", alpha=None),
    # helpers/training/lora_format.py
    "SimpleTuner, ComfyUI": lambda s: spelled(s, "diffusion_model.", "lora_A", "lora_B"),
    "musubi-tuner, other": lambda s: spelled(s, "diffusion_model.", "lora_A", "lora_B", alpha=None),
    "LyCORIS": lambda s: spelled(s, "lycoris_", "lora_down", "lora_up", dots=False),
    "OneTrainer": lambda s: spelled(s, "lora_transformer_", "lora_down", "lora_up", dots=False),
    "PEFT without its settings": lambda s: spelled(s, "base_model.model.", "lora_A", "lora_B", alpha=None),
    "PEFT, not exported": lambda s: spelled(s, "", "lora_A.default", "lora_B.default", alpha=None),
    "older diffusers": lambda s: spelled(s, "transformer.", "lora.down", "lora.up"),
    "a wrapper": lambda s: spelled(s, "module.", "lora_A", "lora_B"),
    "half precision": lambda s: {k: v.bfloat16() for k, v in spelled(s, "transformer.", "lora_A", "lora_B").items()},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_means_the_same_in_every_layout(name, checkpoints, tmp_path):
    """The files of this program to the bit; those in which B carries the factor 2 too, as it is a power of 2."""
    torch.manual_seed(0)
    family = as_loaded(name, checkpoints(name)["sharded"])
    text = encoded(family, PROMPTS[:2])
    x, t = torch.randn(2, *family.latent_shape), torch.tensor([0.9, 0.2])

    def change(model: Any) -> Tensor:
        with torch.no_grad():
            return model.velocity(x, t, text)

    base = change(family)
    trained = as_loaded(name, checkpoints(name)["sharded"])
    trained.prepare_training(TuningOptions(RANK, ALPHA, TARGETS, False, None), 0)
    with torch.no_grad():
        for weight in trained.trainable_parameters():
            weight.copy_((weight + 0.2 * torch.randn(weight.shape)).bfloat16())
    expected = change(trained)
    assert (expected - base).norm() > 1e-3 * base.norm()
    trained.save_transformer(trained.policy_state(), tmp_path / "own")
    comfyui_lora(tmp_path / "own", tmp_path / "comfyui.safetensors")
    assert torch.equal(change(family.with_transformer(tmp_path / "own")), expected)
    assert torch.equal(change(family.with_transformer(tmp_path / "comfyui.safetensors")), expected)
    state = {key.removeprefix("transformer."): w for key, w in load_file(tmp_path / "own" / WEIGHTS).items()}
    # Prefixes and suffixes do not depend on the family, but the names of layers without dots do.
    for layout in LAYOUTS if name == "flux" else ("kohya, musubi-tuner", "ai-toolkit"):
        save_file(LAYOUTS[layout](state), tmp_path / "other.safetensors")
        assert torch.equal(change(family.with_transformer(tmp_path / "other.safetensors")), expected), layout


@pytest.fixture
def network(checkpoints) -> nn.Module:
    return as_loaded("flux", checkpoints("flux")["sharded"]).transformer


def adapter(layer: str = "transformer.x_embedder", rows: int = 32, columns: int = 16, rank: int = 2) -> State:
    down, up = torch.ones(rank, columns), torch.ones(rows, rank)
    return {f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}


def read(network: nn.Module, state: State, folder: Path, metadata: dict[str, str] | None = None) -> Any:
    save_file({key: value.contiguous() for key, value in state.items()}, folder / "a.safetensors", metadata)
    return read_adapter(folder / "a.safetensors", network, FluxFamily.original_layers)


FUSED = ("double_blocks.0.img_attn.qkv", "single_blocks.1.linear1", "double_blocks.0.processor.qkv_lora2")


@pytest.mark.parametrize("layer", FUSED)
def test_rows_of_a_fused_layer_keep_its_scale(layer, network, tmp_path):
    """Also those of sd-scripts' split_qkv, whose rank is that of three layers together; XLabs has other suffixes."""
    rows = 32 * 3 + (128 if "linear1" in layer else 0)
    up = torch.randn(rows, 6)
    names = ("down.weight", "up.weight") if "processor" in layer else ("lora_down.weight", "lora_up.weight")
    down = torch.randn(6, 32)
    given = {f"{layer}.{names[0]}": down, f"{layer}.{names[1]}": up, f"{layer}.alpha": torch.tensor(2.0)}
    found = read(network, given, tmp_path)
    assert set(found.scales.values()) == {2 / 6}
    parts = [found.weights[f"{name}.lora_B.weight"] for name in found.scales]
    assert torch.equal(torch.cat(parts), up)
    assert all(torch.equal(found.weights[f"{name}.lora_A.weight"], down) for name in found.scales)


REFUSED = {
    r"x_embedder\.dora_scale of DoRA as LyCORIS": adapter() | {"transformer.x_embedder.dora_scale": torch.ones(1, 16)},
    r"hada_w1_a of LoHa": {"lora_unet_img_in.hada_w1_a": torch.ones(2, 2)},
    r"lokr_w1 of LoKr": {"lycoris_x_embedder.lokr_w1": torch.ones(2, 2)},
    r"diff_b of whole differences": adapter() | {"diffusion_model.img_in.diff_b": torch.zeros(32)},
    r"lora_B\.bias of LoRA with biases": adapter() | {"transformer.x_embedder.lora_B.bias": torch.ones(32)},
    r"magnitude of DoRA as ai-toolkit": adapter() | {"transformer.x_embedder.magnitude": torch.ones(32)},
    r"norm\.query_norm\.scale of no known kind": adapter()
    | {"double_blocks.0.img_attn.norm.query_norm.scale": torch.ones(16)},
    r"transformer only, got 2 keys of text encoders, such as lora_te1_text": adapter()
    | adapter("lora_te1_text_model_encoder_layers_0_mlp_fc1"),
    r"no layer transformer_blocks\.7\.attn\.to_q \(1 of 2 layers\)": adapter()
    | adapter("transformer_blocks.7.attn.to_q"),
    r"no layer lora_unet_input_blocks_0": adapter("lora_unet_input_blocks_0"),
    r"only adapter of x_embedder": adapter() | adapter("lora_unet_img_in"),
    r"only key of its weight": adapter() | {"transformer.x_embedder.lora_down.weight": torch.ones(2, 16)},
    r"both lora_A and lora_B, got only alpha": adapter() | {"transformer.proj_out.alpha": torch.tensor(1.0)},
    r"both lora_A and lora_B, got only lora_A": {"transformer.proj_out.lora_A.weight": torch.ones(2, 32)},
    r"matrices of one rank, got \[2, 16\] and \[32, 3\]": adapter()
    | {"transformer.x_embedder.lora_B.weight": torch.ones(32, 3)},
    r"lora_B must have 32 rows, got \[31, 2\]": adapter(rows=31),
    r"lora_A must take \[16\] values, got \[17\]": adapter(columns=17),
    r"alpha must be one number other than 0": adapter() | {"transformer.x_embedder.alpha": torch.tensor(0.0)},
    r"alpha must be finite": adapter() | {"transformer.x_embedder.alpha": torch.tensor(float("nan"))},
    r"lora_B\.weight must be finite": adapter()
    | {"transformer.x_embedder.lora_B.weight": torch.full((32, 2), float("inf"))},
    r"floating-point numbers, got torch\.int8": adapter()
    | {"transformer.x_embedder.lora_B.weight": torch.ones(32, 2, dtype=torch.int8)},
    r"must hold weights of an adapter, got none": {},
}


@pytest.mark.parametrize("message", REFUSED)
def test_unsupported_key_is_refused_by_name(message, network, tmp_path):
    with pytest.raises(DataError, match=rf"a\.safetensors: .*{message}"):
        read(network, REFUSED[message], tmp_path)


def test_alpha_in_the_file_and_in_its_settings_is_applied_once(network, tmp_path):
    alpha = {"transformer.x_embedder.alpha": torch.tensor(6.0)}
    told = {"lora_adapter_metadata": '{"transformer.r": 2, "transformer.lora_alpha": 6}'}
    assert read(network, adapter() | alpha, tmp_path, told).scales == {"x_embedder": 3.0}
    other = {"lora_adapter_metadata": '{"transformer.r": 2, "transformer.lora_alpha": 4}'}
    with pytest.raises(DataError, match=r"got 3 from the key alpha and 2 from the settings"):
        read(network, adapter() | alpha, tmp_path, other)


@pytest.mark.parametrize("metadata", ["{", "[]", "[" * 100_000, '"text"', "null"])
def test_damaged_settings_in_a_file(metadata, network, tmp_path):
    told = {"lora_adapter_metadata": metadata}
    with pytest.raises(DataError, match=r"a\.safetensors: settings of the adapter cannot be read"):
        read(network, adapter(), tmp_path, told)


def test_dora_in_the_layout_of_diffusers(tiny: Load, tmp_path: Path) -> None:
    """By hand: m (W + s B A) / |W + s B A| by rows. As the start of a training of LoRA it is refused."""
    layer, family = "transformer_blocks.0.attn.to_q", tiny()
    base = family.transformer.get_submodule(layer).weight
    up, down = torch.randn(len(base), 2), torch.randn(2, base.shape[1])
    magnitude = base.norm(dim=1) * 1.3
    parts = {"lora_A.weight": down, "lora_B.weight": up, "lora_magnitude_vector": magnitude}
    state = {f"transformer.{layer}.{part}": weight for part, weight in parts.items()}
    save_file(state | {f"transformer.{layer}.alpha": torch.tensor(1.0)}, tmp_path / "dora.safetensors")
    with torch.no_grad():
        moved = base + 0.5 * up @ down
        base.copy_(magnitude[:, None] * moved / moved.norm(dim=1, keepdim=True))
    found = velocity(tiny().with_transformer(tmp_path / "dora.safetensors"))
    assert torch.allclose(found, velocity(family), atol=1e-5)
    with pytest.raises(DataError, match=r"must be LoRA where train\.lora trains one, got DoRA"):
        tiny().start_state(tmp_path / "dora.safetensors", options(rank=2, targets=("to_q",)))
