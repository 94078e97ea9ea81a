"""Tokens of 2 x 2 latent pixels."""

import torch

from chunk_grpo.families.packing import to_pixels, to_tokens


def test_a_token_has_the_channels_of_two_by_two_pixels() -> None:
    tokens = torch.arange(24 * 16.0).reshape(1, 24, 16)
    pixels = to_pixels(tokens, 4)
    assert pixels.shape == (1, 4, 8, 12)
    assert pixels[0, 1, 0, :2].tolist() == [4, 5]
    assert pixels[0, 1, 1, :2].tolist() == [6, 7]
    assert pixels[0, 0, 2, 0] == tokens[0, 6, 0]  # the second row has tokens 6 to 11
    assert torch.equal(to_tokens(pixels), tokens)
