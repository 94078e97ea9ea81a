"""Images of a group are scored together, however they lie in the table."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunk_grpo.artifacts import write_rows
from chunk_grpo.artifacts.kept import Kept
from chunk_grpo.image_files import encode_png
from chunk_grpo.library.scoring import GROUP, ImageTables, score_rows, too_many_refused, whole_groups
from chunk_grpo.parallel import Workers
from chunk_grpo.scorers.base import ScoreBatch, Scores
from tests.shapes_scorers import shapes_scorer

PICTURE = {"bytes": encode_png(np.zeros((2, 2, 3), np.uint8)), "path": "a.png"}


def records(groups: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
    """Rows of images/1, numbered by their sample."""
    more = {"policy": "base", "seed": 0, "image": PICTURE}
    named = (dict(zip(GROUP, group, strict=True)) for group in groups)
    return [{**names, "sample": number, **more} for number, names in enumerate(named)]


A, B, C = ("tuned", 0, "eval-0"), ("hybrid", 0, "eval-0"), ("tuned", 0, "eval-1")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 64])
def test_no_batch_holds_a_part_of_a_group(size: int) -> None:
    """Images in generation's order: tuned ones that end within a group, then hybrid ones, then the rest."""
    groups = [A, A, C, B, B, A, C, C, B]
    assert list(whole_groups([], Counter(), size)) == []
    batches = [
        [(tuple(r[n] for n in GROUP), r["sample"]) for r in part]
        for part in whole_groups(records(groups), Counter(groups), size)
    ]
    seen = [row for part in batches for row in part]
    assert sorted(number for _, number in seen) == list(range(9))
    for group in (A, B, C):
        holding = [part for part in batches if any(g == group for g, _ in part)]
        assert len(holding) == 1
        numbers = [number for g, number in holding[0] if g == group]
        assert numbers == sorted(numbers)
        assert len(numbers) == 3
    assert all(len(part) < size + 3 for part in batches)
    assert all(len(part) >= size for part in batches[:-1])


@pytest.mark.parametrize(
    ("groupwise", "batch_size", "handed"),
    [(False, 8, [8, 8, 8, 6]), (False, 100, [30]), (True, 8, [30]), (True, 100, [30])],
)
def test_a_scorer_gets_as_many_images_as_it_takes_at_once(
    groupwise: bool, batch_size: int, handed: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its scores are kept together; groups are handed over whole, many at a time."""
    scorer, sizes = shapes_scorer("shapes-vivid"), []
    scorer.settings = scorer.settings.model_copy(update={"batch_size": batch_size})
    monkeypatch.setattr(type(scorer), "groupwise", groupwise)

    def score(batch: ScoreBatch) -> Scores:
        sizes.append(len(batch))
        return Scores(np.zeros(len(batch)))

    monkeypatch.setattr(scorer, "score", score)
    groups = [("tuned", 0, f"eval-{number}") for number in range(30)]
    path = tmp_path / "images.parquet"
    write_rows(records([*groups, ("tuned", 0, "wise-0")]), path, "images", row_group_bytes=1000)
    images = ImageTables([str(path)], [name for _, _, name in groups])
    assert (len(images), images.groups) == (30, Counter(groups))
    prompts = {name: {"prompt": "a circle", "metadata": "{}"} for _, _, name in groups}
    kept = Kept(tmp_path / "kept", {})
    assert len(list(score_rows("vivid", scorer, images, prompts, kept, Workers()))) == 30
    assert sizes == handed
    assert len(list(score_rows("vivid", scorer, images, prompts, kept, Workers()))) == 30
    assert sizes == handed  # the second time they were there


@pytest.mark.parametrize(("refused", "rest"), [(50, ""), (51, "\n  and 1 more")])
def test_fifty_refused_images_are_listed(refused: int, rest: str) -> None:
    rows = [{"mode": "tuned", "train_seed": 0, "prompt_id": "p", "sample": n, "refusal": "no"} for n in range(refused)]
    said = str(too_many_refused("judge", rows, 100, 0.1, {"p": {"prompt": "a cat"}}))
    assert said.endswith(f"'a cat'), sample 49: no{rest}")
