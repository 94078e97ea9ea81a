"""Statistics of images that can be worked by hand: plain colours, a checkerboard, two groups."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from chunk_grpo.training.image_statistics import (
    LUMA_WEIGHTS,
    colour_entropy,
    diversity,
    edge_density,
    image_statistics,
    saturation,
)

H, W = 4, 6
Image = NDArray[np.float64]


def plain(*colour: float) -> Image:
    return np.broadcast_to(np.float64(colour)[:, None, None], (3, H, W)).copy()


def halves(left: Image, right: Image) -> Image:
    """The left half of one image beside the right half of another."""
    return np.concatenate([left[..., : W // 2], right[..., W // 2 :]], axis=-1)


BLACK, WHITE, GREY, RED = plain(0, 0, 0), plain(1, 1, 1), plain(0.5, 0.5, 0.5), plain(1, 0, 0)
CHECKERBOARD: Image = np.broadcast_to((np.indices((H, W)).sum(axis=0) % 2).astype(np.float64), (3, H, W)).copy()


def test_saturation_by_hand():
    """Zero for greys and one for pure colours; dark red is as saturated as red; (0.5 - 0.125) / 0.5; the mean."""
    images = (CHECKERBOARD, RED, plain(0.2, 0, 0), plain(0.25, 0.5, 0.125), halves(RED, BLACK))
    assert list(map(saturation, images)) == pytest.approx([0, 1, 1, 0.75, 0.5], abs=1e-12)


def test_a_plain_image_has_no_edges_and_a_checkerboard_the_most():
    assert list(map(edge_density, (RED, CHECKERBOARD))) == pytest.approx([0, math.sqrt(2)], abs=1e-12)


def test_an_edge_counts_once_in_each_row_by_its_step_in_luma():
    """One of the W - 1 differences of a row is not 0, and is the luma of red."""
    assert LUMA_WEIGHTS == (0.2126, 0.7152, 0.0722)  # of BT.709
    upright = halves(RED, BLACK)
    for image in (upright, upright[..., ::-1], upright.transpose(0, 2, 1)):
        assert edge_density(image) == pytest.approx(LUMA_WEIGHTS[0] / (W - 1), abs=1e-12)


def test_both_directions_make_one_length():
    """A slope of 3/64 to the right and 4/64 down is one of 5/64."""
    slope = (np.arange(W)[None, :] * 3 + np.arange(H)[:, None] * 4) / 64
    assert edge_density(np.broadcast_to(slope, (3, H, W))) == pytest.approx(5 / 64, abs=1e-12)


def test_entropy_counts_bits_of_colours():
    """One row of four black is 1/4 * 2 bits + 3/4 * log2(4/3) bits; all 64 colours are 6 bits."""
    quarters = np.concatenate([halves(RED, BLACK)[:, : H // 2], halves(WHITE, GREY)[:, H // 2 :]], axis=1)
    uneven = RED.copy()
    uneven[:, 0] = 0
    levels = np.indices((4, 4, 4)).reshape(3, 8, 8) / 4 + 0.1
    found = list(map(colour_entropy, (BLACK, RED, CHECKERBOARD, quarters, uneven, levels)))
    assert found == pytest.approx([0, 0, 1, 2, 0.5 + 0.75 * math.log2(4 / 3), 6], abs=1e-12)


def test_colour_levels_are_quarters_and_last_includes_one():
    image = BLACK[:, :1].copy()
    image[0, 0] = [0.0, 0.2499, 0.25, 0.4999, 0.75, 1.0]
    # Three levels of red with two pixels each.
    assert colour_entropy(image) == pytest.approx(math.log2(3), abs=1e-12)


def test_diversity_is_the_mean_over_the_pairs_of_a_group():
    """Black, white, white: pairs 1, 1, 0. Black, grey, red: 1/2, sqrt(1/3), and sqrt of the mean of 1/4.

    A difference in half of the pixels counts by its square.
    """
    groups = ((BLACK, WHITE, WHITE), (BLACK, GREY, RED), (WHITE, halves(WHITE, BLACK)))
    expected = [2 / 3, (0.5 + math.sqrt(1 / 3) + 0.5) / 3, math.sqrt(0.5)]
    assert [diversity(np.stack(group)) for group in groups] == pytest.approx(expected, abs=1e-12)


def test_mean_statistics_have_named_keys():
    images = np.stack([BLACK, RED, CHECKERBOARD, CHECKERBOARD]).astype(np.float32)
    images.flags.writeable = False
    assert image_statistics(images, 2) == pytest.approx(
        {
            "saturation": 0.25,
            "edge_density": math.sqrt(2) / 2,
            "colour_entropy": 0.5,
            "diversity": math.sqrt(1 / 3) / 2,
        },
        abs=1e-12,
    )
    assert list(image_statistics(images, 1)) == ["saturation", "edge_density", "colour_entropy"]


@pytest.mark.parametrize("value", [-0.001, 1.001, 255, np.nan, np.inf])
def test_values_of_another_range_are_refused(value):
    images = np.stack([BLACK, WHITE]).astype(np.float32)
    images[1, 2, 3, 4] = value
    with pytest.raises(ValueError, match=r"images: values must lie in \[0, 1\]"):
        image_statistics(images, 1)
