"""What is left of an edited picture: SSIM against scikit-image's, boxes by hand, bad boxes."""

import re
from typing import Any

import numpy as np
import pytest

from chunk_grpo.config.scorers import PreservedScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.preserved import Preserved, structural_similarity
from chunk_grpo.scorers.running.registry import make_scorer


def scorer(**changes: Any) -> Preserved:
    settings = {"kind": "preserved", "measure": "pixels", "splits": ("eval",), "batch_size": 4, **changes}
    made = make_scorer("left", PreservedScorer(**settings))
    assert isinstance(made, Preserved)
    return made


def batch(image: Any, source: Any, **metadata: object) -> ScoreBatch:
    return ScoreBatch(image[None], ["make it red"], [metadata], [0], source[None])


def test_structural_similarity_is_that_of_scikit_image() -> None:
    """Values of scikit-image 0.26.0: structural_similarity(x, y, channel_axis=-1, gaussian_weights=True, sigma=1.5,
    use_sample_covariance=False, data_range=255, full=True)[1], its mean and three pixels."""
    random = np.random.default_rng(7)
    x = random.integers(0, 256, (24, 40, 3), dtype=np.uint8)
    y = np.clip(x.astype(int) + random.integers(-60, 61, x.shape), 0, 255).astype(np.uint8)
    y[4:14, 10:30] = 200
    found = structural_similarity(x, y)
    theirs = [0.7313319065447366, 0.9029259504444286, 0.014435208295791304, 0.8182426835891389]
    assert [found.mean(), found[0, 0], found[8, 20], found[23, 39]] == pytest.approx(theirs, abs=1e-12)
    assert scorer(measure="structure").score(batch(x, y)).values == pytest.approx([theirs[0]])


@pytest.mark.parametrize("box", [[0.5, 0.0, 1.0, 0.5], "[0.5, 0.0, 1.0, 0.5]"], ids=["list", "text of a CSV"])
def test_pixels_in_the_box_do_not_count(box: object) -> None:
    """A quarter is edited by 255, and of the others' 12 pixels one by 51."""
    source = np.zeros((4, 4, 3), dtype=np.uint8)
    image = source.copy()
    image[:2, 2:] = 255
    image[3, 0] = 51
    assert scorer().score(batch(image, source)).values == pytest.approx([1 - 4 / 16 - 0.2 / 16])
    within = scorer(box_field="box").score(batch(image, source, box=box))
    assert within.values == pytest.approx([1 - 0.2 / 12])
    structure = scorer(measure="structure", box_field="box").score(batch(source, source, box=box))
    assert structure.values == pytest.approx([1.0])


@pytest.mark.parametrize(
    "box", [[0, 0, 1, 1], [0.5, 0, 0.5, 1], [0, 0.6, 1, 0.5], [0, 0, 2, 1], [0, 0, 1], "0 0 1 1", 7, None]
)
def test_a_bad_box_is_named(box: object) -> None:
    made = scorer(box_field="box")
    with pytest.raises(ValueError, match=r"'box' must be \[left, .*got " + re.escape(repr(box))):
        made.settings.check_data("make it red", {"box": box})
    with pytest.raises(ValueError, match="needs the field 'box'"):
        made.settings.check_data("make it red", {})


def test_prompts_must_have_pictures() -> None:
    picture = np.zeros((4, 4, 3), dtype=np.uint8)
    with pytest.raises(DataError, match=r"scorers\.left: judges the pictures of which images are edits"):
        scorer().score(ScoreBatch(picture[None], ["a cat"], [{}], [0]))
