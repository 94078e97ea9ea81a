"""Trained weights, their precision, and frozen weights."""

import gc
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from chunk_grpo.errors import DataError
from chunk_grpo.families.base import Conditioning, LoadOptions
from chunk_grpo.families.models.flux import FluxFamily
from tests.families.conftest import TINY, Wrapper, disturb, options, prepared, velocity


def peak_bytes(work: Callable[[], object]) -> int:
    """Peak bytes of tensors during `work`, beyond those allocated before, by torch's profiler."""
    gc.collect()  # tensors of earlier work that are freed meanwhile would count
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            work()
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = [e["args"] for e in sorted(events, key=lambda e: e.get("ts", 0)) if e.get("name") == "[memory]"]
    # Torch does not reset its sum between profiles: tensors of an earlier one that are still alive are in it.
    before = int(changes[0]["Total Allocated"]) - int(changes[0]["Bytes"])
    return max(int(args["Total Allocated"]) for args in changes) - before


def gradients(family: FluxFamily) -> list[Tensor]:
    """Gradients of a scalar of the velocity by all trained weights."""
    velocity(family).square().mean().backward()
    found = [weight.grad for weight in family.trainable_parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient for gradient in found if gradient is not None]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def outputs_of(family: FluxFamily, layer: str) -> list[torch.dtype]:
    """The types that one layer gives in one pass."""
    seen: list[torch.dtype] = []
    handle = family.transformer.get_submodule(layer).register_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype)
    )
    velocity(family)
    handle.remove()
    return seen


class TestFull:
    def test_float32_is_the_plain_computation(self, tiny):
        plain, tuned = tiny(), tiny()
        plain.transformer.requires_grad_(True)
        tuned.prepare_training(options(), seed=0)
        assert torch.equal(velocity(tuned), velocity(plain))
        assert same(gradients(tuned), gradients(plain))
        assert outputs_of(tuned, "x_embedder") == [torch.float32]

    def test_bfloat16_gets_float32_weights_and_autocast(self, bf16):
        plain, tuned = bf16(), bf16()
        tuned.prepare_training(options(), seed=0)
        for before, after in zip(plain.trainable_parameters(), tuned.trainable_parameters(), strict=True):
            assert after.dtype == torch.float32
            assert torch.equal(after, before.float())
        assert outputs_of(tuned, "x_embedder") == [torch.bfloat16]
        # Norms are float32 under autocast and bfloat16 without, and round differently.
        expected = velocity(plain)
        assert (velocity(tuned) - expected).norm() < 0.02 * expected.norm()

    def test_a_small_step_is_not_lost(self, bf16):
        """A control takes the same step on bfloat16 weights, where it changes none but the smallest."""
        control, tuned = bf16(), bf16()
        control.transformer.requires_grad_(True)
        tuned.prepare_training(options(), seed=0)
        moved = []
        for family in (control, tuned):
            before = [weight.detach().clone() for weight in family.trainable_parameters()]
            found = gradients(family)
            torch.optim.AdamW(family.trainable_parameters(), lr=1e-6, weight_decay=0.0).step()
            changed = sum(
                int(((weight != old) & (gradient.abs() > 1e-6)).sum())
                for weight, old, gradient in zip(family.trainable_parameters(), before, found, strict=True)
            )
            moved.append(changed / sum(int((gradient.abs() > 1e-6).sum()) for gradient in found))
        assert moved[0] < 0.1
        assert moved[1] > 0.98

    def test_autocast_keeps_no_casts_of_the_weights(self, tiny):
        """With autocast's cache, a pass without gradients holds a bfloat16 copy of every weight."""
        family = prepared(tiny, autocast=torch.bfloat16)
        with torch.no_grad():
            peak = peak_bytes(lambda: velocity(family))
        assert peak < sum(weight.numel() for weight in family.trainable_parameters())

    def test_autocast_on_float32_weights(self, tiny):
        family = prepared(tiny, autocast=torch.bfloat16)
        assert outputs_of(family, "x_embedder") == [torch.bfloat16]
        assert {weight.dtype for weight in family.trainable_parameters()} == {torch.float32}
        assert velocity(family).dtype == torch.float32

    def test_reference_keeps_initial_policy(self, load):
        family = prepared(load)
        reference, start = family.reference(), velocity(family)
        disturb(family)
        assert torch.equal(velocity(reference), start)
        assert not torch.equal(velocity(family), start)
        assert not velocity(reference).requires_grad

    def test_saved_in_the_checkpoints_type(self, bf16, bf16_checkpoint, tmp_path):
        family = prepared(bf16)
        disturb(family)
        family.save_transformer(family.policy_state(), tmp_path)
        name = "diffusion_pytorch_model.safetensors"
        saved, trained = load_file(tmp_path / name), family.transformer.state_dict()
        assert saved.keys() == trained.keys()
        assert all(torch.equal(saved[key], trained[key].bfloat16()) for key in saved)
        original = bf16_checkpoint / "transformer"
        assert (tmp_path / name).stat().st_size == (original / name).stat().st_size
        assert {p.name for p in tmp_path.iterdir()} == {p.name for p in original.iterdir()}
        # Loaded, the weights are bfloat16 and nothing is autocast: equal but for rounding.
        loaded, expected = velocity(bf16().with_transformer(tmp_path)), velocity(family).detach()
        assert not loaded.requires_grad
        assert (loaded - expected).norm() < 0.02 * expected.norm()

    def test_float32_survives_saving_to_the_bit(self, tiny, tmp_path):
        family = prepared(tiny)
        disturb(family)
        for name in "ab":
            family.save_transformer(family.policy_state(), tmp_path / name)
        assert torch.equal(velocity(tiny().with_transformer(tmp_path / "a")), velocity(family))
        files = sorted(path.name for path in (tmp_path / "a").iterdir())
        assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)

    def test_a_folder_that_holds_neither_kind(self, tiny, tmp_path):
        with pytest.raises(
            DataError, match=r"must hold config\.json of a transformer, or one adapter \(pytorch_lora_weights"
        ):
            tiny().with_transformer(tmp_path)


