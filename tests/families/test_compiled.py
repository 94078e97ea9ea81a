"""Compiled blocks of every family: velocity and gradient of an adapter as without."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from chunk_grpo.config.families import family_names
from chunk_grpo.families import compiling
from chunk_grpo.families.base import TuningOptions
from tests.families.parity import PROMPTS, QUICK, as_loaded, encoded, module_of
from tests.training.conftest import graphs as graphs  # a fixture

ADAPTER: dict[str, Any] = {"lora_rank": 2, "lora_alpha": 4.0, "gradient_checkpointing": True, "autocast": None}


def velocity_and_gradients(name: str, checkpoint: Path, scale: float, *, compiles: bool) -> list[Tensor]:
    """Two images with unequal prompts; of a seeded adapter that changes the velocity."""
    family = as_loaded(name, checkpoint, cfg_scale=scale)
    options = TuningOptions(lora_targets=("to_q", "to_v"), compiles=compiles, lora_precision="network", **ADAPTER)
    family.prepare_training(options, seed=0)
    weights = list(family.trainable_parameters())
    generator = torch.Generator().manual_seed(1)
    for weight in weights:
        weight.data.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    away = module_of(name).CASE.away if scale > 1 else None
    text, other = encoded(family, PROMPTS[1:3], away=away), encoded(family, ["a", PROMPTS[3]], away=away)
    x = torch.randn(2, *family.latent_shape, generator=generator)
    velocity = family.velocity(x, torch.tensor([0.9, 0.3]), text)
    velocity.square().mean().backward()
    if compiles:  # other texts
        graphs = counters["stats"]["unique_graphs"]
        with torch.no_grad():
            family.velocity(x, torch.tensor([0.9, 0.3]), other)
        # Z-Image's texts are cut to their length; its presets are not compiled.
        assert counters["stats"]["unique_graphs"] == graphs or name == "z_image"
    return [velocity.detach(), *(weight.grad for weight in weights if weight.grad is not None)]


@pytest.mark.usefixtures("graphs")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("backend", "name"),
    [
        *(("aot_eager", name) for name in QUICK),
        *(pytest.param("aot_eager", name, marks=pytest.mark.slow) for name in family_names() if name not in QUICK),
        *(pytest.param("inductor", name, marks=pytest.mark.slow) for name in family_names()),
    ],
)
def test_compiled_blocks_change_only_rounding(backend, name, checkpoints, monkeypatch):
    """`aot_eager` differentiates the traced graphs, `inductor` generates code too."""
    monkeypatch.setattr(compiling, "_BACKEND", backend)
    if backend != "inductor":
        monkeypatch.setattr(compiling, "_OPTIONS", None)
    scale = max(module_of(name).CASE.scales)
    checkpoint = checkpoints(name)["sharded"]
    plain = velocity_and_gradients(name, checkpoint, scale, compiles=False)
    counters.clear()
    compiled = velocity_and_gradients(name, checkpoint, scale, compiles=True)
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
    assert len(compiled) == len(plain) > 1
    for one, other in zip(compiled, plain, strict=True):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max().clamp(min=1e-3)
