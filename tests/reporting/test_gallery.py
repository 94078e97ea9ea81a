import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.artifacts.pictures import write_pictures
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import encode_png
from chunk_grpo.reporting.evidence import Drawn, ScoreBook, ScoredPrompts, Source
from chunk_grpo.reporting.gallery import (
    GAP,
    TILE,
    GridRow,
    PictureScore,
    choose_prompts,
    grid_of,
    grid_png,
    grid_rows,
    short_labels,
)
from tests.reporting.conftest import image_row, score_book

PROMPTS = ScoredPrompts(tuple("abcdefgh"), ("x", "x", "x", "x", "x", "y", "y", "z"), tuple("ABCDEFGH"))
COLUMNS = (Drawn("base", "base"), Drawn("v", "tuned"))


def png(size: int) -> bytes:
    return encode_png(np.random.default_rng(0).integers(0, 255, (size, size, 3), dtype=np.uint8))


def images(policy: str, mode: str, data: bytes, seed: int = 7) -> Source:
    rows = [
        image_row(policy, mode, train_seed, "a", data, seed + sample, sample)
        for train_seed in (2, 1)
        for sample in (1, 0)
    ]
    return Source(f"images/{policy}/images.parquet", table_from_rows(rows, "images"))


VALUES = {(seed, "a", sample): seed + 0.1 * sample for seed in (1, 2) for sample in (0, 1)}
BOOK = score_book(VALUES, scorer="s-x", v=VALUES)


def shown(tuned: Source, base: bytes | None = None, book: ScoreBook = BOOK) -> GridRow:
    """The row of prompt a, with this image of the base."""
    images_of = {"base": images("base", "base", base or png(8)), "v": tuned}
    (row,) = grid_rows(["a"], COLUMNS, images_of, {"a": "a prompt"}, book, ["s-x"], None)
    return row


def test_the_edited_picture_stands_before_the_images(tmp_path: Path) -> None:
    """It has no score, and is no image that could change."""
    write_pictures({"a": "a.png"}, lambda path: np.zeros((8, 8, 3), dtype=np.uint8), tmp_path)
    images_of = {"base": images("base", "base", png(8)), "v": images("v", "tuned", png(8))}
    (row,) = grid_rows(["a"], COLUMNS, images_of, {"a": "make it red"}, BOOK, ["s-x"], str(tmp_path))
    assert row.source is not None
    assert (row.source.alt, row.source.scores) == ("make it red: source", ())
    assert row.shown == (row.source, *row.pictures)
    assert row.change == 0
    assert grid_of("grid", ["v"], COLUMNS, [row]).edits
    plain = replace(row, source=None)
    assert not grid_of("grid", ["v"], COLUMNS, [plain]).edits
    with (
        Image.open(io.BytesIO(grid_png([row], COLUMNS))) as wide,
        Image.open(io.BytesIO(grid_png([plain], COLUMNS))) as narrow,
    ):
        assert wide.width - narrow.width == 2 * (TILE + GAP)


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
    picture = shown(images("v", "tuned", png(8))).pictures[1]
    assert picture.alt == "a prompt: v, tuned"
    assert picture.scores == (PictureScore("x", "1.00"),)


@pytest.mark.parametrize(("size", "kind", "pixelated"), [(8, "png", True), (400, "jpeg", False)])
def test_tiny_images_have_sharp_pixels_and_large_ones_are_thumbnails(size: int, kind: str, pixelated: bool) -> None:
    for picture in shown(images("v", "tuned", png(size)), png(size)).pictures:
        assert picture.uri.startswith(f"data:image/{kind};")
        assert picture.pixelated == pixelated


def plain(level: int) -> bytes:
    return encode_png(np.full((8, 8, 3), level, np.uint8))


def test_the_most_changed_prompts_come_first_and_unchanged_ones_apart() -> None:
    rows = [shown(images("v", "tuned", plain(level)), plain(100)) for level in (102, 110, 100, 50)]
    assert [row.change for row in rows] == pytest.approx([2 / 255, 10 / 255, 0, 50 / 255])
    found = grid_of("grid", ["v"], COLUMNS, rows)
    assert found.changed == (rows[3], rows[1])
    assert found.unchanged == (rows[0], rows[2])  # 2 of 255 is less than 1 %


@pytest.mark.parametrize(
    ("tuned", "message"),
    [
        (images("v", "tuned", png(8), seed=8), "prompt_id=a sample=0 has seed 8.*base has 7"),
        (images("v", "hybrid", png(8)), "no image with policy=v mode=tuned prompt_id=a"),
        (images("v", "tuned", b"no image"), "'a prompt: v, tuned': must be a PNG"),
    ],
    ids=["another seed", "missing", "broken"],
)
def test_what_cannot_be_shown_is_named(tuned: Source, message: str) -> None:
    with pytest.raises(DataError, match=rf"images/v/images\.parquet[:,] {message}"):
        shown(tuned)


def test_short_labels() -> None:
    assert short_labels(["shapes-exact", "shapes-vivid"]) == ("exact", "vivid")
    assert short_labels(["shapes-exact", "hpsv3"]) == ("shapes-exact", "hpsv3")


def test_an_image_without_a_score_says_so() -> None:
    book = score_book(dict.fromkeys(VALUES, None), scorer="s-x", v=VALUES)
    row = shown(images("v", "tuned", png(8)), book=book)
    assert [picture.scores[0].text for picture in row.pictures] == ["refused", "1.00"]


@pytest.mark.parametrize(("tuned", "verdict"), [(2.0, "above"), (0.5, "below"), (1.004, "")])
def test_score_is_marked_relative_to_base(tuned: float, verdict: str) -> None:
    book = score_book(VALUES, scorer="s-x", v=dict.fromkeys(VALUES, tuned))
    row = shown(images("v", "tuned", png(8)), book=book)
    assert [picture.scores[0].verdict for picture in row.pictures] == ["", verdict]
