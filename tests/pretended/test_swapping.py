"""Block swap on the pretended accelerator: where weights are, how many copies there are at once, the same results."""

import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chunk_grpo.config.families import family_names
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.families.swapping import SwappedLinear, swapped_weights
from chunk_grpo.training.learner import tuning_of
from tests.families.parity import PROMPTS, encoded, load, module_of
from tests.families.small_parts import TINY
from tests.pretended.device import DEVICE, PretendedTensor
from tests.training.conftest import CHUNK_WS, OPTIONS, small_params
from tests.training.conftest import prompts as prompts  # a fixture
from tests.training.test_quantised import LORA
from tests.training.worker import Job, do


def away(network: nn.Module) -> set[str]:
    return {name for name, weight in network.named_parameters() if not isinstance(weight, PretendedTensor)}


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Weights that were copied and still exist, at each pass of a swapped layer."""
    counts: list[int] = []
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    linear = nn.functional.linear

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not isinstance(weight, nn.Parameter):  # a copy of one
            assert isinstance(weight, PretendedTensor)
            alive.add(weight)
            counts.append(len(alive))
        return linear(x, weight, bias)

    monkeypatch.setattr(nn.functional, "linear", counted)
    yield counts


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_linear_layers_of_a_share_of_the_blocks_stay_in_the_memory_of_the_cpu(share: float, tmp_path: Path) -> None:
    given = FluxFamily.load(replace(OPTIONS, device=DEVICE), ("transformer",))
    given.transformer.save_pretrained(tmp_path / "policy")
    options = replace(OPTIONS, device=DEVICE, block_swap=share, attention_backend="native")
    found = FluxFamily.load(options, ("transformer",))
    network = found.transformer
    assert found.transformer.device.type == "pretend"
    blocks = [*network.transformer_blocks, *network.single_transformer_blocks]
    swapped = [any(isinstance(layer, SwappedLinear) for layer in block.modules()) for block in blocks]
    assert swapped == [share == 1 or place % 2 == 1 for place in range(len(blocks))]
    assert away(network) == {*swapped_weights(network)}
    assert all(name.startswith(("transformer_blocks", "single_transformer_blocks")) for name in away(network))
    with found.replaced_by(tmp_path / "policy") as other:
        assert away(other.transformer) == {*swapped_weights(network)}
    assert away(network) == {*swapped_weights(network)}
    for name, weight in given.transformer.state_dict().items():
        assert torch.equal(network.state_dict()[name].cpu(), weight.cpu())


def test_an_adapter_is_on_the_device_and_replicas_leave_swapped_weights_out() -> None:
    family = FluxFamily.load(replace(OPTIONS, device=DEVICE, block_swap=1.0), ("transformer",))
    family.prepare_training(tuning_of(small_params(CHUNK_WS, **LORA).train), 0)
    assert all(isinstance(weight, PretendedTensor) for weight in family.trainable_parameters())
    network = family.transformer
    assert away(network) == {*swapped_weights(network)} <= {*network._ddp_params_and_buffers_to_ignore}


@pytest.mark.usefixtures("waits")
def test_a_training_gives_the_same_bits_with_copies_of_one_block_at_once(
    prompts: PromptSet, tmp_path: Path, copies: list[int]
) -> None:
    plain = Job(CHUNK_WS, {**LORA, "kl_coef": 0.05}, "plain", device="pretend", checkpoint=str(TINY))
    given = do(plain, prompts, tmp_path)
    assert copies == []
    seen = do(replace(plain, folder="swapped", block_swap=1.0), prompts, tmp_path)
    assert given.error == seen.error == ""
    assert seen.has_weights_of(given)
    rows = [[row for row in each.rows if not row[1].startswith(("seconds_", "rate_"))] for each in (seen, given)]
    assert rows[0] == rows[1]
    assert max(copies) == 12  # of a double block's 14 layers; the inputs of the two modulations have no gradient


def test_a_copy_is_freed_after_its_layer_without_a_backward_pass(prompts: PromptSet, copies: list[int]) -> None:
    options: dict[str, Any] = {"device": DEVICE, "block_swap": 1.0}
    base, given = (
        FluxFamily.load(replace(OPTIONS, **each), ("transformer",)) for each in (options, {"device": DEVICE})
    )
    x, t = torch.zeros(1, *base.latent_shape).to(DEVICE), torch.tensor([0.5]).to(DEVICE)
    with torch.no_grad():
        velocities = [family.velocity(x, t, prompts.conditioning.rows([0]).to(DEVICE)) for family in (base, given)]
    assert torch.equal(velocities[0].cpu(), velocities[1].cpu())
    assert {*copies} == {1}


@pytest.mark.parametrize("name", family_names())
def test_every_family_swaps(name: str, tmp_path: Path) -> None:
    """No network reads a swapped weight past its layer."""
    case = module_of(name).CASE
    module_of(name).random_pipeline().save_pretrained(tmp_path)
    scale = case.scales[-1]
    given, found = (load(name, tmp_path, cfg_scale=scale, device=DEVICE, block_swap=share) for share in (0.0, 1.0))
    assert away(found.transformer) == {*swapped_weights(found.transformer)} != set()
    whole = load(name, tmp_path, cfg_scale=scale)
    conditioning = encoded(whole, PROMPTS[:1], away=case.away).to(DEVICE)
    x, t = torch.zeros(1, *given.latent_shape).to(DEVICE), torch.tensor([0.5]).to(DEVICE)
    with torch.no_grad():
        velocities = [family.velocity(x, t, conditioning).cpu() for family in (given, found)]
    assert torch.equal(*velocities)
