"""Evaluations of an iteration: numbers by hand, and the trainer's own draws and packing."""

import math

import pytest
import torch

from chunk_grpo.core.chunking import ChunkPlan
from chunk_grpo.core.flow import time_grid
from chunk_grpo.planning.images import heldout_evaluations
from chunk_grpo.planning.passes import Count, Iteration, iteration
from chunk_grpo.training.chunk_selection import ChunkSelector, DrawContext
from chunk_grpo.training.method import method_from
from chunk_grpo.training.packing import pack
from chunk_grpo.training.rollouts import SampledTrajectories
from tests.planning.planned import edited, preset, settings, with_variant

FLUX = edited(preset("flux-dev"), train={"micro_batch_size": 1})


def of(params: object, variant: str = "it", gpus: int = 8) -> Iteration:
    return iteration(settings(params, gpus), variant)  # type: ignore[arg-type]


SINGLES = {"micro_batch_size": 1, "rollout_batch_size": 1}
"""An image or item a pass."""


def test_table_6_on_eight_gpus() -> None:
    """192 images, 24 a GPU, 17 steps; 8 of 16 steps trained in each of two updates of 12 images."""
    dance = of(edited(FLUX, train=SINGLES), "dance")
    assert dance.rows == 24
    assert dance.rollout == Count(24 * 17, 24 * 17)
    assert dance.update == Count(2 * 12 * 8, 2 * 12 * 8)
    assert dance.old_log_probs == Count(12 * 8, 12 * 8)
    assert dance.ratio == Count(0, 0) and dance.reference == Count(0, 0)


def test_flux_pass_counts_by_hand() -> None:
    """6,336 forwards and 1,536 backwards an iteration over all GPUs; 5,568 forwards if chunks fit a micro-batch."""
    chunk = of(edited(FLUX, train=SINGLES), "chunk")
    assert (8 * chunk.forwards, 8 * chunk.update.states) == (6336, 1536)
    apart = {"micro_batch_size": 12, "rollout_batch_size": 12, "same_noise_in_group": False}
    larger = of(edited(FLUX, train=apart), "chunk")
    assert (8 * larger.forwards, larger.ratio) == (5568, Count(0, 0))
    # 12 images share their first state in a batch of 12: two prompts a GPU.
    shared = edited(FLUX, train={**apart, "same_noise_in_group": True})
    assert of(shared, "chunk").rollout == Count(24 * 16 + 2, 2 * 17)


def test_a_kl_divergence_evaluates_the_reference_for_each_item() -> None:
    params = edited(FLUX, train={"kl_coef": 0.04})
    assert of(params, "chunk").reference == of(params, "chunk").update
    controlled = with_variant(preset("hacking"), objective="chunk", plan="listed", controlled=True)
    assert of(controlled, gpus=1).reference == of(controlled, gpus=1).update


def test_branches() -> None:
    """TempFlow: 16 prompts of 12 / 4 runs of 17 steps; 2 points of 4 children, (16 + 1) / 2 steps left on average."""
    branching = {"points": 2, "children": 4}
    params = with_variant(FLUX, objective="step", plan="step", fraction=1.0, branching=branching)
    found = of(params, gpus=1)
    assert found.rows == 16 * 12 * 2
    assert found.rollout.states == 48 * 17 + 48 * 4 * 2 * 8.5
    assert found.update.states == 16 * 12 * 2


def test_a_window_trains_its_steps_only() -> None:
    window = {"num_steps": 4, "stride": 1, "every": 25}
    params = with_variant(FLUX, objective="step", plan="step", fraction=0.5, window=window)
    assert of(params, gpus=1).update.states == 192 * 2


def test_heldout_evaluations() -> None:
    """Before training, after 25, 50, ... 150 iterations; after 140 of 140 too."""
    assert heldout_evaluations(settings(FLUX).params.train) == 7
    assert heldout_evaluations(settings(edited(FLUX, train={"iterations": 140})).params.train) == 7


@pytest.mark.parametrize("size", [1, 3, 12, 64])
@pytest.mark.parametrize("variant", ["dance", "chunk"])
def test_items_and_micro_batches_are_the_trainer_s(variant: str, size: int) -> None:
    """Mean over 40 draws of the trainer's selection and packing, within 3 %; steps are exact."""
    sizes_of = {"group_size": 12, "prompts_per_iteration": 16, "updates_per_iteration": 2}
    params = edited(preset("tiny-paper"), train={"micro_batch_size": size, **sizes_of})
    sizes = (1,) * 16 if variant == "dance" else (2, 3, 4, 7)
    method = method_from(params, variant, ChunkPlan(sizes), torch.ones(len(sizes)), time_grid(17))
    rows = 96
    drawn = [
        ChunkSelector(method).select(_trajectories(rows), DrawContext(0, n, 40, 1, range(rows), rows))
        for n in range(1, 41)
    ]
    packings = [pack(chunks, size) for chunks in drawn]
    items = sum(len(part) for packing in packings for part in packing.all) / 40
    divided = sum(len(part) for packing in packings for part in packing.divided) / 40
    batches = sum(len(packing.all) for packing in packings) / 40
    planned = iteration(settings(params), variant)
    assert planned.update.states == pytest.approx(2 * items, rel=0.03)
    assert planned.update.passes == pytest.approx(2 * batches, rel=0.03, abs=1.5)
    assert planned.ratio.states == pytest.approx(divided, rel=0.03)
    if variant == "dance":
        assert planned.update == Count(2 * items, 2 * math.ceil(items / size))


def _trajectories(rows: int) -> SampledTrajectories:
    return SampledTrajectories(
        states=torch.zeros(rows, 18, 1, 1),
        first_step=torch.zeros(rows, dtype=torch.int64),
        noisy=torch.ones(rows, 16, dtype=torch.bool),
        log_probs=torch.zeros(rows, 16),
        means=None,
        finals=torch.zeros(rows, 1, 1),
    )


def test_a_weighted_draw_has_a_range() -> None:
    """Two of [2, 3, 4, 7]: 5 to 11 items, 8 if all weights are equal."""
    chunks = of(FLUX, "chunk-ws").chunks
    assert (chunks.items, chunks.range, chunks.is_exact) == (8, (5, 11), False)
    assert of(FLUX, "chunk").chunks.is_exact
