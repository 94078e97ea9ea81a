"""Weights, operations and memory of an AutoencoderKL, from its config.json alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

DECODE_TENSORS = 3
"""Tensors of the widest full-size layer that live at once at the peak of decoding, in its last block."""


@dataclass(frozen=True)
class Vae:
    """Sizes of an AutoencoderKL without quantising convolutions.

    Attributes:
        channels: Channels of the levels, from the full size to the latent size.
        layers: Residual blocks of a level of the encoder; the decoder has one more.
        latent_channels: Channels of a latent pixel.
        image_channels: Channels of an image.
    """

    channels: tuple[int, ...]
    layers: int
    latent_channels: int
    image_channels: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Vae:
        """Read vae/config.json; KeyError if a key is missing."""
        return cls(
            channels=tuple(config["block_out_channels"]),
            layers=config["layers_per_block"],
            latent_channels=config["latent_channels"],
            image_channels=config["out_channels"],
        )

    @property
    def scale(self) -> int:
        """Image pixels a latent pixel, along one side: 2 ** (levels - 1)."""
        return int(2 ** (len(self.channels) - 1))

    @property
    def token_side(self) -> int:
        """Image pixels a latent token, along one side: a token has 2 x 2 latent pixels."""
        return 2 * self.scale

    def tokens(self, height: int, width: int) -> int:
        """Latent tokens of an image, L."""
        return (height // self.token_side) * (width // self.token_side)

    @property
    def weights(self) -> int:
        """Number of weights of encoder and decoder: 9 * inputs * outputs + outputs a convolution, 2 a norm channel."""
        first, last = self.channels[0], self.channels[-1]
        encoder = _conv(self.image_channels, first) + 2 * last + _conv(last, 2 * self.latent_channels)
        for number, (before, after) in enumerate(pairwise((first, *self.channels))):
            encoder += _residual(before, after) + (self.layers - 1) * _residual(after, after)
            encoder += _conv(after, after) if number < len(self.channels) - 1 else 0
        decoder = _conv(self.latent_channels, last) + 2 * first + _conv(first, self.image_channels)
        for number, (before, after) in enumerate(self._up()):
            decoder += _residual(before, after) + self.layers * _residual(after, after)
            decoder += _conv(after, after) if number < len(self.channels) - 1 else 0
        middle = 2 * _residual(last, last) + 2 * last + 4 * (last * last + last)
        return encoder + decoder + 2 * middle

    def decode_flop(self, height: int, width: int) -> float:
        """Operations of decoding one image.

        2 * 9 * inputs * outputs a pixel of each convolution; the attention in the middle has four products of the n
        latent pixels, and 4 n^2 C.
        """
        pixels, last = height * width // self.scale**2, self.channels[-1]
        total = 2 * 9.0 * pixels * self.latent_channels * last
        total += 2 * pixels * _residual_products(last, last) * 2
        total += 8 * pixels * last**2 + 4.0 * pixels**2 * last
        for number, (before, after) in enumerate(self._up()):
            total += (
                2.0
                * pixels
                * (_residual_products(before, after) + self.layers * _residual_products(after, after))
            )
            if number < len(self.channels) - 1:
                pixels *= 4
                total += 2 * 9.0 * pixels * after**2
        return total + 2 * 9.0 * pixels * self.channels[0] * self.image_channels

    def decode_bytes(self, images: int, height: int, width: int, element: int) -> float:
        """Peak of decoding: DECODE_TENSORS tensors of the second level's channels at the full size."""
        widest = self.channels[min(1, len(self.channels) - 1)]
        return float(DECODE_TENSORS * images * widest * height * width * element)

    def _up(self) -> Iterator[tuple[int, int]]:
        reverse = self.channels[::-1]
        return pairwise((reverse[0], *reverse))


def _conv(inputs: int, outputs: int) -> int:
    return 9 * inputs * outputs + outputs


def _residual(inputs: int, outputs: int) -> int:
    shortcut = inputs * outputs + outputs if inputs != outputs else 0
    return 2 * inputs + _conv(inputs, outputs) + 2 * outputs + _conv(outputs, outputs) + shortcut


def _residual_products(inputs: int, outputs: int) -> int:
    """Multiply-adds a pixel of a residual block."""
    shortcut = inputs * outputs if inputs != outputs else 0
    return 9 * inputs * outputs + 9 * outputs**2 + shortcut
