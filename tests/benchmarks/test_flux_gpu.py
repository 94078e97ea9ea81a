"""Passes of FLUX.1-dev's transformer: what is trained, what is counted, and what does not fit."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.flux_gpu import FLUX_DEV, FORWARD, SMALL, WORKS, Cell, flop_count, make_family, measure, one_pass
from chunk_grpo.families.models.flux import FluxFamily

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize("work", WORKS)
def test_trained_parameters_match_row_label(work: str) -> None:
    family = make_family(SMALL, work, CPU)
    names = [name for name, weight in family.transformer.named_parameters() if weight.requires_grad]
    assert family.transformer.is_gradient_checkpointing == work.endswith("checkpointing")
    if work.startswith("LoRA"):
        assert names and all("lora" in name for name in names)
    else:
        assert len(names) == (len(list(family.transformer.parameters())) if work.startswith("full") else 0)


@pytest.mark.parametrize("work", WORKS)
def test_operations_are_proportional_to_the_images(work: str) -> None:
    family = make_family(SMALL, work, CPU)
    one, three = (flop_count(one_pass(family, SMALL, work, images, CPU)) for images in (1, 3))
    assert three == 3 * one


def test_a_batch_that_does_not_fit_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = FluxFamily.velocity

    def small_device(family, x, t, conditioning):  # type: ignore[no-untyped-def]
        if len(x) > 1:
            raise torch.OutOfMemoryError("does not fit")
        return shipped(family, x, t, conditioning)

    monkeypatch.setattr(FluxFamily, "velocity", small_device)
    fits, too_large = measure(SMALL, FORWARD, [1, 2], 0.001, CPU)
    assert fits.seconds is not None
    assert too_large == Cell(FORWARD, 2)


def test_the_large_network_is_flux_dev() -> None:
    """12 billion weights and 37.3 TFLOP a forward pass; without memory for them, on the meta device."""
    family = make_family(FLUX_DEV, FORWARD, META)
    assert sum(weight.numel() for weight in family.transformer.parameters()) == pytest.approx(11.9e9, rel=0.01)
    with sdpa_kernel(SDPBackend.MATH):
        counted = flop_count(one_pass(family, FLUX_DEV, FORWARD, 1, META))
    assert counted / 1e12 == pytest.approx(37.3, abs=0.05)
