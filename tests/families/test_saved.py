"""Saved policies in the layouts that people publish, and the weights with which training starts from them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from chunk_grpo.config.policies import PolicyFiles
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.weights.policy import comfyui_lora, local_policy, merged, policy_in
from chunk_grpo.families.weights.records import policy_record
from tests.families.conftest import disturb, options, velocity

RANK, ALPHA = 3, 6.0
COMMIT = "0123456789" * 4
DIFFUSERS, PEFT = "pytorch_lora_weights.safetensors", "adapter_model.safetensors"

Load = Callable[[], FluxFamily]


@pytest.fixture
def adapted(tiny: Load, tmp_path: Path) -> FluxFamily:
    """A policy whose adapter does something, saved in tmp_path/adapter."""
    family = tiny()
    family.prepare_training(options(rank=RANK), seed=0)
    disturb(family)
    family.save_transformer(family.policy_state(), tmp_path / "adapter")
    return family


def of_peft(tiny: Load, folder: Path, **settings: object) -> torch.Tensor:
    """Save an adapter by peft itself; return its velocities."""
    family = tiny()
    config = LoraConfig(r=RANK, lora_alpha=7, target_modules=["to_q", "proj_out"], **settings)
    model = get_peft_model(family.transformer, config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    model.save_pretrained(folder)
    return velocity(family.using(model.get_base_model())).detach()


def of_comfyui(adapted: FluxFamily, folder: Path) -> Path:
    comfyui_lora(folder, folder.parent / "comfyui" / "policy.safetensors")
    return folder.parent / "comfyui"


def without_settings(adapted: FluxFamily, folder: Path) -> Path:
    """An adapter as older programs write it: alpha is the rank, so B carries the factor."""
    factor = ALPHA / RANK
    weights = {
        name: weight * (factor if "lora_B" in name else 1.0)
        for name, weight in load_file(folder / DIFFUSERS).items()
    }
    other = folder.parent / "older"
    other.mkdir()
    save_file(weights, other / DIFFUSERS)
    return other


@pytest.mark.parametrize("layout", [of_comfyui, without_settings])
def test_an_adapter_of_another_program_gives_the_same_velocities(
    layout: Callable[[FluxFamily, Path], Path], adapted: FluxFamily, tiny: Load, tmp_path: Path
) -> None:
    loaded = tiny().with_transformer(layout(adapted, tmp_path / "adapter"))
    assert torch.allclose(velocity(loaded), velocity(adapted), atol=1e-5)
    assert not torch.allclose(velocity(loaded), velocity(tiny()), atol=1e-2)


def test_no_adapter_at_all(tiny: Load, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(DataError, match=r"other\.safetensors: "):
        tiny().with_transformer(path)


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
        expected = of_peft(tiny, tmp_path)
        family = self.started(tiny, tmp_path, rank=RANK, targets=("to_q", "proj_out"))
        assert torch.allclose(velocity(family), expected, atol=1e-5)

    def test_all_weights_from_an_adapter(
        self, adapted: FluxFamily, load: Load, tiny: Load, tmp_path: Path
    ) -> None:
        family = self.started(tiny, tmp_path / "adapter")
        assert torch.allclose(velocity(family), velocity(adapted), atol=1e-5)
        assert not torch.allclose(velocity(family), velocity(tiny()), atol=1e-2)

    def test_all_weights_of_a_half_precision_model_keep_what_bfloat16_would_lose(
        self, bf16: Load, tmp_path: Path
    ) -> None:
        adapted = bf16()
        adapted.prepare_training(options(rank=RANK), seed=0)
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

    def test_an_adapter_cannot_go_on_from_a_transformer(
        self, adapted: FluxFamily, tiny: Load, tmp_path: Path
    ) -> None:
        merged(tiny(), tmp_path / "adapter", tmp_path / "merged")
        with pytest.raises(
            ConfigError, match=r"train\.start_from: must be an adapter where train\.lora trains one"
        ):
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
        assert policy_record(given, "policies.it", Digests(tmp_path / "known")) == {
            "files": None,
            "commit": COMMIT,
        }
        with pytest.raises(DataError, match=r"policies\.it\.path: somebody/else is no file or folder here"):
            local_policy(PolicyFiles(path="somebody/else", revision=COMMIT), "policies.it")
        with pytest.raises(DataError, match=r"policies\.it\.path: no such file or folder, .* got /nowhere/a"):
            policy_record(PolicyFiles(path="/nowhere/a"), "policies.it", Digests(tmp_path / "known"))
        with pytest.raises(ConfigError, match=r"policies\.it\.revision: must be a commit of the hub"):
            policy_record(PolicyFiles(path="somebody/lora"), "policies.it", Digests(tmp_path / "known"))
