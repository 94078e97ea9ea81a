"""Seconds of the plan by kind of pass, at the shares of the peak that one H200 reached (docs/performance.md)."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from chunk_grpo.config import Params
from chunk_grpo.planning.cost import computing_seconds
from chunk_grpo.planning.machines import GPUS, Rates
from chunk_grpo.planning.plan import Plan
from chunk_grpo.planning.tables import show
from tests.planning.planned import edited, load_own, plan

PEAK = 989
"""TFLOP/s of an H200."""
FLOP = {
    "rollout": 1e15,
    "old log-probabilities": 2e15,
    "ratios of large chunks": 3e15,
    "update, forward": 4e15,
    "update, backward": 5e15,
    "update, recomputed": 6e15,
    "KL reference": 7e15,
    "held-out": 8e15,
    "decoding": 9e15,
    "scoring": 10e15,
}
"""Without gradients 21 PFLOP by the network and 19 by VAE and scorers; 15 PFLOP in updates."""


def toy(*, compiles: bool) -> Params:
    """One variant of params.yaml; its network is small, so that planning it takes a second."""
    own = load_own()
    name = next(iter(own.variants))
    one = own.model_copy(update={"variants": {name: own.variants[name]}})
    return edited(one, train={"compile": compiles})


def seconds(found: Plan, stage: str) -> float:
    return next(each.seconds.most for each in found.stages if each.name.startswith(stage))


def test_updates_have_a_rate_of_their_own() -> None:
    """40 PFLOP at 0.40 of 989 TFLOP/s are 101.1 s, 15 PFLOP at 0.33 are 46.0 s."""
    found = computing_seconds(FLOP, GPUS["H200"].rates, compiles=False)
    assert found == pytest.approx(40_000 / (0.40 * PEAK) + 15_000 / (0.33 * PEAK))
    assert found == pytest.approx(101.1 + 46.0, abs=0.1)


def test_compiled_passes_take_the_measured_share_of_the_time() -> None:
    """The network's 53.1 s by 1.335, updates' 46.0 s by 1.36; VAE and scorers, 48.0 s, are not compiled."""
    found = computing_seconds(FLOP, GPUS["H200"].rates, compiles=True)
    assert found == pytest.approx(53.08 / 1.335 + 45.96 / 1.36 + 48.03, abs=0.02)
    for shorter, eager, compiled in ((1.335, 0.375, 0.281), (1.36, 1.487, 1.093)):  # seconds of 4 images
        assert eager / compiled == pytest.approx(shorter, abs=1e-3)


def test_the_rates_of_a_card_are_those_that_were_measured() -> None:
    """4 images on an H200: 397 and 530 TFLOP/s without gradients, 316 to 333 and 436 in updates."""
    rates = GPUS["H200"].rates
    assert (rates.forward, rates.compiled_forward) == (pytest.approx(397, rel=0.01), pytest.approx(530, rel=0.01))
    assert 316 < rates.update < 333 and rates.compiled_update == pytest.approx(436, rel=0.02)


def test_a_given_rate_is_that_of_everything() -> None:
    """55 PFLOP at 100 TFLOP/s, compiled or not."""
    for compiles in (False, True):
        assert computing_seconds(FLOP, Rates.equal(100), compiles=compiles) == pytest.approx(550)
    plain, compiled = (plan(toy(compiles=each), tflops=100) for each in (False, True))
    assert plain.iterations == compiled.iterations and plain.total == compiled.total
    assert plain.iterations[0].seconds.most == pytest.approx(plain.iterations[0].total_flop / 100e12)


def test_a_plan_compiles_its_training_alone() -> None:
    """Operations are the same; an iteration and a stop take less, profile and images as long."""
    plain, compiled = (plan(toy(compiles=each), gpu="H200") for each in (False, True))
    (one,), (other,) = plain.iterations, compiled.iterations
    assert one.flop == other.flop
    for cost, compiles in ((one, False), (other, True)):
        rates = GPUS["H200"].rates
        assert cost.seconds.most == pytest.approx(computing_seconds(cost.flop, rates, compiles=compiles))
    train = toy(compiles=True).train
    trained = [seconds(each, "train ") - len(train.seeds) * each.savings[0].total for each in (plain, compiled)]
    gained = train.iterations * (one.seconds.most - other.seconds.most)
    assert trained[0] - trained[1] == pytest.approx(len(train.seeds) * gained) and gained > 0
    assert compiled.stop_seconds < plain.stop_seconds
    for stage in ("encode", "profile", "generate", "score"):
        assert seconds(plain, stage) == seconds(compiled, stage)


def test_the_tables_say_the_rates() -> None:
    found, compiled = (plan(toy(compiles=each), gpu="H200") for each in (False, True))
    given = replace(found, machine=replace(found.machine, rates=Rates.equal(100)))
    for each, words in (
        (found, "at 396 TFLOP/s, 326 in updates, and 300 GB/s a GPU"),
        (compiled, "at 396 TFLOP/s, with compiled blocks 528 in training and 444 in its updates, and 300 GB/s a GPU"),
        (given, "at 100 TFLOP/s and 300 GB/s a GPU"),
    ):
        console = Console(file=io.StringIO(), width=300)
        show(each, console, whole=False)
        assert words in console.file.getvalue()  # type: ignore[attr-defined]
