import math
from dataclasses import replace
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.errors import DataError
from chunk_grpo.reporting.comparisons import (
    NO_BREAK,
    SEEN,
    Comparison,
    Comparisons,
    PairComparison,
    interval_text,
    number,
    signed,
)
from chunk_grpo.reporting.evidence import REWARD, LeftOut, ScoreBook, ScoredPrompts, Source
from chunk_grpo.reporting.sentences import effects_text, order_sentences
from chunk_grpo.reporting.statistics import Interval, crossed_interval, holm
from chunk_grpo.reporting.tables import pairs_table
from tests.reporting.conftest import Values, score_book, scores

PROMPTS = ScoredPrompts(("p", "q"), ("shape", "shape"), ("a circle", "a square"))
ZEROS = {(-1, "p", 0): 0.0, (-1, "q", 0): 0.0}
FULL = {(s, p, k): 10.0 * s + {"p": 1, "q": 2}[p] + k for s in (0, 1) for p in ("p", "q") for k in (0, 1)}


def book(tuned: Values) -> ScoreBook:
    base = {(-1, "p", 0): 1.0, (-1, "p", 1): 2.0, (-1, "q", 0): 3.0, (-1, "q", 1): 5.0}
    return score_book(base, weight=0.5, v=tuned)


def pairs_of(scores: ScoreBook, *names: str) -> list[PairComparison]:
    settings: Any = SimpleNamespace(compared=names)
    return Comparisons(scores, PROMPTS, settings).between_policies("x")


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 0.1, 9.0, 3, 48, 40)


def comparison(variant: str, low: float, high: float, spread: float = 0.5) -> Comparison:
    return Comparison(variant, "tuned", REWARD, 1.0, interval(low, high), (0.1, 0.2, 0.3), spread)


def test_means_over_samples_by_seed_and_prompt() -> None:
    found = book(FULL)
    assert found.values("base", "base", "x", ["p", "q"]).tolist() == [[1.5, 4.0]]
    assert found.values("v", "tuned", "x", ["q", "p"]).tolist() == [[2.5, 1.5], [12.5, 11.5]]
    assert found.values("v", "tuned", REWARD, ["p"]).tolist() == [[0.75], [5.75]]


@pytest.mark.parametrize(
    ("mode", "scorer", "message"),
    [
        ("tuned", "x", r"scores/v/x\.parquet: .*policy=v mode=tuned train_seed=1 prompt_id=q sample=1"),
        ("hybrid", "x", r"scores/v/x\.parquet: .*policy=v mode=hybrid"),
        ("tuned", "y", r"policy 'v' by scorer 'y'.*`scorers`"),
    ],
)
def test_missing_scores_are_named(mode: str, scorer: str, message: str) -> None:
    tuned = {key: value for key, value in FULL.items() if key != (1, "q", 1)}
    with pytest.raises(DataError, match=message):
        book(tuned).values("v", mode, scorer, ["p", "q"])


def test_a_prompt_of_a_split_that_the_base_lacks_is_named() -> None:
    rows = [
        {"prompt_id": name, "split": split, "prompt": name, "category": "shape", "metadata": "{}"}
        for name, split in (("p", "eval"), ("q", "eval"), ("r", "eval"), ("s", "wise"))
    ]
    prompts = Source("prompts.parquet", table_from_rows(rows, "prompts"))
    with pytest.raises(DataError, match=r"scores/base/x\.parquet: .* prompt_id=r \(split eval\)"):
        book(FULL).prompt_set(prompts, "eval", "x")
    assert book(FULL).prompt_set(prompts, "wise", "x") is None


def test_the_size_of_a_difference_is_in_spreads_of_the_base() -> None:
    """The base has 1, 2, 3 and 5: mean 2.75, squared distances 3.0625 + 0.5625 + 0.0625 + 5.0625 = 8.75, over 3."""
    found = Comparisons(book(FULL), PROMPTS, SimpleNamespace()).against_base("v", "tuned", "x")  # type: ignore[arg-type]
    spread = math.sqrt(8.75 / 3)
    assert found.spread == pytest.approx(spread)
    # Tuned: 1, 2, 2, 3 with seed 0 and 10 more with seed 1, so 7 on average, 4.25 above the base.
    assert found.size == pytest.approx(4.25 / spread)
    assert replace(found, spread=0.0).size == math.inf
    lower = replace(found, difference=interval(-0.2, -0.1))
    assert replace(lower, spread=0.0).size == -math.inf
    assert replace(lower, spread=0.15).size == pytest.approx(-1)
    assert (replace(lower, spread=1.6).verdict, replace(lower, spread=1.4).verdict) == ("unseen", "below")


def test_a_difference_at_the_limit_wins_53_of_100_pairs() -> None:
    assert NormalDist().cdf(SEEN / math.sqrt(2)) == pytest.approx(0.528, abs=5e-4)


