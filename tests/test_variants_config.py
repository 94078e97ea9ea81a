"""Every setting of a variant: what may stand in it, what fits together, and the message when it does not."""

from typing import Any

import pytest

from chunk_grpo.config import VariantParams
from tests.params_edits import FUZZ, Edit, paths, problems, put

ADAPTIVE: Edit = put("chunks.plans.adaptive", {"kind": "adaptive", "max_size": 4})
WINDOW = {"num_steps": 4, "stride": 1, "every": 25}
BRANCHING = {"points": 4, "children": 4}

CHUNK: dict[str, Any] = {"objective": "chunk", "plan": "listed"}
STEP: dict[str, Any] = {"objective": "step", "plan": "step"}
CONTROL: dict[str, Any] = {"objective": "step", "plan": "listed", "step_weights": "chunk-size"}
WINDOWED: dict[str, Any] = {**STEP, "window": WINDOW}
DRAWN: dict[str, Any] = {"num_steps": 2, "starts": [0, 3]}
ODE: dict[str, Any] = {**STEP, "likelihood": "matching", "sde": "ode"}
BRANCHED: dict[str, Any] = {**STEP, "branching": BRANCHING, "fraction": 1.0}

EVERYTHING: dict[str, dict[str, Any]] = {
    "chunks": {
        "objective": "chunk",
        "plan": "guided",
        "selection": "unbiased",
        "selection_exponent": 0.5,
        "fraction": 0.7,
        "train_chunks": [0, 1, 3],
        "replan_every": 2,
        "clip_ranges": [1e-4, 2e-4, 3e-4, 4e-4],
        "kl_coef": 0.01,
        "learning_rate": 1e-4,
        "ratio_norm": "guard",
        "sde": "cps",
        "eta": 0.9,
        "advantage_std": "global",
        "combine": "advantages",
        "chunk_rewards": [{"shapes-graded": 1.0, "shapes-vivid": 0.5}] + 3 * [{"shapes-vivid": 1.0}],
    },
    "window": {**WINDOWED, "step_weights": "noise", "clip_range": 1e-5, "sde": "dance"},
    "drawn window": {**STEP, "window": DRAWN},
    "controlled": {**CHUNK, "controlled": True},
    "gains": {**CHUNK, "credit": "chunk-gains"},
    "forward": {**STEP, "likelihood": "nft", "nft_beta": 0.1, "forward_noise": "group", "forward_times": "stratified"},
    "slow": {**STEP, "likelihood": "nft", "sampling_average": {"rate": 0.0075, "limit": 0.999, "flat": 75}},
    "solved": {**ODE, "solver": "dpm2"},
    "branches": {**BRANCHED, "step_weights": "noise", "ratio_norm": "guard", "trust_region": "divergence"},
}
"""Variants that are accepted and between them use every setting."""


CONTROLLER: dict[str, Any] = {"tolerance": 0.02, "kl_coef": 0.01, "kl_factor": 2.0, "clip_factor": 0.5, "falls": 3}
WATCHED = (put("train.heldout.controller", CONTROLLER), put("train.heldout.scorers", ["shapes-exact"]))


def said_of(settings: dict[str, Any], *edits: Edit) -> list[str]:
    """The problems of params.yaml with one more variant, `it`."""
    return problems(ADAPTIVE, put("variants.it", settings), *edits)


def test_every_setting_can_be_used() -> None:
    assert {key for settings in EVERYTHING.values() for key in settings} == set(VariantParams.model_fields)
    for settings in EVERYTHING.values():
        assert said_of(settings, put("train.ema_decay", 0.9), *(WATCHED if "controlled" in settings else ())) == []


def test_variant_defaults_are_chunk_grpo() -> None:
    variant = VariantParams(objective="chunk", plan="listed")
    assert variant.model_dump(exclude_none=True) == CHUNK | {
        "selection": "uniform",
        "selection_exponent": 1.0,
        "step_weights": "uniform",
        "ratio_norm": "none",
        "trust_region": "clip",
        "likelihood": "transition",
        "nft_beta": 1.0,
        "forward_noise": "image",
        "forward_times": "grid",
        "controlled": False,
        "solver": "euler",
        "advantage_std": "group",
        "credit": "image",
        "combine": "rewards",
    }


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("plan", None, ": must be text, got null"),
        ("train_chunks", [], ": must not be empty"),
        ("train_chunks", [0, -1], "[1]: must be >= 0, got -1"),
        ("clip_ranges", [1e-4, 1e-4, 0, 1e-4], "[2]: must be > 0, got 0"),
        ("window", {}, ".num_steps: required, but missing"),
        ("window", {**WINDOW, "every": "25"}, ".every: must be a whole number, got '25'"),
        ("window", {"num_steps": 2, "starts": [-1]}, ".starts[0]: must be >= 0, got -1"),
        ("branching", {**BRANCHING, "children": 1}, ".children: must be >= 2, got 1"),
        ("chunk_rewards", ["shapes-vivid"], "[0]: must be a mapping of names, got 'shapes-vivid'"),
        ("chunk_rewards", [{"shapes-vivid": 0}], "[0].shapes-vivid: must be > 0, got 0"),
        ("chunk_rewards", [{1: 2.0}], "[0][1]: must be text, got 1"),
        ("weighted", True, ": unknown key; did you mean 'step_weights'?"),
        ("window", {**WINDOW, "xyz": 1}, ".xyz: unknown key; known here: every, num_steps, starts, stride"),
        ("branching", {"points": 4, "childs": 4}, ".childs: unknown key; did you mean 'children'?"),
    ],
)
def test_a_setting_of_the_wrong_type_or_out_of_range_is_named(key: str, value: object, message: str) -> None:
    assert said_of({**CHUNK, key: value})[0] == f"variants.it.{key}{message}"


