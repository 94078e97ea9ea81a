import io

import numpy as np
import pytest
from PIL import Image

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.errors import DataError
from chunk_grpo.reporting.evidence import ScoreBook, ScoredPrompts, Source
from chunk_grpo.reporting.gallery import Column, PictureScore, choose_prompts, grid_rows, short_labels

PROMPTS = ScoredPrompts(tuple("abcdefgh"), ("x", "x", "x", "x", "x", "y", "y", "z"), tuple("ABCDEFGH"))
COLUMNS = (Column("base", "base"), Column("v", "tuned"))


def png(size: int) -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (size, size, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "PNG")
    return out.getvalue()


def images(policy: str, mode: str, data: bytes, seed: int = 7) -> Source:
    rows = [
        {
            "policy": policy, "mode": mode, "train_seed": train_seed, "prompt_id": "a", "sample": sample,
            "seed": seed + sample, "image": {"bytes": data, "path": "a.png"},
        }
        for train_seed in (2, 1)
        for sample in (1, 0)
    ]  # fmt: skip
    return Source(f"images/{policy}/images.parquet", table_from_rows(rows, "images"))


def scores(policy: str, mode: str) -> Source:
    rows = [
        {
            "policy": policy, "mode": mode, "train_seed": train_seed, "prompt_id": "a", "sample": sample,
            "scorer": "s-x", "metric": "score", "value": train_seed + 0.1 * sample,
        }
        for train_seed in (1, 2)
        for sample in (0, 1)
    ]  # fmt: skip
    return Source("scores.parquet", table_from_rows(rows, "scores"))


BOOK = ScoreBook({("base", "s-x"): scores("base", "base"), ("v", "s-x"): scores("v", "tuned")}, {"s-x": 1.0})


def rows_of(tuned: Source, size: int = 8) -> list[tuple[str, ...]]:
    found = grid_rows(
        ["a"],
        COLUMNS,
        {"base": images("base", "base", png(size)), "v": tuned},
        {"a": "a prompt"},
        BOOK,
        ["s-x"],
    )
    return [
        (p.uri[:15], str(p.pixelated), p.alt, str([(s.label, s.text) for s in p.scores]))
        for row in found
        for p in row.pictures
    ]


def test_categories_take_turns() -> None:
    category = dict(zip(PROMPTS.ids, PROMPTS.categories, strict=True))
    chosen = choose_prompts(PROMPTS, 6, seed=0)
    assert [category[i] for i in chosen] == ["x", "y", "z", "x", "y", "x"]
    assert len(set(chosen)) == 6
    assert choose_prompts(PROMPTS, 6, seed=0) == chosen
    assert sorted(choose_prompts(PROMPTS, 99, seed=1)) == list(PROMPTS.ids)


def test_a_caption_is_shown_once() -> None:
    repeated = ScoredPrompts(tuple("abcdefgh"), tuple("xxxxyyyy"), tuple("AAABCCCC"))
    chosen = choose_prompts(repeated, 8, seed=0)
    assert sorted(repeated.captions[repeated.ids.index(i)] for i in chosen) == ["A", "B", "C"]


def test_lowest_seed_and_first_sample_with_their_score() -> None:
    found = rows_of(images("v", "tuned", png(8)))
    assert found[1] == ("data:image/png;", "True", "a prompt: v, tuned", "[('x', '1.00')]")


def test_large_images_become_jpeg_thumbnails() -> None:
    found = rows_of(images("v", "tuned", png(400)), size=400)
    assert {row[:2] for row in found} == {("data:image/jpeg", "False")}


def test_another_seed_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"images/v/images\.parquet: prompt_id=a sample=0 has seed 8.*base has 7"
    ):
        rows_of(images("v", "tuned", png(8), seed=8))


def test_missing_image_is_named() -> None:
    with pytest.raises(
        DataError, match=r"images/v/images\.parquet: no image with policy=v mode=tuned prompt_id=a"
    ):
        rows_of(images("v", "hybrid", png(8)))


def test_broken_image_is_named() -> None:
    with pytest.raises(DataError, match=r"images/v/images\.parquet: image bytes of 'a prompt: v, tuned'"):
        rows_of(images("v", "tuned", b"no image"))


def test_short_labels() -> None:
    assert short_labels(["shapes-exact", "shapes-vivid"]) == ("exact", "vivid")
    assert short_labels(["shapes-exact", "hpsv3"]) == ("shapes-exact", "hpsv3")


def test_an_image_without_a_score_says_so() -> None:
    rows = scores("base", "base").table.to_pylist()
    refused = [row | {"value": None, "refusal": "no answer"} for row in rows]
    book = ScoreBook(
        {
            ("base", "s-x"): Source("scores.parquet", table_from_rows(refused, "scores")),
            ("v", "s-x"): scores("v", "tuned"),
        },
        {"s-x": 1.0},
    )
    shown = {"base": images("base", "base", png(8)), "v": images("v", "tuned", png(8))}
    row = grid_rows(["a"], COLUMNS, shown, {"a": "a prompt"}, book, ["s-x"])[0]
    assert [picture.scores for picture in row.pictures] == [
        (PictureScore("x", "refused"),),
        (PictureScore("x", "1.00"),),
    ]


@pytest.mark.parametrize(("tuned", "verdict"), [(2.0, "above"), (0.5, "below"), (1.004, "")])
def test_a_score_is_marked_against_that_of_the_base(tuned: float, verdict: str) -> None:
    rows = [row | {"value": tuned} for row in scores("v", "tuned").table.to_pylist()]
    book = ScoreBook(
        {("base", "s-x"): scores("base", "base"), ("v", "s-x"): Source("s", table_from_rows(rows, "scores"))},
        {"s-x": 1.0},
    )
    shown = {"base": images("base", "base", png(8)), "v": images("v", "tuned", png(8))}
    (row,) = grid_rows(["a"], COLUMNS, shown, {"a": "a prompt"}, book, ["s-x"])
    assert [picture.scores[0].verdict for picture in row.pictures] == ["", verdict]