def test_a_balanced_overall_is_the_mean_over_prompts_with_its_interval() -> None:
    """One number has one interval; with categories of different sizes it is another number."""
    values = np.random.default_rng(3).normal(size=(2, 6))
    ids = tuple("abcdef")
    keys = [(seed, name, 0) for seed in (0, 1) for name in ids]
    tuned = dict(zip(keys, values.ravel().tolist(), strict=True))
    scores = score_book({(-1, name, 0): 0.0 for name in ids}, v=tuned)

    def overall(categories: str) -> tuple[Interval, Interval]:
        prompts = ScoredPrompts(ids, tuple(categories), ids)
        found = Comparisons(scores, prompts, SimpleNamespace())  # type: ignore[arg-type]
        return found.overall_against_base("v", "tuned", "x"), found.against_base("v", "tuned", "x").difference

    one, other = overall("kkkmmm")
    assert one == other
    one, other = overall("kkmmmm")
    assert one.mean == pytest.approx((values[:, :2].mean() + values[:, 2:].mean()) / 2)
    assert one == crossed_interval(values, list("kkmmmm"), ids) != other


def test_variants_are_ordered_only_if_intervals_differ() -> None:
    unclear = PairComparison("chunk", "dance", REWARD, interval(-0.1, 0.2), 0.4)
    (nothing,) = order_sentences({REWARD: [unclear], "x": [unclear]})
    assert "no difference" in nothing and "x" in nothing
    lower = PairComparison("ws", "dance", REWARD, interval(-0.3, -0.1), 0.03)
    first, second = order_sentences({REWARD: [unclear, lower], "x": [unclear, replace(lower, p_value=0.06)]})
    assert "dance above ws" in first and "chunk" not in first
    assert "no difference" in second
    assert order_sentences({REWARD: []}) == []


def scores_of(seeds: int, *names: str) -> ScoreBook:
    """Two prompts; every policy far above the one before it, and nearly alike in all seeds."""
    draws = np.random.default_rng(0)
    keys = [(seed, prompt_id, 0) for seed in range(seeds) for prompt_id in ("p", "q")]
    tuned = {name: {key: 10.0 * n + draws.normal(scale=1e-3) for key in keys} for n, name in enumerate(names)}
    return score_book(ZEROS, **tuned)


@pytest.mark.parametrize(("seeds", "claimed"), [(2, False), (3, False), (5, False), (6, True), (8, True)])
@pytest.mark.parametrize("names", [("a", "b"), tuple("abcdefgh")], ids=["few", "many"])
def test_below_six_training_seeds_no_pair_is_claimed(seeds: int, claimed: bool, names: tuple[str, ...]) -> None:
    pairs = pairs_of(scores_of(seeds, *names), *names)
    (sentence,) = order_sentences({"x": pairs, "y": pairs} if claimed is False else {"x": pairs})
    assert [p.is_shown for p in pairs] == [claimed] * len(pairs)
    assert (f"they have {seeds} training seeds" in sentence) is not claimed
    assert ("above a" in sentence or f"{len(pairs)} differ" in sentence) is claimed
    cells = [cell for row in pairs_table({"x": pairs}).rows for cell in row.cells]
    assert {cell.verdict for cell in cells} == {"above" if claimed else "none"}
    assert all(p.difference.low < 10 < p.difference.high or p.difference.mean > 15 for p in pairs)
    assert all(" to " in cell.note.replace(NO_BREAK, " ") for cell in cells)


def test_policies_that_were_not_trained_here_are_tested_without_seeds() -> None:
    """They are two models, not draws of a training; only their pairs with a variant lack seeds."""
    values = {(-1, prompt_id, 0): float(prompt_id == "q") for prompt_id in ("p", "q")}
    more = {key: value + 5 + 1e-3 * value for key, value in values.items()}
    trained = {(seed, *key[1:]): value + seed for key, value in values.items() for seed in (0, 1, 2)}
    pairs = pairs_of(score_book(values, a=trained, one=values, two=more), "a", "one", "two")
    assert [p.is_shown for p in pairs] == [False, False, True]
    assert "they have 3 training seeds" in order_sentences({"x": pairs})[0]
    assert order_sentences({"x": pairs})[1].startswith("Tuned, x: two above one")


def test_pairs_are_corrected_for_each_other() -> None:
    draws, names = np.random.default_rng(0), ("a", "b", "c")
    keys = [(seed, prompt_id, 0) for seed in range(6) for prompt_id in ("p", "q")]
    tuned = {name: dict(zip(keys, draws.normal(size=12), strict=True)) for name in names}
    scores = score_book(ZEROS, **tuned)
    pairs = pairs_of(scores, *names)
    assert [(p.first, p.second) for p in pairs] == [("b", "a"), ("c", "a"), ("c", "b")]
    assert [p.p_value for p in pairs] == holm([p.difference.p_value for p in pairs])
    values = {name: scores.values(name, "tuned", "x", ["p", "q"]) for name in names}
    assert pairs[1].difference.mean == pytest.approx((values["c"] - values["a"]).mean())


