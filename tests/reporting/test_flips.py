"""Images that became right or wrong: what is counted, and which are shown."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from chunk_grpo.artifacts import table_from_rows, write_table
from chunk_grpo.reporting import flips
from chunk_grpo.reporting.evidence import ScoredPrompts
from chunk_grpo.reporting.flips import Flips, flips_of
from tests.reporting.conftest import Values, image_row, score_book
from tests.reporting.test_gallery import png

IDS = tuple("abcdef")
CAPTIONS = ("A", "B", "C", "D", "A", "F")
PROMPTS = ScoredPrompts(IDS, ("x",) * 6, CAPTIONS)
BASE_SCORES = dict(zip(IDS, (0, 0, 1, 1, 0, 1), strict=True))
TUNED_SCORES = dict(zip(IDS, (1, 0, 0, 1, 1, 1), strict=True))


def scores(of: Mapping[int, Mapping[str, float | None]]) -> Values:
    """Scores of two samples by training seed. Sample 1 has the opposite score of sample 0."""
    return {
        (seed, name, sample): value if value is None or sample == 0 else 1 - value
        for seed, values in of.items()
        for name, value in values.items()
        for sample in (0, 1)
    }


def images(folder: Path, policy: str, mode: str, seeds: tuple[int, ...], side: int = 8) -> str:
    rows = [image_row(policy, mode, seed, name, png(side), 5) for seed in seeds for name in IDS]
    path = folder / f"{policy}.parquet"
    write_table(table_from_rows(rows, "images"), path, "images")
    return str(path)


def found(
    folder: Path, tuned: Mapping[str, float | None] = TUNED_SCORES, seed: int = 0, kind: str = "http"
) -> Flips | None:
    """Flips of two training seeds, of which the second one would count otherwise."""
    other = dict.fromkeys(IDS, 0.0)
    book = score_book(scores({-1: BASE_SCORES}), scorer="s", v=scores({1: tuned, 2: other}))
    edits = kind == "shapes-edit"
    side = 32 if edits else 8
    paths = {"base": images(folder, "base", "base", (-1,), side), "v": images(folder, "v", "tuned", (2, 1), side)}
    settings: Any = SimpleNamespace(
        variants=("u", "v"), scorers=("s",), seed=seed, measured=(SimpleNamespace(name="s", kind=kind),)
    )
    demands = json.dumps({"tag": "single_object", "include": [{"class": "cross", "count": 1}]})
    thing = {"shape": "cross", "colour": "red", "x": 9.0, "y": 9.0, "radius": 5.0}
    edit = {"tag": "recolour", "to": "blue", "source": {"background": "white", "things": [thing]}}
    demands = json.dumps(edit) if edits else demands
    table = pa.table({"prompt_id": IDS, "metadata": [demands] * len(IDS)})
    evidence: Any = SimpleNamespace(images=paths, pictures=None, prompts=SimpleNamespace(table=table))
    return flips_of(evidence, settings, PROMPTS, book, dict(zip(IDS, CAPTIONS, strict=True)))


def test_counts_are_of_the_first_images_and_the_lowest_seed(tmp_path: Path) -> None:
    flips = found(tmp_path)
    assert flips is not None
    assert (flips.scorer, flips.variant, flips.total, flips.won, flips.lost) == ("s", "v", 6, 2, 1)
    # Prompts a and e became right; they have one caption, which is shown once.
    assert [flip.row.prompt for flip in flips.won_rows] == ["A"]
    assert [flip.row.prompt for flip in flips.lost_rows] == ["C"]
    (flip,) = flips.lost_rows
    assert [picture.scores[0].text for picture in flip.row.pictures] == ["1.00", "0.00"]
    assert flip.reason == "s 1.00 → 0.00"


def test_the_toy_scorer_names_the_rule_that_the_wrong_image_breaks(tmp_path: Path) -> None:
    """All images are one field of colour, and the prompts want a cross."""
    flips = found(tmp_path, kind="shapes-exact")
    assert flips is not None
    reasons = {flip.reason for flip in (*flips.won_rows, *flips.lost_rows)}
    assert {reason.partition(":")[0] for reason in reasons} == {"no cross"}


def test_the_scorer_of_toy_edits_names_its_rule_too(tmp_path: Path) -> None:
    flips = found(tmp_path, kind="shapes-edit")
    assert flips is not None and flips.has_rules
    assert {flip.reason for flip in (*flips.won_rows, *flips.lost_rows)} == {"no blue cross"}


def test_edited_pictures_are_named_where_they_are_shown(tmp_path: Path) -> None:
    flips = found(tmp_path)
    assert flips is not None and not flips.edits
    (flip,) = flips.lost_rows
    row = replace(flip.row, source=flip.row.pictures[0])
    assert replace(flips, lost_rows=(replace(flip, row=row),)).edits


def test_shown_prompts_depend_on_the_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flips, "SHOWN", 1)
    tuned = {**TUNED_SCORES, "b": 1}
    shown = set()
    for seed in range(8):
        one, again = found(tmp_path, tuned, seed), found(tmp_path, tuned, seed)
        assert one is not None and again is not None
        assert [flip.row.prompt for flip in one.won_rows] == [flip.row.prompt for flip in again.won_rows]
        shown |= {flip.row.prompt for flip in one.won_rows}
    assert shown == {"A", "B"}


def test_a_refused_image_is_not_counted(tmp_path: Path) -> None:
    flips = found(tmp_path, {**TUNED_SCORES, "c": None})
    assert flips is not None
    assert (flips.total, flips.won, flips.lost) == (5, 2, 0)
    assert flips.lost_rows == ()


def test_scores_between_0_and_1_have_no_flips(tmp_path: Path) -> None:
    assert found(tmp_path, {**TUNED_SCORES, "c": 0.5}) is None
