"""Evaluations of an iteration, by hand."""

from typing import Any

import pytest

from chunk_grpo.planning import dry_run
from chunk_grpo.planning.counters import Count
from chunk_grpo.planning.dry_run import IterationCounts, count_iteration
from tests.planning.planned import edited, preset, with_variant

FLUX = preset("flux-dev")


def of(params: Any, variant: str = "it", gpus: int = 8) -> IterationCounts:
    return count_iteration(params, variant, gpus)


def seen(count: Count) -> tuple[float, float]:
    return count.states, count.passes


def test_table_6_on_eight_gpus() -> None:
    """192 images, 24 a GPU, 17 steps; 8 of 16 steps trained in each of two updates of 12 images.

    12 images, of one prompt, share their first state in a rollout's pass; 4 items are a pass of an update.
    """
    dance = of(FLUX, "dance")
    assert seen(dance.rollout) == (24 * 16 + 2, 2 * 17) and dance.rollout.images == 24
    assert seen(dance.update) == (2 * 12 * 8, 2 * 12 * 8 / 4)
    assert seen(dance.old_log_probs) == (12 * 8, 12 * 8 / 4)
    assert seen(dance.ratio) == seen(dance.reference) == (0, 0)
    assert seen(dance.heldout) == (4 * 17, 17) and dance.heldout.images == 4
    assert dance.latents == 24 * (18 + 1)


def test_flux_pass_counts_by_hand() -> None:
    """Two of [2, 3, 4, 7] are drawn for each image: a mean of 8 of 16 steps, 7 / 2 of them of a chunk above 4 items.

    Over all GPUs: 192 * 17 of the rollout less those of common starts, 192 * 8 with a backward pass, half
    as many old log-probabilities, and 192 / 2 * 7 / 2 items whose ratios come first.
    """
    chunk = of(FLUX, "chunk")
    assert 8 * chunk.update.states == 192 * 8
    assert 8 * chunk.old_log_probs.states == 192 / 2 * 8
    assert 8 * chunk.ratio.states == 192 / 2 * 7 / 2
    assert chunk.chunk_sizes == (2, 3, 4, 7)
    larger = {"micro_batch_size": 12, "same_noise_in_group": False}
    found = of(edited(FLUX, train=larger), "chunk")
    assert found.ratio.states == 0 and seen(found.rollout) == (24 * 17, 2 * 17)


@pytest.mark.parametrize(("prompts", "own"), [(2, 1), (12, 2)])
def test_held_out_prompts_that_the_processes_cannot_share_equally(prompts: int, own: int) -> None:
    heldout = FLUX.train.heldout.model_dump() | {"num_prompts": prompts}
    assert seen(of(edited(FLUX, train={"heldout": heldout}), "dance").heldout) == (own * 17, 17)


def test_chunks_that_fit_are_never_divided() -> None:
    """Four chunks of 4 steps in micro-batches of 7: one in each, 2 of 4 drawn for 12 images in each of two updates."""
    params = edited(FLUX, train={"micro_batch_size": 7})
    params = with_variant(params, objective="chunk", plan="equal-4", fraction=0.5)
    assert seen(of(params).update) == (2 * 12 * 8, 2 * 12 * 2)


def test_a_kl_divergence_evaluates_the_reference_for_each_item() -> None:
    found = of(edited(FLUX, train={"kl_coef": 0.04}), "chunk")
    assert found.reference == found.update
    controlled = with_variant(preset("hacking"), objective="chunk", plan="listed", controlled=True)
    found = of(controlled, gpus=1)
    assert found.reference == found.update and found.update.states > 0


def test_branches() -> None:
    """TempFlow: 16 prompts of 12 / 4 runs of 17 steps; 2 points of 4 children, (16 + 1) / 2 steps left on average."""
    branching = {"points": 2, "children": 4}
    params = with_variant(FLUX, objective="step", plan="step", fraction=1.0, branching=branching)
    found = of(params, gpus=1)
    assert found.rollout.images == 16 * 12 * 2
    assert found.rollout.states == 48 * 17 + 48 * 4 * 2 * 8.5
    assert found.update.states == 16 * 12 * 2
    assert found.latents == 16 * 12 * 2 * (2 + 1)


def test_gains_decode_and_score_an_image_more_for_each_chunk() -> None:
    """24 images a GPU, four chunks; no state is evaluated more often, and the trajectories stay as they are."""
    plain, gained = (of(FLUX, "chunk"), of(with_variant(FLUX, objective="chunk", plan="listed", credit="chunk-gains")))
    assert (plain.rollout.images, plain.predicted) == (24, 0)
    assert (gained.rollout.images, gained.predicted) == (24 * (4 + 1), 24 * 4)
    assert seen(gained.rollout) == seen(plain.rollout)
    assert (gained.update, gained.latents) == (plain.update, plain.latents)


def test_a_window_trains_its_steps_only() -> None:
    window = {"num_steps": 4, "stride": 1, "every": 25}
    params = with_variant(FLUX, objective="step", plan="step", fraction=0.5, window=window)
    assert of(params, gpus=1).update.states == 192 * 2
    drawn = {"num_steps": 2, "starts": (0, 1, 2, 3)}
    params = with_variant(FLUX, objective="step", plan="step", fraction=1.0, window=drawn)
    assert of(params, gpus=1).update.states == 192 * 2


def test_what_changes_no_count_is_trained_once() -> None:
    assert of(FLUX, "chunk") is of(FLUX, "chunk-ws")
    adapter = {"rank": 4, "alpha": 4.0, "targets": ("to_q",)}
    for change in (
        {"offload": ("vae",)},
        {"lora": adapter, "shard_weights": False, "hybrid_sharding": False},
        {"gradient_checkpointing": 0.5, "compile": True},
    ):
        assert of(FLUX, "chunk") is of(edited(FLUX, train=change), "chunk")


@pytest.mark.parametrize(
    "change",
    [
        {"lora": {"rank": 4, "alpha": 4.0, "targets": ("to_q",)}, "shard_weights": False, "hybrid_sharding": False},
        {"gradient_checkpointing": 0.5},
    ],
)
def test_what_is_left_out_of_the_dry_run_changes_no_count(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = edited(FLUX, train=change | {"kl_coef": 0.04})
    found, plain = of(params, "chunk"), dry_run._plain
    monkeypatch.setattr(dry_run, "_plain", lambda *args: {k: v for k, v in plain(*args).items() if k not in change})
    again = of(params, "chunk")
    assert again == found and again is not found
