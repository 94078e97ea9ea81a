"""Saved policies: the start of a training from them, where their files are, and what is written for other programs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import FluxTransformer2DModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from chunk_grpo.config.policies import PolicyFiles
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.weights.policy import comfyui_lora, local_policy, merged, policy_in
from chunk_grpo.families.weights.records import policy_record
from tests.families.conftest import disturb, of_peft, options, prepared, velocity

RANK, ALPHA = 3, 6.0
COMMIT = "0123456789" * 4
DIFFUSERS = "pytorch_lora_weights.safetensors"

Load = Callable[[], FluxFamily]


class TestStart:
    """Before the first update, training has the velocities of the saved policy."""

    def started(self, load: Load, path: Path, **settings: object) -> FluxFamily:
        family, tuning = load(), options(**settings)
        state = family.start_state(path, tuning)
        assert {weight.dtype for weight in state.values()} == {torch.float32}
        assert {weight.device.type for weight in state.values()} == {"cpu"}
        family.prepare_training(tuning, seed=5)
        family.load_trainable_state(state)
        return family

    def test_an_adapter_goes_on(self, adapted: FluxFamily, tiny: Load, tmp_path: Path) -> None:
        family = self.started(tiny, tmp_path / "adapter", rank=RANK)
        assert torch.equal(velocity(family), velocity(adapted))
        assert torch.equal(velocity(family.reference(), like=family), velocity(tiny()))

    def test_an_adapter_with_another_alpha(self, tiny: Load, tmp_path: Path) -> None:
        expected = of_peft(tiny(), tmp_path)
        family = self.started(tiny, tmp_path, rank=RANK, targets=("to_q", "proj_out"))
        assert torch.allclose(velocity(family), expected, atol=1e-5)

    def test_all_weights_from_an_adapter(self, adapted, load, tiny, tmp_path):
        family = self.started(tiny, tmp_path / "adapter")
        assert torch.allclose(velocity(family), velocity(adapted), atol=1e-5)
        assert not torch.allclose(velocity(family), velocity(tiny()), atol=1e-2)

    def test_all_weights_of_a_half_precision_model_keep_what_bfloat16_would_lose(self, bf16, tmp_path):
        adapted = prepared(bf16, rank=RANK)
        disturb(adapted)
        adapted.save_transformer(adapted.policy_state(), tmp_path)
        state, base = bf16().start_state(tmp_path, options()), bf16().transformer.state_dict()
        name = "transformer_blocks.0.attn.to_q.weight"
        saved = load_file(tmp_path / DIFFUSERS)
        up, down = (saved[f"transformer.{name.replace('weight', f'lora_{side}.weight')}"] for side in "BA")
        assert torch.allclose(state[name], base[name].float() + ALPHA / RANK * up @ down, atol=1e-6)
        assert torch.equal(state["proj_out.bias"], base["proj_out.bias"].float())

    def test_all_weights_from_a_transformer(self, adapted: FluxFamily, tiny: Load, tmp_path: Path) -> None:
        merged(tiny(), tmp_path / "adapter", tmp_path / "merged" / "transformer")
        family = self.started(tiny, tmp_path / "merged")
        assert torch.equal(velocity(family), velocity(tiny().with_transformer(tmp_path / "merged")))

    def test_an_adapter_cannot_go_on_from_a_transformer(self, adapted, tiny, tmp_path):
        merged(tiny(), tmp_path / "adapter", tmp_path / "merged")
        with pytest.raises(ConfigError, match=r"train\.start_from: must be an adapter where train\.lora trains one"):
            tiny().start_state(tmp_path / "merged", options(rank=RANK))


class TestPlaces:
    def test_a_folder_with_two_adapters(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            save_file({"weight": torch.ones(1)}, tmp_path / f"{name}.safetensors")
        with pytest.raises(DataError, match="or one adapter"):
            policy_in(tmp_path)
        named = PolicyFiles(path=str(tmp_path), file="b.safetensors")
        assert local_policy(named, "train.start_from") == tmp_path / "b.safetensors"
        missing = PolicyFiles(path=str(tmp_path), file="c.safetensors")
        with pytest.raises(DataError, match=r"train\.start_from\.file: .*c\.safetensors does not exist"):
            local_policy(missing, "train.start_from")

    def test_a_hub_id(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """From the local cache of the hub's client, which asks nobody when it is offline."""
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        folder = tmp_path / "models--somebody--lora" / "snapshots" / COMMIT
        folder.mkdir(parents=True)
        save_file({"weight": torch.ones(1)}, folder / "strange-name.safetensors")
        given = PolicyFiles(path="somebody/lora", revision=COMMIT)
        assert local_policy(given, "policies.it") == folder / "strange-name.safetensors"
        assert policy_record(given, "policies.it", Digests(tmp_path / "known")) == {"files": None, "commit": COMMIT}
        with pytest.raises(DataError, match=r"policies\.it\.path: somebody/else is no file or folder here"):
            local_policy(PolicyFiles(path="somebody/else", revision=COMMIT), "policies.it")
        with pytest.raises(DataError, match=r"policies\.it\.path: no such file or folder, .* got /nowhere/a"):
            policy_record(PolicyFiles(path="/nowhere/a"), "policies.it", Digests(tmp_path / "known"))
        with pytest.raises(ConfigError, match=r"policies\.it\.revision: must be a commit of the hub"):
            policy_record(PolicyFiles(path="somebody/lora"), "policies.it", Digests(tmp_path / "known"))


