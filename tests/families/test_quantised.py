"""Quantised base weights: what is quantised, and that adapters, files and the reference are as beside whole weights."""

import sys
from typing import Any, get_args

import pytest
import torch
from diffusers import FluxPipeline
from torch import Tensor, nn

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.rollout import rollout_ode
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import LoadOptions, TuningOptions, velocity_function
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.quantised import parts
from chunk_grpo.families.sharding import blocks_of
from tests.families.conftest import disturb, of_peft, options, velocity
from tests.families.parity import PROMPTS, as_loaded, encoded, load, module_of, names_with_slow_ones
from tests.families.small_parts import TINY

PRECISIONS: tuple[BasePrecision, ...] = get_args(BasePrecision)
BYTES = {"int8": 1.0, "float8": 1.0, "nf4": 0.5}


def toy(precision: BasePrecision | None = None, dtype: torch.dtype = torch.float32) -> FluxFamily:
    settings = LoadOptions(str(TINY), height=32, width=32, max_sequence_length=8, dtype=dtype, base_precision=precision)
    return FluxFamily.load(settings, ("text", "transformer", "vae"))


def size(weight: Tensor) -> int:
    return sum(part.nbytes for part in parts(weight))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_linear_layers_of_blocks_take_a_byte_or_half(precision):
    network, whole = toy(precision).transformer, toy().transformer
    inside = blocks_of(network)
    layers = {id(part) for block in inside for part in block.modules() if isinstance(part, nn.Linear)}
    for (name, module), other in zip(network.named_modules(), whole.modules(), strict=True):
        for own, weight in module.named_parameters(recurse=False):
            if id(module) in layers and own == "weight":
                # each row, or each 64 values, has a scale of four bytes at most
                assert size(weight) <= weight.numel() * (BYTES[precision] + 4 / 64) + 150, name
            else:
                assert torch.equal(weight, other.get_parameter(own)), name
    assert len(layers) == 52


@pytest.mark.parametrize("precision", PRECISIONS)
def test_equal_weights_are_quantised_to_equal_bytes(precision):
    first, again = (list(toy(precision).transformer.parameters()) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(parts(one), parts(other), strict=True))


@pytest.mark.parametrize("name", names_with_slow_ones())
def test_every_family_trains_an_adapter_beside_it(name, checkpoints, tmp_path):
    """Of the precisions, `nf4` alone depends on the shapes of a family's weights."""
    trains_an_adapter_beside("nf4", name, checkpoints, tmp_path)


@pytest.mark.parametrize("precision", ["int8", "float8"])
def test_flux_trains_an_adapter_beside_each_precision(precision, checkpoints, tmp_path):
    trains_an_adapter_beside(precision, "flux", checkpoints, tmp_path)


def trains_an_adapter_beside(precision, name, checkpoints, tmp_path):
    whole = as_loaded(name, checkpoints(name)["bf16"], dtype=torch.bfloat16)
    base, family = (
        load(name, checkpoints(name)["bf16"], ("transformer",), dtype=torch.bfloat16, base_precision=precision)
        for _ in range(2)
    )
    text = encoded(whole, PROMPTS[:2], away=module_of(name).CASE.away)
    x = torch.randn(2, *base.latent_shape, generator=torch.Generator().manual_seed(6))

    def seen(model: Any) -> Tensor:
        found: Tensor = model.velocity(x, torch.tensor([0.9, 0.4]), text)
        return found

    with torch.no_grad():
        expected = seen(base)
        assert not torch.equal(expected, seen(whole))
    family.prepare_training(TuningOptions(2, 4.0, ("to_q", "to_v"), True, None), seed=0)
    assert torch.equal(seen(family).detach(), expected)
    disturb(family)
    moved = seen(family)
    moved.square().mean().backward()
    assert all(weight.grad is not None for weight in family.trainable_parameters())
    assert torch.equal(seen(family.reference()), expected)
    family.save_transformer(family.policy_state(), tmp_path)
    with torch.no_grad():
        assert torch.equal(seen(base.with_transformer(tmp_path)), moved.detach())
        assert not torch.equal(moved.detach(), expected)
        assert torch.equal(seen(base), expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_whole_transformer_is_quantised_as_the_base(precision, tmp_path):
    """A policy in `policies`: on a small card there is no place for it otherwise."""
    toy().transformer.save_pretrained(tmp_path)
    base = toy(precision)
    with torch.no_grad(), base.replaced_by(tmp_path) as other:
        assert other.transformer is not base.transformer
        assert torch.equal(velocity(other), velocity(base))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_adapter_of_kind_dora(precision, tmp_path):
    """It does as little else beside quantised weights as rounding does to the base."""
    base, expected = velocity(toy()), of_peft(toy(), tmp_path, use_dora=True)
    family = toy(precision)
    if precision == "nf4":
        with pytest.raises(DataError, match=r"base_precision: nf4, got DoRA \(.*; set int8, float8 or null"):
            family.with_transformer(tmp_path)
        return
    rounded = float((velocity(family) - base).norm() / base.norm())
    found = velocity(family.with_transformer(tmp_path))
    assert 0 < float((found - expected).norm() / expected.norm()) < 1.5 * rounded


def images(family: DiffusersFamily) -> Tensor:
    text, shape = family.encode(PROMPTS), family.latent_shape
    noise = torch.randn(len(PROMPTS), *shape, generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        step = velocity_function(family, text)
        return family.decode(rollout_ode(lambda _: step, noise, time_grid(16, 3.0))[:, -1])


def apart(ones: Tensor, others: Tensor) -> float:
    return float((ones - others).abs().mean())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_diffusers_loads_the_adapter_on_the_whole_base(precision, tmp_path):
    """Its images differ by what quantisation alone does to those of the base; docs/performance.md has the numbers."""
    quantised, base = toy(precision), images(toy())
    rounded = apart(images(quantised), base)
    quantised.prepare_training(options(rank=3), seed=0)
    disturb(quantised)
    quantised.save_transformer(quantised.policy_state(), tmp_path)
    pipeline = FluxPipeline.from_pretrained(TINY, dtype=torch.float32)
    pipeline.load_lora_weights(tmp_path)
    theirs = images(toy().using(pipeline.transformer))
    assert apart(theirs, images(toy().with_transformer(tmp_path))) == 0
    assert 0 < apart(images(quantised), theirs) < rounded
    assert apart(theirs, base) > 0.01  # the adapter does something


def test_each_precision_is_nearer_than_the_next():
    """Relative errors of the velocity: about 1, 3 and 12 %."""
    base = velocity(toy())
    errors = [float((velocity(toy(name)) - base).norm() / base.norm()) for name in PRECISIONS]
    assert 0 < errors[0] < errors[1] < errors[2] < 0.2


def test_without_torchao(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(ConfigError, match=r"model\.base_precision: int8 needs torchao.*pip install 'torchao>=0\.18"):
        toy("int8")
    assert toy().transformer is not None
