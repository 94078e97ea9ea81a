"""The check that any scorer can be put to: it passes sound ones and names the rule that another one breaks."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.contract import check_contract
from chunk_grpo.scorers.running.external import External
from tests.scorers.odd_scorers import KEY, batch, settings


def check(source: str, pictures: ScoreBatch, **options: Any) -> None:
    check_contract(External(KEY, settings(source, **options)), pictures)


@pytest.mark.parametrize(("source", "count"), [("odd", 3), ("odd", 4), ("Compared", 6)])
def test_a_sound_scorer_passes(source: str, count: int) -> None:
    check(source, batch(count=count))


@pytest.mark.parametrize(
    ("source", "options", "do", "rule"),
    [
        ("odd", {}, "short", "scorer odd (tests.scorers.odd_scorers:odd): needs one value for each of 6 images"),
        ("odd", {}, "nan", "scorer odd (tests.scorers.odd_scorers:odd): image 1 of the batch"),
        ("odd", {}, "reversed", "independent of the order: scorer odd gave image"),
        ("odd", {}, "turned", "independent of the order: scorer odd gave image"),
        ("swayed", {}, "", "independent of the other images: scorer odd gave image 0"),
        ("Restless", {}, "", "same answer twice: scorer odd gave image 0"),
        ("Painter", {}, "", "leaves the images alone: scorer odd wrote"),
        ("Compared", {"blind": True}, "", "independent of other groups: scorer odd gave image"),
    ],
)
def test_contract_error_names_broken_rule(source: str, options: dict[str, Any], do: str, rule: str) -> None:
    with pytest.raises(DataError) as caught:
        check(source, batch(do, count=6), **options)
    assert str(caught.value).startswith(rule)
    assert "float64" not in str(caught.value)  # but plain numbers


def test_details_are_held_to_the_same_rules() -> None:
    class Details(External):
        def score(self, batch: ScoreBatch) -> Any:
            scores = super().score(batch)
            return dataclasses.replace(scores, details={"size": np.full(len(batch), float(len(batch)))})

    with pytest.raises(DataError, match="independent of the other images: scorer odd, detail size gave image 0"):
        check_contract(Details(KEY, settings()), batch())


def test_differences_of_rounding_pass() -> None:
    class Rounding(External):
        def score(self, batch: ScoreBatch) -> Any:
            scores = super().score(batch)
            return dataclasses.replace(scores, values=scores.values * (1 + 1e-6 * len(batch)))

    check_contract(Rounding(KEY, settings()), batch())
    with pytest.raises(DataError, match=r"^independent of"):
        check_contract(Rounding(KEY, settings()), batch(), tolerance=1e-7)


def test_contract_checks_empty_batch() -> None:
    class Full(External):
        def score(self, batch: ScoreBatch) -> Any:
            return super().score(batch) if batch.prompts[0] else None

    with pytest.raises(DataError, match=r"^a batch of any size: scorer odd fails without images \(IndexError: list"):
        check_contract(Full(KEY, settings()), batch())

    class Padded(External):
        def score(self, batch: ScoreBatch) -> Any:
            scores = super().score(batch)
            return scores if len(batch) else dataclasses.replace(scores, values=np.zeros(1))

    with pytest.raises(DataError, match=r"scorer odd: needs one value for each of 0 images, .* an array of \[1\]\."):
        check_contract(Padded(KEY, settings()), batch())


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_images_show_no_order(count: int) -> None:
    with pytest.raises(DataError, match=f"contract: needs at least 3 images, got {count}"):
        check("odd", batch(count=count))


def test_equal_scores_show_no_order() -> None:
    with pytest.raises(DataError, match="contract: scorer odd gives all 3 images"):
        check("odd", batch().rows([0, 0, 0]))


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("name", "", "has a name"),
        ("version", 0, "version is at least 1"),
        ("needs", frozenset({"sound"}), "needs are prompt and metadata"),
        ("spec_hash", lambda self: "", "one identity"),
    ],
)
def test_contract_checks_scorer_attributes(name: str, value: Any, rule: str) -> None:
    odd = type("Odd", (External,), {name: value})
    with pytest.raises(DataError, match=rf"^{rule}"):
        check_contract(odd(KEY, settings()), batch())


def test_the_contract_needs_images_that_are_judged() -> None:
    with pytest.raises(DataError, match=r"^contract: scorer odd refuses image 1 \(the reason"):
        check_contract(External(KEY, settings()), batch("refuse"))