def by_rules_of_comfyui(base: dict[str, Tensor], file: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights W + alpha / rank B A; without a tensor alpha the factor is 1. Every tensor of the file must be used.

    comfy/weight_adapter/lora.py (0323d87) and comfy/lora.py: the names are `transformer.` and those of diffusers.
    """
    found, used = dict(base), set()
    for name in base:
        layer = f"transformer.{name.removesuffix('.weight')}"
        up, down, alpha = (f"{layer}.{part}" for part in ("lora_B.weight", "lora_A.weight", "alpha"))
        if name.endswith(".weight") and up in file:
            factor = file[alpha].item() / file[down].shape[0] if alpha in file else 1.0
            found[name] = base[name] + factor * (file[up] @ file[down])
            used |= {up, down, alpha}
    assert used == set(file)
    return found


@torch.no_grad()
def test_comfyui_draws_with_what_was_trained(adapted: FluxFamily, tiny: Load, tmp_path: Path) -> None:
    comfyui_lora(tmp_path / "adapter", tmp_path / "policy.safetensors")
    base = tiny()
    before = velocity(base)
    weights = by_rules_of_comfyui(base.transformer.state_dict(), load_file(tmp_path / "policy.safetensors"))
    base.transformer.load_state_dict(weights)
    found, expected = velocity(base), velocity(adapted)
    assert torch.allclose(found, expected, atol=1e-5)
    assert float((expected - before).norm() / before.norm()) > 0.1


@torch.no_grad()
@pytest.mark.parametrize("load", ["tiny", "bf16"])
def test_a_merged_transformer_is_one_of_diffusers(load, request, tmp_path):
    loaded: Load = request.getfixturevalue(load)
    adapted, base = loaded(), loaded()
    adapted.prepare_training(options(rank=RANK), seed=0)
    disturb(adapted)
    adapted.save_transformer(adapted.policy_state(), tmp_path / "adapter")
    before, names = velocity(base), set(base.transformer.state_dict())
    merged(base, tmp_path / "adapter", tmp_path / "merged")
    network = FluxTransformer2DModel.from_pretrained(
        tmp_path / "merged", torch_dtype=base.transformer.dtype, low_cpu_mem_usage=False
    )
    assert set(network.state_dict()) == names
    change, expected = velocity(base.using(network)) - before, velocity(adapted) - before
    tolerance = 1e-5 if load == "tiny" else 0.05  # bfloat16 has no room for a part of the change
    assert float((change - expected).norm() / expected.norm()) < tolerance


def test_a_policy_without_an_adapter_is_refused(tiny: Load, tmp_path: Path) -> None:
    family = tiny()
    family.save_transformer(family.policy_state(), tmp_path / "all")
    with pytest.raises(DataError, match=r"must hold pytorch_lora_weights.safetensors of an adapter, got none"):
        comfyui_lora(tmp_path / "all", tmp_path / "policy.safetensors")
    save_file({"x.lora_A.weight": torch.ones(2, 2)}, tmp_path / DIFFUSERS)
    with pytest.raises(DataError, match=f"{DIFFUSERS}: must hold the settings of an adapter, got none"):
        comfyui_lora(tmp_path, tmp_path / "policy.safetensors")
    with pytest.raises(DataError, match="All weights were trained"):
        merged(family, tmp_path / "all", tmp_path / "merged")
