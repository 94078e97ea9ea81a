"""Numbers far out of range are refused with their bound: none of them may cost memory, hours or a whole training.

tests/infra/test_reference.py compares each bound with docs/parameters.md.
"""

from tests.params_edits import RAW, get, leaves, problems, put

LARGEST_SEED = 2**63 - 1

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
