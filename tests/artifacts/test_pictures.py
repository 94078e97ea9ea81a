"""The folder of pictures that prompts edit."""

from pathlib import Path

import numpy as np
import pytest
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from chunk_grpo.artifacts.embeddings import distinct_prompts
from chunk_grpo.artifacts.pictures import INDEX, open_pictures, write_pictures
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import fitted, read_picture

BLACK, WHITE = np.zeros((4, 6, 3), dtype=np.uint8), np.full((4, 6, 3), 255, dtype=np.uint8)


def test_equal_pictures_share_a_file(tmp_path: Path) -> None:
    read = {"x": BLACK, "y": WHITE, "z": BLACK.copy()}
    asked: list[str] = []
    paths = {"a": "x", "b": "y", "c": "z", "e": "x"}
    write_pictures(paths, lambda path: (asked.append(path), read[path])[1], tmp_path / "pictures")
    assert asked == ["x", "y", "z"]
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 2
    with open_pictures(tmp_path / "pictures") as found:
        assert found["a"] == found["c"] == found["e"] != found["b"]
        assert np.array_equal(read_picture(found["b"]), WHITE)
        prompts = [("a", "make it red"), ("b", "make it red"), ("c", "make it red"), ("d", "make it red")]
        assert distinct_prompts(prompts, found) == [prompts[0], prompts[1], prompts[3]]


def test_prompts_that_edit_nothing_have_an_empty_table(tmp_path: Path) -> None:
    write_pictures({}, lambda path: BLACK, tmp_path / "pictures")
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == [INDEX]
    with open_pictures(tmp_path / "pictures") as found:
        assert not found


def test_a_folder_without_its_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    with pytest.raises(DataError, match=INDEX), open_pictures(tmp_path / "pictures"):
        pass


def test_a_picture_is_resized_as_by_diffusers() -> None:
    """By the class that FLUX.1 Kontext's pipeline resizes with, down and up."""
    picture = np.random.default_rng(0).integers(0, 256, (48, 72, 3), dtype=np.uint8)
    for height, width in ((32, 48), (64, 96)):
        theirs = VaeImageProcessor().resize(Image.fromarray(picture), height, width)
        assert np.array_equal(fitted(picture, height, width), np.asarray(theirs))


def test_a_picture_is_cut_at_both_ends_of_its_longer_side() -> None:
    """8 x 4 to 2 x 2: the middle 4 x 4, whose halves are 0 and 200; no resizing moves them but for its edge."""
    wide = np.zeros((4, 8, 3), dtype=np.uint8)
    wide[:, :2], wide[:, 4:6], wide[:, 6:] = 99, 200, 50
    assert np.array_equal(fitted(wide, 4, 4), wide[:, 2:6])
    assert np.array_equal(fitted(wide.transpose(1, 0, 2), 4, 4), wide[:, 2:6].transpose(1, 0, 2))
    assert fitted(wide, 2, 2).shape == (2, 2, 3)
