"""Numbers far out of range are refused with their bound: none of them may cost memory, hours or a whole training."""

import pytest

from tests.params_edits import RAW, paths, problems, put

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
    "train.reward_attempts": "ends with the first success",
    "train.checkpoint_every": "a period: never",
    "train.checkpoints_kept": "all of them",
    "train.heldout.every": "a period: never",
}
"""Where any large number has a meaning and no price: at worst training says that the policy has diverged."""


def number_paths() -> list[str]:
    """The dotted paths of all numbers in params.yaml."""

    def at(path: str) -> object:
        here = RAW
        for part in path.split("."):
            here = here[int(part)] if isinstance(here, list) else here[part]
        return here

    return [path for path in paths(RAW) if type(at(path)) in (int, float)]


def test_every_number_has_an_upper_bound_or_a_reason_to_have_none() -> None:
    unbounded = {path for path in number_paths() if not problems(put(path, 10**30))}
    unbounded |= {path for path in number_paths() if not problems(put(path, 1e300))}
    assert unbounded == set(HARMLESS)


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("train.seeds.2", LARGEST_SEED),
        ("train.heldout.seed", LARGEST_SEED),
        ("prompts.seed", LARGEST_SEED),
        ("generate.seed", LARGEST_SEED),
        ("report.seed", LARGEST_SEED),
        ("prompts.benchmarks.more.seed", LARGEST_SEED),
        ("prompts.benchmarks.more.count", 1_000_000),
        ("prompts.train_count", 1_000_000),
        ("prompts.eval_count", 1_000_000),
        ("prompts.wise_count", 1_000_000),
        ("encode.batch_size", 65_536),
        ("profile.batch_size", 65_536),
        ("train.micro_batch_size", 65_536),
        ("generate.batch_size", 65_536),
        ("scorers.shapes-exact.batch_size", 65_536),
        ("profile.num_seeds", 10_000),
        ("generate.images_per_prompt", 10_000),
        ("train.heldout.images_per_prompt", 10_000),
        ("train.group_size", 10_000),
        ("train.iterations", 1_000_000),
        ("train.lora.rank", 4096),
        ("train.reward_wait", 86_400),
        ("model.max_sequence_length", 4096),
        ("model.guidance_scale", 1000),
        ("sampling.shift", 1000),
        ("sampling.eta", 10),
        ("variants.chunk.eta", 10),
        ("report.bootstrap_samples", 100_000),
    ],
)
def test_the_bound_itself_is_taken_and_no_more(path: str, most: int) -> None:
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
