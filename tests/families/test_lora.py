"""Adapters: they start as nothing, go away without a trace, and mean the same to plain diffusers."""

import json
from collections.abc import Callable

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import TuningOptions
from chunk_grpo.families.models.flux import FluxFamily
from tests.families.conftest import Wrapper, disturb, options, prepared, velocity

FILE = "pytorch_lora_weights.safetensors"

Load = Callable[[], FluxFamily]


@pytest.fixture
def adapted(load: Load) -> FluxFamily:
    """A policy whose adapter does something."""
    family = prepared(load, rank=3)
    disturb(family)
    return family


def storages(*networks: nn.Module) -> set[int]:
    return {weight.untyped_storage().data_ptr() for network in networks for weight in network.parameters()}


def flags(network: nn.Module) -> list[bool]:
    return [weight.requires_grad for weight in network.parameters()]


class TestStart:
    @pytest.mark.parametrize("checkpointing", [False, True])
    def test_the_policy_starts_as_the_base(self, load, checkpointing):
        base, family = load(), load()
        family.prepare_training(options(rank=3, checkpointing=checkpointing), seed=0)
        assert torch.equal(velocity(family), velocity(base))

    def test_the_base_is_frozen_in_its_own_type(self, adapted, load):
        weights = {
            name.replace(".base_layer.", "."): weight
            for name, weight in adapted.transformer.named_parameters()
            if ".lora_" not in name
        }
        base = dict(load().transformer.named_parameters())
        assert weights.keys() == base.keys()
        for name, weight in weights.items():
            assert not weight.requires_grad
            assert weight.dtype == base[name].dtype
            assert torch.equal(weight, base[name])

    def test_the_seed_alone_decides(self, load):
        states = []
        for seed in (4, 4, 5):
            torch.randn(len(states) + 1)
            before = torch.get_rng_state()
            family = load()
            family.prepare_training(options(rank=3), seed)
            assert torch.equal(torch.get_rng_state(), before)
            states.append({name: value.clone() for name, value in family.trainable_state().items()})
        first, again, other = states
        assert all(torch.equal(first[name], again[name]) for name in first)
        for name in first:
            assert torch.equal(first[name], other[name]) == ("lora_B" in name)
            assert bool(first[name].any()) == ("lora_A" in name)

    @pytest.mark.parametrize("targets", [("to_q", "to_w"), ("norm",), ("o_q",), ("attn",)])
    def test_targets_that_are_not_there(self, tiny, targets):
        family = tiny()
        message = f"linear layers of FluxTransformer2DModel, got '{targets[-1]}'. Available: .*to_out.0, to_q, to_v"
        with pytest.raises(ConfigError, match=message):
            family.prepare_training(options(rank=3, targets=targets), seed=0)
        family.prepare_training(options(rank=3), seed=0)

    @pytest.mark.parametrize(
        ("rank", "alpha", "targets", "message"),
        [
            (0, 6.0, ("to_q",), r"train\.lora\.rank: must be at least 1, got 0"),
            (2, 0.0, ("to_q",), r"train\.lora\.alpha: must be above 0, got 0\.0"),
            (2, 6.0, (), r"train\.lora\.targets: must name linear layers, got none"),
        ],
    )
    def test_settings_out_of_range(self, tiny, rank, alpha, targets, message):
        with pytest.raises(ConfigError, match=message):
            tiny().prepare_training(TuningOptions(rank, alpha, targets, False, None), seed=0)

    def test_reference_allocates_no_weights(self, adapted):
        network, before = adapted.transformer, storages(adapted.transformer)
        held = sum(weight.numel() for weight in network.parameters())
        reference = adapted.reference()
        velocity(reference, like=adapted)
        seen = [value for value in vars(reference).values() if isinstance(value, FluxFamily)]
        assert seen == [adapted]
        assert storages(network) == before
        assert sum(weight.numel() for weight in network.parameters()) == held

    def test_the_adapter_is_back_when_the_pass_fails(self, adapted):
        policy, before = velocity(adapted), flags(adapted.transformer)

        def fail(*_: object) -> None:
            raise KeyError

        handle = adapted.transformer.proj_out.register_forward_hook(fail)
        with pytest.raises(KeyError):
            velocity(adapted.reference(), like=adapted)
        handle.remove()
        assert flags(adapted.transformer) == before
        assert any(before)
        assert torch.equal(velocity(adapted), policy)

    def test_a_frozen_adapter_stays_frozen(self, adapted):
        adapted.transformer.requires_grad_(False)
        velocity(adapted.reference(), like=adapted)
        assert not any(flags(adapted.transformer))

    @pytest.mark.parametrize("checkpointing", [False, True])
    def test_reference_pass_before_backward_keeps_gradients(self, load, checkpointing):
        found = []
        for between in (False, True):
            family = prepared(load, rank=3, checkpointing=checkpointing)
            disturb(family)
            loss = velocity(family).square().mean()
            if between:
                anchor = velocity(family.reference(), like=family)
                assert not anchor.requires_grad
            loss.backward()
            found.append([weight.grad for weight in family.trainable_parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))

    def test_it_runs_through_the_wrapped_network_without_gradient(self, adapted):

        reference = adapted.reference()
        expected, wrapper = velocity(reference, like=adapted), Wrapper(adapted.transformer)
        adapted.use_network(wrapper)
        assert torch.equal(velocity(reference, like=adapted), expected)
        assert wrapper.with_gradient == [False]