def test_numbers_have_a_minus_sign_and_no_negative_zero() -> None:
    assert number(-0.0001) == "0.000"
    assert number(-1.5, 1) == "−1.5"
    assert signed(0.25, 2) == "+0.25"
    assert signed(-0.0001) == "0.000"
    assert "undecided" in effects_text([comparison("a", math.nan, math.nan)])


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.1, 0.2, "+0.100 to +0.200"),
        (0.0003, 0.036, "+0.0003 to +0.0360"),
        (-0.2, -0.00004, "−0.20000 to −0.00004"),
        (0.0008, 0.0011, "+0.0008 to +0.0011"),
        (0.1234, 0.1236, "+0.123 to +0.124"),
        (0.1232, 0.1234, "+0.1232 to +0.1234"),
        (-1e-9, 0.5, "0.000 to +0.500"),
        (0.0, 0.5, "0.000 to +0.500"),
        (0.25, 0.25, "the same on every prompt"),
        (math.nan, math.nan, "no interval: too few prompts"),
    ],
)
def test_the_ends_of_an_interval_differ_and_show_their_side_of_zero(low: float, high: float, text: str) -> None:
    assert interval_text(interval(low, high)).replace("\xa0", " ") == text


def with_refused(*keys: tuple[int, str, int]) -> ScoreBook:
    """The book above, where the scorer refused these images of the tuned policy."""
    return book({key: None if key in keys else value for key, value in FULL.items()})


def test_a_refused_image_leaves_out_the_same_prompt_and_sample_on_every_side() -> None:
    """Seed 1 has no score of q's second image: q is then 3 for the base, 2 and 12 for the seeds of v."""
    found = with_refused((1, "q", 1))
    assert found.values("base", "base", "x", ["p", "q"]).tolist() == [[1.5, 3.0]]
    assert found.values("v", "tuned", "x", ["p", "q"]).tolist() == [[1.5, 2.0], [11.5, 12.0]]
    assert found.values("v", "tuned", REWARD, ["q"]).tolist() == [[1.0], [6.0]]
    assert found.left_out("x", ["p", "q"]) == LeftOut(refused=1, samples=1)
    assert found.left_out("x", ["p"]) == LeftOut(refused=0, samples=0)
    assert found.answered("x", PROMPTS) == PROMPTS


def test_a_prompt_without_an_image_on_every_side_is_left_out() -> None:
    found = with_refused((0, "q", 0), (1, "q", 0), (1, "q", 1))
    assert found.answered("x", PROMPTS) == ScoredPrompts(("p",), ("shape",), ("a circle",))
    assert found.left_out("x", PROMPTS.ids) == LeftOut(refused=3, samples=2)


def test_an_image_of_the_base_that_was_refused_is_left_out_as_well() -> None:
    refused = {(-1, "p", 0): None, (-1, "p", 1): 2.0}
    found = score_book(refused, v={(0, "p", 0): 5.0, (0, "p", 1): 7.0})
    assert found.values("v", "tuned", "x", ["p"]).tolist() == [[7.0]]


def test_the_training_reward_leaves_out_what_one_of_its_scorers_refused() -> None:
    keys = [(0, "p", 0), (0, "p", 1)]
    base = dict.fromkeys([(-1, "p", 0), (-1, "p", 1)], 1.0)
    values = {"x": (2.0, 4.0), "y": (8.0, None)}
    sources = {("base", name): scores("base", "base", base, name) for name in values}
    for name, given in values.items():
        sources["v", name] = scores("v", "tuned", dict(zip(keys, given, strict=True)), name)
    found = ScoreBook(sources, {"x": 1.0, "y": 0.5})
    assert found.values("v", "tuned", REWARD, ["p"]).tolist() == [[2.0 + 0.5 * 8.0]]
    assert found.values("v", "tuned", "x", ["p"]).tolist() == [[3.0]]


def test_nothing_left_is_an_error() -> None:
    found = with_refused(*((0, name, sample) for name in ("p", "q") for sample in (0, 1)))
    with pytest.raises(DataError, match=r"^x: every prompt has an image that its scorer refused"):
        found.answered("x", PROMPTS)


def test_a_policy_from_elsewhere_is_compared_with_every_seed() -> None:
    """Variants are paired by seed with each other, a policy without seeds with each of theirs."""
    of_a = {(0, "p", 0): 1.0, (1, "p", 0): 3.0, (0, "q", 0): 2.0, (1, "q", 0): 6.0}
    of_other = {(-1, "p", 0): 0.5, (-1, "q", 0): 1.0}
    (pair,) = pairs_of(score_book(ZEROS, a=of_a, other=of_other), "a", "other")
    assert (pair.first, pair.second, pair.difference.num_seeds) == ("other", "a", 2)
    assert pair.difference.mean == pytest.approx(0.75 - 3.0)