@pytest.mark.parametrize("rank", [None, 2])
class TestBothKinds:
    def test_trainable_parameters_are_what_gets_a_gradient(self, load, rank):
        family = prepared(load, rank)
        listed = list(family.trainable_parameters())
        assert {id(weight) for weight in listed} == {
            id(weight) for weight in family.transformer.parameters() if weight.requires_grad
        }
        assert {weight.dtype for weight in listed} == {torch.float32}
        assert len(gradients(family)) == len({id(weight) for weight in listed}) > 0

    @pytest.mark.parametrize("autocast", [None, torch.bfloat16])
    def test_gradient_checkpointing_changes_no_gradient(self, load, rank, autocast):
        found, passes, blocks = [], [], 0
        for checkpointing in (False, 0.5, True):
            family = prepared(load, rank, checkpointing=checkpointing, autocast=autocast)
            disturb(family)
            calls: list[int] = []
            layers = [module for name, module in family.transformer.named_modules() if name.endswith(".attn")]
            for layer in layers:
                layer.register_forward_hook(lambda *inputs, calls=calls: calls.append(1))
            found.append(gradients(family))
            passes.append(len(calls))
            blocks = len(layers)
        assert same(found[0], found[1]) and same(found[0], found[2])
        assert passes == [blocks, blocks + blocks // 2, 2 * blocks]

    def test_the_trained_state_goes_into_a_new_model(self, load, rank):
        first, second = load(), load()
        for family in (first, second):
            family.prepare_training(options(rank), seed=0)
        disturb(first)
        state = first.trainable_state()
        assert sum(value.numel() for value in state.values()) == sum(
            weight.numel() for weight in first.trainable_parameters()
        )
        assert not torch.equal(velocity(first), velocity(second))
        second.load_trainable_state(state)
        assert torch.equal(velocity(first), velocity(second))

    def test_a_state_of_other_weights_is_refused(self, load, rank):
        family = prepared(load, rank)
        own = {name: value.clone() for name, value in family.trainable_state().items()}
        disturb(family)
        before = {name: value.clone() for name, value in family.trainable_state().items()}
        name = sorted(own)[-1]
        smaller = {key: value for key, value in own.items() if key != name}
        for wrong, shape in (
            (smaller, "None"),
            (own | {name: torch.ones(3)}, r"\[3\]"),
            (own | {"x": torch.ones(3)}, r"\[3\]"),
        ):
            with pytest.raises(DataError, match=rf"({name}|x): must have the shape .*, got {shape}"):
                family.load_trainable_state(wrong)
        after = family.trainable_state()
        assert all(torch.equal(before[name], after[name]) for name in before)

    def test_prepared_once(self, load, rank):
        family = prepared(load, rank)
        for again in (None, 2):
            with pytest.raises(ValueError, match="already prepared"):
                family.prepare_training(options(again), seed=0)

    def test_a_wrapped_network_is_run_in_place_of_the_transformer(self, load, rank):
        family = prepared(load, rank)
        expected, names = velocity(family), list(family.trainable_state())
        wrapper = Wrapper(family.transformer)
        family.use_network(wrapper)
        assert torch.equal(velocity(family), expected)
        assert len(wrapper.with_gradient) == 1
        assert gradients(family)
        assert len(wrapper.with_gradient) == 2
        assert list(family.trainable_state()) == names
        family.use_network(family.transformer)
        assert torch.equal(velocity(family), expected)
        assert len(wrapper.with_gradient) == 2

    def test_another_network_is_refused(self, load, rank):
        family, other = load(), load()
        family.prepare_training(options(rank), seed=0)
        with pytest.raises(ValueError, match="must contain the transformer, got a Wrapper"):
            family.use_network(Wrapper(other.transformer))


SCALE = 3.0


def guided(passes: Literal[1, 2], part: Literal["both", "conditional"], scale: float = SCALE) -> FluxFamily:
    """The toy FLUX, guided and tuned with an adapter that is not 0."""
    load = LoadOptions(str(TINY), height=32, width=32, max_sequence_length=8, cfg_scale=scale, cfg_passes=passes)
    family = FluxFamily.load(load, ("transformer",))
    family.prepare_training(replace(options(4), guidance_gradient=part), seed=0)
    disturb(family)
    return family


def guided_by(family: FluxFamily, towards: int = 0) -> Tensor:
    """Velocity of a state with one of three random prompts; the third is the negative one."""
    stream = torch.Generator().manual_seed(5)
    tensors = {"prompt_embeds": torch.randn(3, 8, 64, generator=stream), "pooled": torch.randn(3, 64, generator=stream)}
    rows = {name: tensor[towards : towards + 1] for name, tensor in tensors.items()}
    x = torch.randn(1, *family.latent_shape, generator=stream)
    negative = {name: tensor[2:] for name, tensor in tensors.items()}
    return family.velocity(x, torch.tensor([0.6]), Conditioning(rows, negative))


class TestGuidance:
    """velocity = v(n) + 3 (v(c) - v(n)); with `conditional` v(n) is a constant, so the gradient is that of 3 v(c)."""

    def gradient(self, family: FluxFamily, towards: int = 0) -> Tensor:
        """Of a weighted sum of the velocity, by all trained weights."""
        velocity = guided_by(family, towards)
        weight = torch.linspace(-1, 1, velocity.numel()).view_as(velocity)
        found = torch.autograd.grad((weight * velocity).sum(), list(family.trainable_parameters()))
        return torch.cat([part.flatten() for part in found])

    @pytest.mark.parametrize("passes", [1, 2])
    def test_the_gradient_is_that_of_the_parts(self, passes):
        """By autograd of each part alone, unguided."""
        plain = guided(1, "both", scale=1.0)
        conditional, negative = SCALE * self.gradient(plain), (1 - SCALE) * self.gradient(plain, 2)
        for part, expected in (("conditional", conditional), ("both", conditional + negative)):
            found = self.gradient(guided(passes, part))
            assert float((found - expected).norm() / expected.norm()) < 1e-5
        assert float(negative.norm() / conditional.norm()) > 0.1

    @pytest.mark.parametrize("passes", [1, 2])
    def test_the_values_are_the_same(self, passes):
        both, conditional = guided(passes, "both"), guided(passes, "conditional")
        assert torch.equal(guided_by(conditional), guided_by(both))
        with torch.no_grad():
            assert torch.equal(guided_by(conditional), guided_by(both))

    def test_a_pass_of_its_own_for_the_negative_prompt_keeps_nothing(self):
        family, seen = guided(2, "conditional"), []
        handle = family.transformer.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
        assert guided_by(family).requires_grad
        handle.remove()
        assert seen == [False, True]  # the negative prompt's, the prompt's
