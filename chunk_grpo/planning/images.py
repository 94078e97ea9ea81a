"""Images that each scorer judges in a run: of rollouts and held-out measurements, and of the evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chunk_grpo.config import Params, TrainParams, VariantParams
from chunk_grpo.config.models import chunk_count


@dataclass(frozen=True)
class ScoredImages:
    """Images of one scorer."""

    training: int
    """Images of all variants and seeds in training; an early stop makes them fewer."""
    evaluation: int
    """Evaluation images of all policies."""

    @property
    def total(self) -> int:
        """Images in all."""
        return self.training + self.evaluation


def scored_images(params: Params, name: str, prompts: Mapping[str, int]) -> ScoredImages:
    """Images that a scorer judges; `prompts` is the number of evaluation prompts of each split.

    training     V R (I P G + E H) for a part of the reward, V R E H for a held-out scorer: V variants, R seeds, I
                 iterations, P prompts, G images a prompt (with branches: at each branch point), E held-out measurements
                 of H images; with credit: chunk-gains an image of a rollout counts 1 + K times, for the K images that
                 are predicted before its chunks
    evaluation   prompts * images per prompt * sets of evaluation images
    """
    train, held = params.train, params.train.heldout
    seeds, is_reward = len(train.seeds), name in params.rewards
    measured = 0
    if is_reward or name in held.scorers:
        shown = min(held.num_prompts, params.prompts.eval_count) * held.images_per_prompt
        measured = len(params.variants) * seeds * heldout_evaluations(train) * shown
    rolled_out = 0
    if is_reward:
        each = sum(_judged_for_an_image(params, own) for own in params.variants.values())
        rolled_out = each * seeds * train.iterations * train.prompts_per_iteration * train.group_size
    judged = sum(prompts[split] for split in params.scorers[name].splits)
    return ScoredImages(measured + rolled_out, judged * params.generate.images_per_prompt * evaluated_sets(params))


def _judged_for_an_image(params: Params, own: VariantParams) -> int:
    """Images that a scorer judges for each of the P G images of an iteration."""
    if own.credit == "chunk-gains":
        return 1 + chunk_count(params.chunks.plans[own.plan], params.sampling.num_sde_steps)
    return own.branching.points if own.branching else 1


def heldout_evaluations(train: TrainParams) -> int:
    """Held-out evaluations of a run: before training, every `every` iterations, and after the last."""
    iterations, every = train.iterations, train.heldout.every
    return 1 + iterations // every + (1 if iterations % every else 0)


def evaluated_sets(params: Params) -> int:
    """Sets of evaluation images: one of the base, two (tuned, hybrid) of each variant and seed.

    Also two of each compared policy, and one where its images are given.
    """
    runs = len(params.variants) * len(params.train.seeds) + saved_policies(params)
    return 1 + 2 * runs + len(params.policies) - saved_policies(params)


def saved_policies(params: Params) -> int:
    """Compared policies whose images are drawn."""
    return sum(policy.kind == "weights" for policy in params.policies.values())
