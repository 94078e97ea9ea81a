"""Fidelity: by how much rounding alone moves the ratios of an unchanged policy, in the first update and in later ones.

On the toy checkpoints, with the sizes of batches of the preset tiny, whose clip range is 2e-4.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.update import Update, UpdateStats
from tests.training.conftest import CHUNK_WS, ROOT
from tests.training.conftest import LORA as SMALL_LORA
from tests.training.worker import Job, Seen, do, result, run_pair

CLIP_RANGE = 2e-4
SIZES: dict[str, Any] = {
    "iterations": 2,  # the second one has an adapter that is not 0
    "prompts_per_iteration": 4,
    "group_size": 16,
    "rollout_batch_size": 64,
    "micro_batch_size": 64,
    "learning_rate": 5e-4,
    "clip_range": CLIP_RANGE,
    "kl_coef": 0.0,
    "checkpoint_every": 10,
    "heldout": {"every": 1, "num_prompts": 1, "images_per_prompt": 1},
}
LORA: dict[str, Any] = SMALL_LORA | {"gradient_checkpointing": True}
NARROW: dict[str, Any] = {"lora": {**LORA["lora"], "precision": "network"}}
RECOMPUTED = {"old_log_probs": "training"}
QUANTILES = [f"{name}_{end}" for name in ("fidelity", "fidelity_later") for end in ("p50", "p99", "max")]


def job(changes: dict[str, Any], family: str = "flux", variant: dict[str, Any] = CHUNK_WS, **options: Any) -> Job:
    return Job(variant, SIZES | changes, family=family, checkpoint=str(ROOT / f"assets/tiny-{family}"), **options)


HALF = {"dtype": "bfloat16"}
GUIDED = {"family": "sd3", "cfg_scale": 2.0}
EAGER = {
    "eager": job({}),
    "guided": job({}, **GUIDED),
    "LoRA": job(LORA),
    "int8": job(LORA, base_precision="int8", **HALF),
    "adapter in the network's type": job(NARROW, **HALF),
    "bfloat16, recomputed": job(RECOMPUTED, **HALF),
}


def is_faithful(seen: Seen) -> bool:
    """Whether both iterations have all quantiles, and the 99th percentiles are at most a fifth of the clip range."""
    assert seen.error == ""
    assert [len(seen.metric(name)) for name in QUANTILES] == [2] * len(QUANTILES)
    return max(seen.metric("fidelity_p99") + seen.metric("fidelity_later_p99")) <= CLIP_RANGE / 5


@pytest.mark.parametrize("name", EAGER)
def test_rounding_moves_ratios_by_a_fifth_of_the_clip_range_at_most(name, prompts, tmp_path):
    assert is_faithful(do(EAGER[name], prompts, tmp_path))


ALIKE: dict[str, Any] = {"variant": {"objective": "step", "plan": "step", "fraction": 0.25}}
"""Micro-batches of 32 items, for few graphs: each takes seconds to minutes."""

COMPILED = {
    "all weights": job({"compile": True}, **ALIKE),
    "guided": job({"compile": True}, **ALIKE, **GUIDED),
    "LoRA": job({"compile": True, **LORA}, **ALIKE),
    "bfloat16, recomputed": job({"compile": True, **LORA, **RECOMPUTED}, **ALIKE, **HALF),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_graphs_move_ratios_by_a_fifth_of_the_clip_range_at_most(name, prompts, tmp_path):
    assert is_faithful(do(COMPILED[name], prompts, tmp_path))


@pytest.mark.slow
def test_shards_move_ratios_by_a_fifth_of_the_clip_range_at_most(prompts: PromptSet, tmp_path: Path) -> None:
    """Both processes have the same metrics: quantiles over the items of both."""
    shards = {"shard_weights": True}
    jobs = {
        "all-weights": job(shards),
        "adapter": job(shards | LORA | RECOMPUTED, **HALF),
        "guided": job(shards, **GUIDED),
    }
    run_pair({name: replace(each, folder=name) for name, each in jobs.items()}, prompts, tmp_path)
    for name in jobs:
        first, second = (result(tmp_path, name, rank) for rank in range(2))
        assert is_faithful(first) and is_faithful(second)
        assert all(first.metric(quantile) == second.metric(quantile) for quantile in QUANTILES)


@pytest.fixture
def uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy's velocity depends on the number of images that are passed together, as if by rounding."""
    velocity = FluxFamily.velocity

    def changed(self: FluxFamily, x: Tensor, *others: Any) -> Tensor:
        return velocity(self, x, *others) * (1 + 1e-3 * len(x))

    monkeypatch.setattr(FluxFamily, "velocity", changed)


FEW: dict[str, Any] = {
    "iterations": 3,
    "kl_coef": 0.0,
    "group_size": 6,
    "prompts_per_iteration": 3,
    "updates_per_iteration": 3,
    "rollout_batch_size": 5,
    "micro_batch_size": 64,
    "heldout": {"every": 2, "num_prompts": 1, "images_per_prompt": 1},
}


@pytest.mark.usefixtures("uneven")
def test_it_is_the_log_ratio_of_later_updates_of_a_policy_that_stands_still(prompts, tmp_path, monkeypatch):
    made: list[UpdateStats] = []
    accumulate = Update.accumulate_gradient

    def kept(self: Update, processes: Processes, **options: Any) -> UpdateStats:
        made.append(accumulate(self, processes, **options))
        return made[-1]

    monkeypatch.setattr(Update, "accumulate_gradient", kept)
    still = FEW | {"learning_rate": 1e-30}
    seen = do(Job(CHUNK_WS, still), prompts, tmp_path)
    assert seen.error == ""
    changes = torch.cat([stats.log_prob_change for stats in made[1:3]]).abs().double()  # iteration 1
    for end, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        assert seen.metric(f"fidelity_later_{end}")[0] == float(changes.quantile(share)) > 1e-6
    found = [iteration for iteration, name, _ in seen.rows if name == "fidelity_later_p99"]
    assert found == [1, 3]  # the first iteration, and each `heldout.every` after it


@pytest.mark.usefixtures("uneven")
def test_recomputed_values_free_later_updates_of_the_rollouts_rounding(prompts, tmp_path):
    seen = do(Job(CHUNK_WS, FEW | RECOMPUTED), prompts, tmp_path)
    assert min(seen.metric("fidelity_p99")) > 1e-6
    assert max(seen.metric("fidelity_later_max")) == 0.0


@pytest.mark.parametrize(
    ("variant", "changes"),
    [(CHUNK_WS, {"updates_per_iteration": 1}), ({"objective": "step", "plan": "step", "likelihood": "nft"}, {})],
)
def test_without_ratios_there_is_none_of_later_updates(variant, changes, prompts, tmp_path):
    seen = do(Job(variant, FEW | changes | {"iterations": 1}), prompts, tmp_path)
    assert seen.error == ""
    assert len(seen.metric("fidelity_p99")) == 1
    assert seen.metric("fidelity_later_p99") == []