class TestPrecision:
    """An adapter that computes in the network's type."""

    @pytest.fixture
    def both(self, bf16: Load) -> tuple[FluxFamily, FluxFamily]:
        """Two bfloat16 policies with the same adapter, which computes in float32, and in bfloat16."""
        wide, narrow = (prepared(bf16, rank=3, lora_precision=each) for each in ("float32", "network"))
        for family in (wide, narrow):
            disturb(family)
        return wide, narrow

    def test_its_weights_stay_in_float32_and_its_activations_are_the_networks(self, both):
        seen: list[set[torch.dtype]] = []
        for family in both:
            types: set[torch.dtype] = set()
            assert {weight.dtype for weight in family.trainable_parameters()} == {torch.float32}
            for name, module in family.transformer.named_modules():
                if ".lora_" in name and isinstance(module, nn.Linear):
                    module.register_forward_hook(
                        lambda _, inputs, out, types=types: types.update((inputs[0].dtype, out.dtype))
                    )
            velocity(family)
            seen.append(types)
        assert seen == [{torch.float32}, {torch.bfloat16}]

    def test_velocity_and_gradient_differ_by_the_networks_rounding(self, both, bf16):
        base = velocity(bf16())
        velocities, gradients = [], []
        for family in both:
            found = velocity(family)
            found.square().mean().backward()
            velocities.append(found.detach())
            gradients.append(torch.cat([weight.grad.flatten() for weight in family.trainable_parameters()]))
        wide, narrow = velocities
        assert 0 < float((narrow - wide).norm() / (wide - base).norm()) < 0.05
        wide, narrow = gradients
        assert narrow.dtype == torch.float32
        assert 0 < float((narrow - wide).norm() / wide.norm()) < 0.05

    def test_passes_with_and_without_a_gradient_are_the_same_bits(self, both):
        with torch.no_grad():
            before = velocity(both[1])
        assert torch.equal(velocity(both[1]), before)

    def test_in_a_float32_network_it_changes_nothing(self, tiny):
        wide, narrow = (prepared(tiny, rank=3, lora_precision=each) for each in ("float32", "network"))
        for family in (wide, narrow):
            disturb(family)
        assert torch.equal(velocity(narrow), velocity(wide))

    def test_its_file_is_that_of_any_adapter(self, both, tmp_path):
        for number, family in enumerate(both):
            family.save_transformer(family.policy_state(), tmp_path / str(number))
        assert (tmp_path / "0" / FILE).read_bytes() == (tmp_path / "1" / FILE).read_bytes()


class TestFiles:
    def test_a_saved_adapter_gives_the_same_velocities(self, adapted, load, tmp_path):
        base = load()
        before, drawn = velocity(base), torch.get_rng_state()
        adapted.save_transformer(adapted.policy_state(), tmp_path)
        loaded = base.with_transformer(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [FILE]
        assert torch.equal(velocity(loaded), velocity(adapted))
        assert not any(flags(loaded.transformer))
        assert torch.equal(velocity(base), before)
        assert torch.equal(torch.get_rng_state(), drawn)
        size = sum(weight.numel() for weight in adapted.trainable_parameters())
        assert len(storages(base.transformer, loaded.transformer) - storages(base.transformer)) == len(
            list(adapted.trainable_parameters())
        )
        assert sum(value.numel() for value in load_file(tmp_path / FILE).values()) == size

    def test_a_model_with_an_adapter_loads_another(self, adapted, tmp_path):
        adapted.save_transformer(adapted.policy_state(), tmp_path)
        first = velocity(adapted)
        disturb(adapted)
        now, trainable = velocity(adapted), flags(adapted.transformer)
        assert torch.equal(velocity(adapted.with_transformer(tmp_path)), first)
        assert torch.equal(velocity(adapted), now)
        assert flags(adapted.transformer) == trainable

    def test_equal_weights_give_equal_bytes(self, adapted, tmp_path):
        """Two entries of metadata would come in either order, so twelve files would hardly be equal."""
        found = set()
        for number in range(12):
            adapted.save_transformer(adapted.policy_state(), tmp_path / str(number))
            found.add((tmp_path / str(number) / FILE).read_bytes())
        assert len(found) == 1
        with safe_open(tmp_path / "0" / FILE, framework="pt") as file:
            metadata = file.metadata()
        assert json.loads(metadata.pop("lora_adapter_metadata")) == {
            "transformer.r": 3,
            "transformer.lora_alpha": 6.0,
            "transformer.target_modules": ["proj_out", "to_out.0", "to_q"],
        }
        assert metadata == {}

    def test_a_damaged_file(self, adapted, load, tmp_path):
        adapted.save_transformer(adapted.policy_state(), tmp_path)
        content = (tmp_path / FILE).read_bytes()
        for share in (0.0, 0.6):
            (tmp_path / FILE).write_bytes(content[: int(share * len(content))])
            with pytest.raises(DataError, match=f"{FILE}: cut off or damaged"):
                load().with_transformer(tmp_path)

    def test_an_adapter_of_another_model(self, tiny, bf16, tmp_path):
        for mine, other in ((tiny, bf16), (bf16, tiny)):
            family = prepared(mine, rank=3)
            family.save_transformer(family.policy_state(), tmp_path)
            with pytest.raises(DataError, match=f"{FILE}: .*on the checkpoint on which it was trained"):
                other().with_transformer(tmp_path)

    def test_adapter_is_refused_on_fully_trained_weights(self, adapted, load, tmp_path):
        adapted.save_transformer(adapted.policy_state(), tmp_path)
        family = prepared(load)
        with pytest.raises(ValueError, match="an adapter needs the base model"):
            family.with_transformer(tmp_path)
