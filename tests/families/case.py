"""How a family's pipeline is called, to compare with the family; each tests/families/checkpoint_NAME.py has a case."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from chunk_grpo.families.packing import to_pixels


def as_tokens(family: Any, latents: Tensor) -> Tensor:
    """Packed latents."""
    return latents


def as_pixels(family: Any, latents: Tensor) -> Tensor:
    """Latent pixels."""
    return to_pixels(latents, family._rows)


def as_channels(family: Any, latents: Tensor) -> Tensor:
    """An image whose pixels are the tokens."""
    return latents.unflatten(1, (family._rows, family._columns)).permute(0, 3, 1, 2)


def as_decoded(family: Any, latents: Tensor) -> Tensor:
    """What the VAE decodes."""
    return family.vae_latents(latents)


def as_drawn(pictures: Tensor) -> Tensor:
    """Pictures without an alpha channel."""
    return pictures


@dataclass(frozen=True)
class Case:
    """How a family's pipeline is called."""

    scales: tuple[float, ...]
    """Scales of classifier-free guidance."""
    keywords: Callable[[float, list[str]], Mapping[str, object]]
    """Keywords of the call with a scale away from B negative prompts."""
    tokens: int
    """Text tokens."""
    sizes: tuple[tuple[int, int], ...] = ((32, 32), (40, 64))
    """Height and width of images."""
    given: Callable[[Any, Tensor], Tensor] = as_tokens
    """Noise as the call takes it."""
    found: Callable[[Any, Tensor], Tensor] = as_tokens
    """Latents as the call returns them."""
    drawn: Callable[[Tensor], Tensor] = as_drawn
    """Pictures [B, 3, H, W] of those that the call returns."""
    limits: bool = True
    """Whether the call takes `max_sequence_length`."""
    alone: bool = False
    """Whether each prompt is given to the pipeline alone, whose pictures depend on the other prompts of a call."""
    embedded: float = 3.5
    """Embedded guidance strength."""
    sources: tuple[tuple[int, int], ...] = ()
    """Height and width of source pictures, with each of `sizes`; empty: the family edits no pictures."""
    given_sources: Callable[[int, int], AbstractContextManager[object]] = lambda height, width: nullcontext()
    """Context of the call with sources of a height and width."""
    of_size: Callable[[int, int], Mapping[str, object]] = lambda height, width: {}
    """Further keywords of the call for images of a height and width."""
    away: str = "a green cross"
    """Negative prompt."""

    @property
    def limit(self) -> Mapping[str, int]:
        """Keyword of the call that limits the text."""
        return {"max_sequence_length": self.tokens} if self.limits else {}
