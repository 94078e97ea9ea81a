"""Statistics of images that can be worked by hand: plain colours, a checkerboard, two groups."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from chunk_grpo.training.image_statistics import (
    LUMA_WEIGHTS,
    colour_entropy,
    edge_density,
    group_diversity,
    image_statistics,
    saturation,
)

H, W = 4, 6
Image = NDArray[np.float32]


def plain(*colour: float) -> Image:
    return np.broadcast_to(np.float32(colour)[:, None, None], (3, H, W)).copy()


def halves(left: Image, right: Image) -> Image:
    """The left half of one image beside the right half of another."""
    return np.concatenate([left[..., : W // 2], right[..., W // 2 :]], axis=-1)


BLACK, WHITE, GREY, RED = plain(0, 0, 0), plain(1, 1, 1), plain(0.5, 0.5, 0.5), plain(1, 0, 0)
CHECKERBOARD: Image = np.broadcast_to((np.indices((H, W)).sum(axis=0) % 2).astype(np.float32), (3, H, W)).copy()
STATISTICS = [saturation, edge_density, colour_entropy]


def test_saturation_by_hand():
    """Zero for greys and one for pure colours; dark red is as saturated as red; (0.5 - 0.125) / 0.5; the mean."""
    images = np.stack([CHECKERBOARD, RED, plain(0.2, 0, 0), plain(0.25, 0.5, 0.125), halves(RED, BLACK)])
    assert saturation(images) == pytest.approx([0, 1, 1, 0.75, 0.5], abs=1e-7)


def test_a_plain_image_has_no_edges_and_a_checkerboard_the_most():
    assert edge_density(np.stack([RED, CHECKERBOARD])) == pytest.approx([0, math.sqrt(2)], abs=1e-12)


def test_an_edge_counts_once_in_each_row_by_its_step_in_luma():
    """One of the W - 1 differences of a row is not 0, and is the luma of red."""
    expected = LUMA_WEIGHTS[0] / (W - 1)
    upright = halves(RED, BLACK)
    assert edge_density(np.stack([upright, upright[..., ::-1]])) == pytest.approx([expected] * 2, abs=1e-12)
    lying = np.ascontiguousarray(upright.transpose(0, 2, 1))
    assert edge_density(lying[None]) == pytest.approx([expected], abs=1e-12)


def test_both_directions_make_one_length():
    """A slope of 3/64 to the right and 4/64 down is one of 5/64."""
    slope = (np.arange(W)[None, :] * 3 + np.arange(H)[:, None] * 4) / 64
    image = np.broadcast_to(slope.astype(np.float32), (3, H, W))
    assert edge_density(image[None]) == pytest.approx([5 / 64], abs=1e-12)


def test_luma_weights_are_those_of_bt_709_and_sum_to_one():
    assert LUMA_WEIGHTS == (0.2126, 0.7152, 0.0722)
    assert sum(LUMA_WEIGHTS) == pytest.approx(1, abs=1e-15)


def test_entropy_counts_bits_of_colours():
    quarters = np.concatenate([halves(RED, BLACK)[:, : H // 2], halves(WHITE, GREY)[:, H // 2 :]], axis=1)
    images = np.stack([BLACK, RED, CHECKERBOARD, quarters])
    assert colour_entropy(images) == pytest.approx([0, 0, 1, 2], abs=1e-12)
    uneven = RED.copy()
    uneven[:, 0] = 0  # one row of four is black: 1/4 * 2 bits + 3/4 * log2(4/3) bits
    assert colour_entropy(uneven[None]) == pytest.approx([0.5 + 0.75 * math.log2(4 / 3)], abs=1e-12)


def test_sixty_four_colours_are_six_bits():
    levels = (np.indices((4, 4, 4)).reshape(3, 8, 8) / 4 + 0.1).astype(np.float32)
    assert colour_entropy(levels[None]) == pytest.approx([6], abs=1e-12)


def test_colour_levels_are_quarters_and_last_includes_one():
    image = BLACK.copy()
    image[0, 0] = [0.0, 0.2499, 0.25, 0.4999, 0.75, 1.0]
    image = image[:, :1]
    # Three levels of red with two pixels each.
    assert colour_entropy(image[None]) == pytest.approx([math.log2(3)], abs=1e-12)


def test_diversity_is_the_mean_over_the_pairs_of_a_group():
    """Black, white, white: pairs 1, 1, 0. Black, grey, red: 1/2, sqrt(1/3), and sqrt of the mean of 1/4.

    A difference in half of the pixels counts by its square.
    """
    images = np.stack([BLACK, WHITE, WHITE, BLACK, GREY, RED])
    expected = [2 / 3, (0.5 + math.sqrt(1 / 3) + 0.5) / 3]
    assert group_diversity(images, 3) == pytest.approx(expected, abs=1e-12)
    assert group_diversity(images, 2) == pytest.approx([1, 1, 0.5], abs=1e-12)
    pair = np.stack([WHITE, halves(WHITE, BLACK)])
    assert group_diversity(pair, 2) == pytest.approx([math.sqrt(0.5)], abs=1e-12)


def test_mean_statistics_have_named_keys():
    images = np.stack([BLACK, RED, CHECKERBOARD, CHECKERBOARD])
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


@pytest.mark.parametrize("statistic", [*STATISTICS, lambda images: group_diversity(images, 2)])
def test_images_of_another_shape_or_range_are_refused(statistic):
    pair = np.stack([BLACK, WHITE])
    for wrong in (pair[0], pair[..., None], pair.transpose(0, 2, 3, 1), pair[:0], pair[..., :0]):
        with pytest.raises(ValueError, match=r"images: must have shape \[B, 3, H, W\]"):
            statistic(wrong)
    for value in (-0.001, 1.001, 255, np.nan, np.inf):
        bad = pair.copy()
        bad[1, 2, 3, 4] = value
        with pytest.raises(ValueError, match=r"images: values must lie in \[0, 1\]"):
            statistic(bad)


THREE = np.stack([BLACK, WHITE, RED])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: edge_density(BLACK[None, :, :1]), "at least 2, got shape"),
        (lambda: edge_density(BLACK[None, :, :, :1]), "at least 2, got shape"),
        (lambda: group_diversity(THREE, 1), "group_size: diversity needs at least 2 images of a prompt"),
        (lambda: group_diversity(THREE, -3), "group_size: diversity needs at least 2 images of a prompt"),
        (lambda: group_diversity(THREE, 2), "divide the 3 images, got 2"),
        (lambda: image_statistics(THREE, 2), "divide the 3 images, got 2"),
        (lambda: image_statistics(THREE, 0), "divide the 3 images, got 0"),
        (lambda: image_statistics(THREE, -1), "divide the 3 images, got -1"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
