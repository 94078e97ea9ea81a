"""Numbers far out of range are refused with their bound: none of them may cost memory, hours or a whole training."""

import pytest

from tests.drills.changes import get, leaves
from tests.params_edits import RAW, problems, put

LARGEST_SEED = 2**63 - 1
COCO = {"kind": "coco", "count": 6, "seed": 0}
LORA = {"rank": 8, "alpha": 8.0, "targets": ["to_q"]}

HARMLESS = {
    "train.learning_rate": "a factor",
    "train.weight_decay": "a factor",
    "train.max_grad_norm": "a limit",
    "train.advantage_clip": "a limit",
    "train.kl_coef": "a factor",
    "rewards.shapes-graded": "a factor",
    "rewards.shapes-vivid": "a factor",
    "train.checkpoint_every": "a period: never",
    "train.checkpoints_kept": "all of them",
    "train.heldout.every": "a period: never",
}
"""Settings where any large number is valid and costs nothing; at worst training reports a diverged policy."""


NUMBERS = [".".join(map(str, path)) for path in leaves(RAW) if type(get(RAW, path)) in (int, float)]


def test_every_number_has_an_upper_bound_or_a_reason_to_have_none() -> None:
    unbounded = {path for path in NUMBERS if not problems(put(path, 10**30))}
    unbounded |= {path for path in NUMBERS if not problems(put(path, 1e300))}
    assert unbounded == set(HARMLESS)


BOUNDS = {
    LARGEST_SEED: "train.seeds.2 train.heldout.seed prompts.seed generate.seed report.seed "
    "prompts.benchmarks.more.seed",
    1_000_000: "prompts.benchmarks.more.count prompts.train_count prompts.eval_count prompts.wise_count "
    "train.iterations",
    86_400: "train.reward_away_seconds",
    65_536: "encode.batch_size profile.batch_size train.rollout_batch_size train.micro_batch_size "
    "generate.batch_size "
    "scorers.shapes-exact.batch_size",
    10_000: "profile.num_seeds generate.images_per_prompt train.heldout.images_per_prompt train.group_size",
    4096: "train.lora.rank model.max_sequence_length",
    1000: "model.guidance_scale sampling.shift",
    10: "sampling.eta variants.chunk.eta",
}


@pytest.mark.parametrize(("path", "most"), [(path, most) for most in BOUNDS for path in BOUNDS[most].split()])
def test_bound_is_inclusive(path: str, most: int) -> None:
    there = (put("prompts.benchmarks.more", COCO), put("train.lora", LORA))
    assert problems(*there, put(path, most)) == []
    name = path.replace("seeds.2", "seeds[2]")
    assert problems(*there, put(path, most + 1)) == [f"{name}: must be <= {most}, got {most + 1}"]


@pytest.mark.parametrize("section", ["model", "generate"])
@pytest.mark.parametrize("side", ["height", "width"])
def test_the_sides_of_an_image(section: str, side: str) -> None:
    assert problems(put(f"{section}.{side}", 4096)) == []
    assert problems(put(f"{section}.{side}", 8192)) == [f"{section}.{side}: must be <= 4096, got 8192"]


@pytest.mark.parametrize("path", ["sampling.shift", "generate.shift", "sampling.eta", "variants.chunk.eta"])
def test_values_below_which_the_sampler_breaks_down(path: str) -> None:
    assert problems(put(path, 0.001)) == []
    assert problems(put(path, 1e-30)) == [f"{path}: must be >= 0.001, got 1e-30"]


def test_the_noise_seeds_of_the_profile_end_with_the_last() -> None:
    most = LARGEST_SEED - 2
    three = put("profile.num_seeds", 3)
    assert problems(three, put("profile.seed", most)) == []
    assert problems(three, put("profile.seed", most + 1)) == [
        f"profile.seed: must be <= 2**63 - profile.num_seeds = {most}, got {most + 1}"
    ]


def test_the_eta_of_cps_is_at_most_1_in_sampling_and_in_a_variant() -> None:
    too_much = "must be <= 1 with sde: cps, got 1.5"
    cps = (put("sampling.sde", "cps"), put("sampling.eta", 1.5))
    assert problems(*cps) == [f"sampling.eta: {too_much}"]
    both = problems(*cps, put("variants.chunk.eta", 1.5))
    assert both == [f"sampling.eta: {too_much}", f"variants.chunk.eta: {too_much}"]
    assert problems(*cps, put("variants.chunk.sde", "dance")) == [f"sampling.eta: {too_much}"]
