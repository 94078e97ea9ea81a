"""The attention backend: set on one network and its copies, close to the default, refused where it does not work."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

from chunk_grpo.config.models import AttentionBackend
from chunk_grpo.errors import ConfigError
from chunk_grpo.families.models.flux import FluxFamily
from tests.families.conftest import options, velocity
from tests.training.conftest import OPTIONS

PARTS = ("transformer", "vae")


def load(backend: str | None) -> FluxFamily:
    return FluxFamily.load(replace(OPTIONS, attention_backend=backend), PARTS)


def backends(family: FluxFamily) -> set[str | None]:
    layers = [module for module in family.transformer.modules() if hasattr(module, "processor")]
    return {layer.processor._attention_backend for layer in layers}


def test_all_names_are_known_to_diffusers() -> None:
    assert {name.value for name in AttentionBackendName} >= set(get_args(AttentionBackend))


@pytest.mark.parametrize("backend", ["native", "_native_math", "_native_flash"])
def test_velocity_matches_default_backend(backend: str) -> None:
    assert (velocity(load(backend)) - velocity(load(None))).abs().max() < 1e-5


@pytest.mark.parametrize("backend", [None, "native"])
def test_torch_does_not_choose_cudnn(backend: str | None) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    load(backend)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_copies_and_saved_policies_have_it_and_other_models_do_not(tmp_path) -> None:
    before = _AttentionBackendRegistry.get_active_backend()
    family = load("_native_math")
    family.prepare_training(options(), seed=0)
    family.save_transformer(family.policy_state(), tmp_path)
    for model in (family, family.frozen_copy(), family.with_transformer(tmp_path)):
        assert backends(model) == {"_native_math"}
    assert backends(load(None)) == {None}
    assert _AttentionBackendRegistry.get_active_backend() == before


@pytest.mark.parametrize(("backend", "reason"), [("flash", "flash-attn"), ("_native_efficient", "No viable backend")])
def test_unsupported_backend_is_refused_at_load(backend: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"model.attention_backend: {backend} does not work.*{reason}"):
        load(backend)


@pytest.mark.parametrize("rank", [None, 2])
def test_a_kernel_without_a_gradient_is_refused_for_training(rank, monkeypatch) -> None:
    """Such a kernel gives images, and would train everything but the queries, keys and values without a word."""
    name = AttentionBackendName._NATIVE_MATH
    exact = _AttentionBackendRegistry._backends[name]

    def without_gradient(query, **others) -> torch.Tensor:
        return exact(query, **others).detach()

    monkeypatch.setitem(_AttentionBackendRegistry._backends, name, without_gradient)
    family = load("_native_math")
    with pytest.raises(ConfigError, match="it gives no gradient"):
        family.prepare_training(options(rank), seed=0)
