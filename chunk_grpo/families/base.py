"""What the pipeline asks of a text-to-image model, whatever its family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

Part = Literal["text", "transformer", "vae"]
"""The parts that can be loaded on their own: training needs no text encoder, encoding no transformer."""


@dataclass(frozen=True)
class Conditioning:
    """Text-encoder outputs of B prompts.

    Attributes:
        prompt_embeds: [B, N, E] one vector per text token.
        pooled: [B, F] one vector per prompt.
    """

    prompt_embeds: Tensor
    pooled: Tensor

    def __len__(self) -> int:
        return self.prompt_embeds.shape[0]

    def rows(self, index: Tensor | Sequence[int]) -> Conditioning:
        """The prompts at `index`, repetitions allowed."""
        where = torch.as_tensor(index, device=self.prompt_embeds.device)
        return Conditioning(self.prompt_embeds[where], self.pooled[where])

    def to(self, device: torch.device | str) -> Conditioning:
        """The same conditioning on another device."""
        return Conditioning(self.prompt_embeds.to(device), self.pooled.to(device))


@dataclass(frozen=True)
class LoadOptions:
    """How a checkpoint is loaded and used.

    Attributes:
        checkpoint: Folder in the diffusers layout, or hub id.
        revision: Commit or tag of a hub id; None for a folder.
        dtype: Floating-point type of the weights.
        height: Image height in pixels.
        width: Image width in pixels.
        guidance_scale: Embedded guidance strength (FLUX.1-dev: 3.5).
        max_sequence_length: Text tokens of the longer text encoder.
        device: Where the parts live.
    """

    checkpoint: str
    revision: str | None = None
    dtype: torch.dtype = torch.float32
    height: int = 1024
    width: int = 1024
    guidance_scale: float = 3.5
    max_sequence_length: int = 512
    device: torch.device | str = "cpu"


class Family(Protocol):
    """A loaded model. Latents are always packed tokens [B, L, D]."""

    @property
    def latent_shape(self) -> tuple[int, int]:
        """(L, D): number of latent tokens and their dimension."""
        ...

    @property
    def transformer(self) -> nn.Module:
        """The velocity network, the part that training changes."""
        ...

    def encode(self, prompts: Sequence[str]) -> Conditioning:
        """Text-encoder outputs; needs the part "text"."""
        ...

    def velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        """Velocity [B, L, D] at the states x [B, L, D] and noise levels t [B]."""
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """Images [B, 3, H, W] float32 in [0, 1] of packed latents; needs the part "vae"."""
        ...

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that an optimiser may change."""
        ...

    def frozen_copy(self) -> Family:
        """A second model with its own copy of the velocity network, the other parts shared."""
        ...

    def with_transformer(self, folder: Path) -> Family:
        """A second model whose velocity network comes from a saved transformer folder, the other parts shared."""
        ...

    def save_transformer(self, folder: Path) -> None:
        """Save the velocity network in the diffusers layout."""
        ...


def default_device() -> torch.device:
    """The first GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def velocity_function(family: Family, conditioning: Conditioning) -> Callable[[Tensor, Tensor], Tensor]:
    """The family's velocity as a function of state and noise level alone, as the core wants it."""

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return family.velocity(x, t, conditioning)

    return velocity
