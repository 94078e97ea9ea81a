"""What the pipeline asks of a text-to-image model, whatever its family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class TuningOptions:
    """What of the velocity network is trained, and how its passes are run.

    Attributes:
        lora_rank: Rank of the low-rank adapters, at least 1; None trains all weights.
        lora_alpha: Above 0; an adapter's output is scaled by lora_alpha / lora_rank. Unused without a rank.
        lora_targets: Names of linear layers, or ends of names after a dot, such as to_q. Unused without a rank.
        gradient_checkpointing: Whether activations are computed again in the backward pass instead of kept.
        autocast: Floating-point type of the passes under torch.autocast. None runs them in the weights' own type,
            except that all weights of a checkpoint in half precision are trained under autocast to that type.
    """

    lora_rank: int | None
    lora_alpha: float
    lora_targets: tuple[str, ...]
    gradient_checkpointing: bool
    autocast: torch.dtype | None


class VelocityModel(Protocol):
    """All that a sampler or a KL divergence needs of a model."""

    def velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        """Velocity [B, L, D] at the states x [B, L, D] and noise levels t [B]."""
        ...


class Family(VelocityModel, Protocol):
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

    def decode(self, latents: Tensor) -> Tensor:
        """Images [B, 3, H, W] float32 in [0, 1] of packed latents; needs the part "vae"."""
        ...

    def prepare_training(self, options: TuningOptions, seed: int) -> None:
        """Make the velocity network trainable in place; once, before the optimiser and before `use_network`.

        Args:
            options: What is trained.
            seed: Of an adapter's start, from 0 to 2**63 - 1, as `derive_seed` makes of a training seed. The same seed
                gives the same bytes. Training all weights draws nothing.

        Raises:
            ConfigError: Rank, alpha or targets are wrong; the message lists targets that are there.
            ValueError: The network is prepared already or carries an adapter.
        """
        ...

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """What the optimiser may change: the adapter's weights where there is one, else all of the network's."""
        ...

    def trainable_state(self) -> dict[str, Tensor]:
        """The trained weights alone, by name. They are not copied: save them before the next optimiser step.

        Where they are spread over processes, all must call, and only the first one gets them.
        """
        ...

    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy back what `trainable_state` gave, after the same `prepare_training`.

        Raises:
            DataError: Names or shapes are not those of the trained weights; nothing was changed.
        """
        ...

    def use_network(self, network: nn.Module) -> None:
        """Run `velocity` through `network`, a module around `transformer` such as DistributedDataParallel.

        Parameters, states and configuration are still those of `transformer`; giving `transformer` itself undoes it.

        Raises:
            ValueError: `transformer` is not inside `network`.
        """
        ...

    def reference(self, spread: Callable[[nn.Module], None] | None = None) -> VelocityModel:
        """The policy that a KL divergence is measured from, run as the policy is run.

        With an adapter: the same weights with the adapter off, so the untrained policy at any time and at no cost of
        memory. Otherwise: a frozen copy of the weights as they are now, so call it before training starts.

        Args:
            spread: Given the copy's network, to spread its weights over processes.
        """
        ...

    def frozen_copy(self) -> Family:
        """A second model with its own copy of the velocity network, the other parts shared."""
        ...

    def with_transformer(self, folder: Path) -> Family:
        """A second, frozen model with the velocity network that `save_transformer` wrote, the other parts shared.

        From an adapter it shares this model's frozen weights too, so do not train those afterwards. It runs in the
        weights' own type: velocities are those of the saved policy to the bit, unless that one ran under autocast.

        Raises:
            DataError: The folder holds neither a transformer nor an adapter, or one of another model.
            ValueError: An adapter is asked for around weights that are trained, which are not its base.
        """
        ...

    def save_transformer(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """Save what was trained in the diffusers layout: the transformer, or the adapter alone.

        A transformer is saved in the checkpoint's type, an adapter in float32. Equal weights give equal bytes.

        Args:
            state: What `trainable_state` gave.
            folder: Of the transformer or adapter.
        """
        ...


def default_device() -> torch.device:
    """The first GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def velocity_function(model: VelocityModel, conditioning: Conditioning) -> Callable[[Tensor, Tensor], Tensor]:
    """The model's velocity as a function of state and noise level alone, as the core wants it."""

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return model.velocity(x, t, conditioning)

    return velocity