def test_a_controller_keeps_no_copy_of_sharded_weights() -> None:
    settings, edits = {**CHUNK, "controlled": True}, (*WATCHED, put("train.shard_weights", True))
    assert said_of(settings, *edits) == ["variants.it.controlled: needs train.shard_weights: false, got true"]


def test_the_profile_needs_noise() -> None:
    edits = put("variants", {"it": {**STEP, "likelihood": "nft"}}), put("sampling.sde", "ode")
    assert problems(*edits) == [
        "sampling.sde: must have noise, with which the profile of Eq. (15) is measured; set sde: ode in variants, "
        "got 'ode'"
    ]


def test_misspelt_adapter_setting_is_reported() -> None:
    lora = {"rank": 4, "alpha": 4.0, "target": ["to_q"]}
    assert problems(put("train.lora", lora)) == ["train.lora.target: unknown key; did you mean 'targets'?"]


ALL_NOISY = "needs noise in all steps; with a window or branching most steps have none"
SINGLE = "needs objective: step and a plan of kind: step, got"
NONE = "int(chunks * fraction) must be >= 1, got int"
ONE_VIVID = [{"shapes-vivid": 1.0}]
GAINS = {**CHUNK, "credit": "chunk-gains"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        # Plans.
        ({**CHUNK, "plan": "lited"}, "plan: must be a name in chunks.plans, got 'lited'; did you mean 'listed'?"),
        ({**CONTROL, "plan": "step"}, "plan: step_weights: chunk-size needs the chunks that set the weights"),
        ({**CHUNK, "step_weights": "noise"}, "step_weights: needs objective: step, whose terms it weighs"),
        ({**CHUNK, "replan_every": 5}, "replan_every: needs a plan of kind: guided, which follows the profile"),
        # The share that is trained.
        ({**CHUNK, "plan": "single"}, f"fraction: {NONE}(1 * 0.5) = 0 with plan 'single'; raise train.fraction"),
        ({**CHUNK, "fraction": 0.2}, f"fraction: {NONE}(4 * 0.2) = 0 with plan 'listed'; raise it"),
        # 16 steps make 4 chunks of 4 at least.
        ({**CHUNK, "plan": "adaptive", "fraction": 0.2}, f"fraction: {NONE}(4 * 0.2) = 0 with plan 'adaptive'"),
        ({**CHUNK, "train_chunks": [3]}, f"fraction: {NONE}(1 * 0.5) = 0 with train_chunks; raise train.fraction"),
        ({**WINDOWED, "window": {**WINDOW, "num_steps": 1}}, f"fraction: {NONE}(1 * 0.5) = 0 with window.num_steps"),
        ({**BRANCHED, "fraction": 0.9}, f"fraction: {NONE}(1 * 0.9) = 0 with branching (each image trains the step"),
        # How it is drawn.
        ({**CHUNK, "selection": "weighted", "fraction": 1.0},
         "selection: must be uniform where every chunk is trained: int(4 * 1) = 4 with plan 'listed'"),
        ({**CHUNK, "selection": "unbiased", "train_chunks": [2], "fraction": 1.0},
         "selection: must be uniform where every chunk is trained: int(1 * 1) = 1 with train_chunks"),
        ({**CHUNK, "plan": "adaptive", "selection": "weighted"}, "selection: needs a plan for all trajectories"),
        ({**CHUNK, "selection_exponent": 0.5}, "selection_exponent: needs a weighted selection, such as selection:"),
        # What is set for single chunks.
        ({**CHUNK, "train_chunks": [0, 4]}, "train_chunks: must be numbers from 0 to 3, each once, got [0, 4]"),
        ({**CHUNK, "train_chunks": [1, 1]}, "train_chunks: must be numbers from 0 to 3, each once, got [1, 1]"),
        ({**CHUNK, "clip_ranges": [1e-4] * 2}, "clip_ranges: must have one entry for each of the 4 chunks of"),
        ({**CHUNK, "clip_ranges": [1e-4] * 4, "clip_range": 1e-4}, "clip_ranges: replaces clip_range; set only one"),
        ({**CONTROL, "clip_ranges": [1e-4] * 4}, "clip_ranges: needs objective: chunk, which has one ratio"),
        ({**CHUNK, "chunk_rewards": ONE_VIVID}, "chunk_rewards: must have one entry for each of the 4 chunks of"),
        ({**CONTROL, "chunk_rewards": ONE_VIVID * 4}, "chunk_rewards: needs objective: chunk, which has one ratio"),
        ({**CHUNK, "chunk_rewards": [{"shapes-exact": 1.0}, *ONE_VIVID * 3]},
         "chunk_rewards[0].shapes-exact: must be a name in rewards, got 'shapes-exact'"),
        ({**CHUNK, "chunk_rewards": [*ONE_VIVID * 3, {}]}, "chunk_rewards[3]: must name at least one reward"),
        ({**CHUNK, "chunk_rewards": ONE_VIVID * 4, "combine": "advantages"}, "combine: needs several rewards, and"),
        # Gains of chunks.
        ({**GAINS, **WINDOWED}, f"credit: {ALL_NOISY}, got 'chunk-gains'"),
        ({**GAINS, **BRANCHED}, f"credit: {ALL_NOISY}, got 'chunk-gains'"),
        ({**GAINS, "objective": "step"}, "credit: needs objective: chunk, which has one ratio per chunk of the plan"),
        ({**GAINS, "combine": "gdpo"}, "combine: must be 'rewards' with credit: chunk-gains, got 'gdpo'"),
        ({**GAINS, "chunk_rewards": ONE_VIVID * 4}, "chunk_rewards: must be null with credit: chunk-gains, got"),
        ({**GAINS, "plan": "guided", "replan_every": 5}, "replan_every: must be null with credit: chunk-gains, got 5"),
        ({**GAINS, "likelihood": "nft"}, "likelihood: must be 'transition' with credit: chunk-gains, got 'nft'"),
        # Images noised again.
        ({**STEP, "nft_beta": 0.5}, "nft_beta: needs likelihood: nft, got 0.5"),
        ({**STEP, "likelihood": "matching", "nft_beta": 0.5}, "nft_beta: needs likelihood: nft, got 0.5"),
        ({**STEP, "likelihood": "matching", "ratio_norm": "guard"}, "ratio_norm: needs likelihood: transition"),
        ({**STEP, "likelihood": "nft", "trust_region": "divergence"}, "trust_region: needs likelihood: transition"),
        ({**STEP, "forward_noise": "group"}, "forward_noise: needs likelihood: matching or nft, whose images"),
        ({**STEP, "forward_times": "stratified"}, "forward_times: needs likelihood: matching or nft, whose images"),
        ({**BRANCHED, "likelihood": "matching"}, "branching: needs likelihood: transition, whose step a branch"),
        ({**CHUNK, "likelihood": "nft", "chunk_rewards": ONE_VIVID * 4}, "chunk_rewards: needs a likelihood with"),
        # Noise.
        ({**STEP, "sde": "ode"}, "likelihood: must be matching or nft with sde: ode, whose steps have no density"),
        ({**STEP, "solver": "dpm2"}, "solver: needs sde: ode, in all steps, got 'dpm2'"),
        ({**ODE, "eta": 0.7}, "eta: needs noise, and sde is ode; leave it out, got 0.7"),
        ({**ODE, "step_weights": "noise"}, "step_weights: needs noise, and sde is ode, got 'noise'"),
        ({**ODE, "window": WINDOW}, "window: needs noise, and sde is ode; remove one of them"),
        ({**CHUNK, "sde": "cps", "eta": 1.5}, "eta: must be <= 1 with sde: cps, got 1.5"),
        ({**WINDOWED, "window": {**WINDOW, "num_steps": 17}}, "window.num_steps: must be <= sampling.num_steps"),
        ({**WINDOWED, "window": {**WINDOW, "stride": 5}}, "window.stride: must be <= num_steps = 4, or steps between"),
        ({**STEP, "window": {**DRAWN, "starts": [0, 15]}}, "window.starts: must be steps from 0 to 14, each once, so"),
        ({**STEP, "window": {**DRAWN, "starts": [3, 3]}}, "window.starts: must be steps from 0 to 14, each once, so"),
        ({**STEP, "window": {**DRAWN, "num_steps": 17}}, "window.num_steps: must be <= sampling.num_steps - 1 = 16"),
        ({**STEP, "window": {**DRAWN, "stride": 2}}, "window.stride: moves the window, and starts has it drawn in"),
        ({**STEP, "window": {**DRAWN, "every": 25}}, "window.every: moves the window, and starts has it drawn in"),
        ({**CHUNK, "window": WINDOW}, f"window: {SINGLE} chunk and 'listed' (listed)"),
        ({**CONTROL, "window": WINDOW}, f"window: {SINGLE} step and 'listed' (listed)"),
        ({**BRANCHED, "branching": {**BRANCHING, "points": 17}}, "branching.points: must be <= sampling.num_steps - 1"),
        ({**BRANCHED, "branching": {**BRANCHING, "children": 3}}, "branching.children: must divide train.group_size"),
        ({**BRANCHED, "objective": "chunk"}, f"branching: {SINGLE} chunk and 'step' (step)"),
        ({**BRANCHED, "window": WINDOW}, "branching: cannot be combined with window: a branch has one noisy step"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_together_are_named(settings: dict[str, Any], message: str) -> None:
    (found,) = said_of(settings)
    assert found.startswith(f"variants.it.{message}")


@pytest.mark.parametrize(
    ("settings", "edit", "message"),
    [
        ({**CHUNK, "combine": "advantages"}, put("rewards", {"shapes-vivid": 1.0}), "combine: needs several rewards"),
        ({**CHUNK, "sde": "cps"}, put("sampling.eta", 1.2), "eta: must be <= 1 with sde: cps, got 1.2"),
        ({**ODE, "sampling_average": {}}, put("train.ema_decay", 0.9),
         "sampling_average: needs likelihood: nft, which has no ratio, got 'matching'"),
        (ODE, put("train.same_noise_in_group", True), "sde: needs train.same_noise_in_group: false, or the images"),
        ({**CHUNK, "plan": "single", "selection": "weighted"}, put("train.fraction", 1.0), "selection: must be"),
        ({**CHUNK, "controlled": True}, WATCHED[0], "controlled: needs a scorer in train.heldout.scorers, got true"),
        ({**CHUNK, "controlled": True}, WATCHED[1], "controlled: needs train.heldout.controller, got true"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_rest_are_named(settings, edit, message):
    (found,) = problems(ADAPTIVE, put("variants", {}), put("variants.it", settings), edit)
    assert found.startswith(f"variants.it.{message}")


@pytest.mark.parametrize(
    "settings",
    [
        {**CHUNK, "sde": "dance", "eta": 1.5},
        {**CHUNK, "sde": "cps", "eta": 1.0},
        {**CONTROL, "plan": "adaptive", "fraction": 0.25},
        {**CONTROL, "plan": "guided", "replan_every": 1, "selection": "weighted"},
        {**ODE, "step_weights": "interval"},
        {**CHUNK, "sde": "ode", "likelihood": "nft", "selection": "weighted"},
        {**STEP, "clip_ranges": [1e-4] * 16, "train_chunks": list(range(0, 16, 2))},
        {**WINDOWED, "window": {"num_steps": 16, "stride": 16, "every": 1}},
        {**STEP, "window": {"num_steps": 2}},
        {**STEP, "window": {"num_steps": 16, "starts": [0]}},
        {**STEP, "window": {**DRAWN, "starts": list(range(15))}},
        {**BRANCHED, "branching": {"points": 16, "children": 8}},
    ],
)
def test_settings_at_the_edge_of_what_fits_are_accepted(settings: dict[str, Any]) -> None:
    assert said_of(settings) == []


def test_a_range_of_fractions_may_end_with_all_chunks() -> None:
    assert said_of({**CHUNK, "selection": "weighted"}, put("train.fraction", 1.0)) == []


def test_a_variant_has_a_name_of_its_own() -> None:
    assert problems(put("variants.base", CHUNK)) == [
        "variants.base: this name means the untrained policy; choose another"
    ]
    assert problems(put("variants.answer", CHUNK)) == [
        "variants.answer: this name means a key of the report's summary.json; choose another"
    ]


@pytest.mark.parametrize("value", FUZZ, ids=repr)
def test_any_value_at_any_key_gives_a_named_error(value: object) -> None:
    """As in test_config.py, for variants with all settings and for null values of params.yaml."""
    lora = {"rank": 4, "alpha": 4.0, "targets": ["to_q"]}
    more = (put("variants", EVERYTHING), put("train.lora", lora))
    everywhere = [f"variants.{path}" for path in paths(EVERYTHING)]
    everywhere += [f"train.lora.{path}" for path in paths(lora)]
    for path in everywhere:
        assert all(": " in line for line in problems(*more, put(path, value)))


def test_a_misspelt_setting_anywhere_is_named() -> None:
    for path in paths(EVERYTHING):
        if not path.split(".")[-1].isdecimal():  # a place in a list has no name to misspell
            assert all(": " in line for line in problems(put("variants", EVERYTHING), put(f"variants.{path}x", 1.5)))
