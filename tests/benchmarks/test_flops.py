"""The formula is torch's own count of a small network, and gives FLUX.1-dev's known cost."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.flops import Shape, forward_flops, work_flops
from benchmarks.flux_gpu import FLUX_DEV, SMALL, make_family, one_pass

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [SMALL, replace(SMALL, double_blocks=2, single_blocks=1, text_tokens=5)])
def test_a_small_network_needs_what_torch_counts(shape: Shape) -> None:
    call = one_pass(make_family(shape, "forward", torch.float32, CPU), shape, "forward", 3, CPU)
    # The fused attention of a CPU is not counted; the plain one is.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        call()
    assert counter.get_total_flops() == 3 * forward_flops(shape).forward


def test_an_update_needs_what_torch_counts_but_for_embeddings_and_adapters() -> None:
    """Neither what is not recomputed nor the inputs' own gradients nor the adapters are worth a formula."""
    shape = replace(SMALL, heads=8, image_tokens=49)
    for work, tolerance in (("full, checkpointing", 0.02), ("LoRA, checkpointing", 0.05), ("LoRA", 0.05)):
        call = one_pass(make_family(shape, work, torch.float32, CPU), shape, work, 1, CPU)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            call()
        assert counter.get_total_flops() == pytest.approx(work_flops(shape, work), rel=tolerance), work


def test_flux_dev_needs_37_tflop_at_720_pixels_and_74_at_1024() -> None:
    assert forward_flops(FLUX_DEV).forward / 1e12 == pytest.approx(37.3, abs=0.05)
    assert forward_flops(replace(FLUX_DEV, image_tokens=64 * 64)).forward / 1e12 == pytest.approx(
        74.4, abs=0.05
    )


def test_a_forward_pass_worked_by_hand() -> None:
    """Width 2, one token of each kind, one single block: 24 * 4 * 2 operations on tokens."""
    flops = forward_flops(Shape(0, 1, 1, 2, 1, 1, 1, image_tokens=1, text_tokens=1))
    embedding_and_output = 2 * 2 * (1 + 1) + 2 * 2
    conditions = 2 * (2 * (512 + 4) + 2 + 4)
    modulations = 2 * 4 * (3 + 2)
    assert flops.linear == 192 + embedding_and_output + conditions + modulations
    assert flops.attention == 4 * 4 * 2
