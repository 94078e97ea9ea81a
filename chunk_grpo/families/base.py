"""Interface of a text-to-image model, common to all families."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.families.sharding import StoredTensor
from chunk_grpo.gpus import has_gpu

Picture: TypeAlias = NDArray[np.uint8]
"""[H, W, 3], RGB."""

Part = Literal["text", "transformer", "vae"]
"""Parts that can be loaded separately: training needs no text encoder, encoding no transformer."""


@dataclass(frozen=True)
class Conditioning:
    """Text-encoder outputs of B prompts."""

    tensors: Mapping[str, Tensor]
    """Tensors [B, ...] by name, as the family's `encode` returns and its network takes them. Texts of unequal length
    are padded, with a mask among the tensors. Names that begin with `image_files.AWAY` are a negative prompt's."""
    negative: Mapping[str, Tensor] | None = None
    """Tensors [1, ...] of the prompt that classifier-free guidance moves away from; None: there is none, or the rows
    have their own in `tensors`. Both velocities read the pictures to edit there (`image_files.SOURCE`)."""

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, name: str) -> Tensor:
        """The tensor [B, ...] of a name."""
        return self.tensors[name]

    def rows(self, index: Tensor | Sequence[int]) -> Conditioning:
        """The prompts at `index`, repetitions allowed."""
        device = next(iter(self.tensors.values())).device
        where = torch.as_tensor(index, device=device)
        return Conditioning({name: tensor[where] for name, tensor in self.tensors.items()}, self.negative)

    def to(self, device: torch.device | str) -> Conditioning:
        """The same conditioning on another device."""
        negative = self.negative and {name: tensor.to(device) for name, tensor in self.negative.items()}
        return Conditioning({name: tensor.to(device) for name, tensor in self.tensors.items()}, negative)


class ConditioningRows(Protocol):
    """Conditioning of B prompts, in memory or in files. Only what `to` returns is for the network."""

    def __len__(self) -> int:
        """Number of prompts, B."""
        ...

    def rows(self, index: Tensor | Sequence[int]) -> ConditioningRows:
        """The prompts at `index`, repetitions allowed."""
        ...

    def to(self, device: torch.device | str) -> Conditioning:
        """The tensors of all B prompts on a device."""
        ...


@dataclass(frozen=True)
class LoadOptions:
    """Settings of a loaded checkpoint."""

    checkpoint: str
    """Folder in the diffusers layout, or hub id."""
    revision: str | None = None
    """Commit or tag of a hub id; None for a folder."""
    dtype: torch.dtype = torch.float32
    """Floating-point type of the weights."""
    height: int = 1024
    """Image height in pixels."""
    width: int = 1024
    """Image width in pixels."""
    guidance_scale: float = 3.5
    """Embedded guidance strength (FLUX.1-dev: 3.5)."""
    cfg_scale: float = 1.0
    """Scale of classifier-free guidance; 1: none."""
    cfg_passes: Literal[1, 2] = 1
    """Passes of the network for a guided velocity: one of twice as many rows, or two."""
    max_sequence_length: int = 512
    """Number of text tokens of the longer text encoder."""
    device: torch.device | str = "cpu"
    """Device of the parts."""
    base_precision: BasePrecision | None = None
    """Precision of the quantised linear layers of the transformer's blocks; None: `dtype`."""
    block_swap: float = 0.0
    """Share of the transformer's blocks whose linear layers stay in the CPU's memory; see `families.swapping`."""
    text_precision: BasePrecision | None = None
    """The same of the text encoders' blocks."""
    attention_backend: str | None = None
    """Diffusers' name of the velocity network's attention; None: torch's choice without cuDNN's."""


@dataclass(frozen=True)
class TuningOptions:
    """Options of training: the trained weights of the velocity network and the settings of its passes."""

    lora_rank: int | None
    """Rank of the low-rank adapters, at least 1; None trains all weights."""
    lora_alpha: float
    """Above 0; the adapter's output is multiplied by lora_alpha / lora_rank. Unused without a rank."""
    lora_targets: tuple[str, ...]
    """Names of linear layers, or ends of names after a dot, such as to_q. Unused without a rank."""
    gradient_checkpointing: bool | float
    """Whether the backward pass recomputes activations instead of storing them, or of which share of the blocks."""
    autocast: torch.dtype | None
    """Floating-point type of the passes under torch.autocast. None: the type of the weights. Exception: when all
    weights of a half-precision checkpoint are trained, None means autocast to that type."""
    compiles: bool | Literal["auto"] = False
    """Whether the blocks of the network, and of copies, are compiled when they first run. `auto`: on a GPU where the
    compiler works, and not beside quantised or swapped weights."""
    lora_precision: Literal["float32", "network"] = "float32"
    """Type in which the adapter computes over its float32 weights. Unused without a rank."""
    guidance_gradient: Literal["both", "conditional"] = "both"
    """Which velocities of classifier-free guidance have a gradient; `conditional`: that of the prompts alone."""


Spread = Callable[[nn.Module, "torch.dtype | None"], None]
"""(network, type) -> None: shards the network's weights over the processes, to be gathered in this type.

None: gathered in their own type. Replaces the parameter objects.
"""


class VelocityModel(Protocol):
    """Part of a model that sampling and KL divergence use."""

    def velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        """Velocity [B, L, D] at the states x [B, L, D] and noise levels t [B]."""
        ...


class Family(VelocityModel, Protocol):
    """A loaded model. Latents are packed tokens [B, L, D]."""

    @property
    def latent_shape(self) -> tuple[int, int]:
        """(L, D): number of latent tokens and their dimension."""
        ...

    @property
    def device(self) -> torch.device:
        """Device on which the model computes: states and conditioning must be there."""
        ...

    @property
    def transformer(self) -> nn.Module:
        """Velocity network, which training changes."""
        ...

    def pipeline_times(self, num_steps: int) -> Tensor:
        """Noise levels [S + 1] of the pipeline's own grid for images of this size, float64; needs the part "vae"."""
        ...

    @property
    def only_edits(self) -> bool:
        """Whether `encode` needs sources and the negative prompt, whose tensors then depend on the row."""
        ...

    def encode(
        self, prompts: Sequence[str], sources: Sequence[Picture] | None = None, negative: str | None = None
    ) -> Conditioning:
        """Text-encoder outputs, and with source pictures their latents; needs the part "text".

        Args:
            prompts: B prompts.
            sources: B pictures uint8 [H, W, 3] of one size that the prompts say how to edit; None: there are none.
            negative: Negative prompt of a family that only edits, for tensors of each row whose names begin with
                `image_files.AWAY`; None: no guidance. Other families ignore it and encode it as a prompt.

        Raises:
            ConfigError: The family edits no pictures, or only edits, or their size does not fit the checkpoint.
        """
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """Images [B, 3, H, W] float32 in [0, 1] of packed latents; needs the part "vae"."""
        ...

    def move_decoder(self, device: torch.device | str) -> None:
        """Move the part "vae" to a device. `decode` needs it on `device`; on the CPU it takes no memory of a GPU."""
        ...

    def prepare_training(self, options: TuningOptions, seed: int, spread: Spread | None = None) -> None:
        """Make the velocity network trainable in place. Call once, before the optimiser and `use_network`.

        Args:
            options: Trained weights and settings of the passes.
            seed: Seed of the adapter's initial weights, from 0 to 2**63 - 1, such as from `derive_seed`. The same seed
                gives the same bytes. Unused without an adapter.
            spread: Function that shards the weights. It is called before they are cast to a wider type.

        Raises:
            ConfigError: Rank, alpha or targets are wrong; the message lists the available targets. Or the attention
                backend has no gradient here, or `compiles` is True and torch cannot compile here.
            ValueError: The network is already prepared or has an adapter.
        """
        ...

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """Trained parameters: the adapter's if there is one, otherwise all of the network."""
        ...

    def trainable_state(self) -> dict[str, Tensor]:
        """Trained weights by name, sharded or not. They are not copied: save them before the next optimiser step."""
        ...

    def policy_state(self) -> dict[str, Tensor]:
        """Unsharded trained weights by name, in the type that `save_transformer` writes.

        With sharded weights all processes must call, and only the first gets the values.
        """
        ...

    def load_trainable_state(self, state: Mapping[str, Tensor | StoredTensor]) -> None:
        """Restore the result of `trainable_state`, after the same `prepare_training`.

        Raises:
            DataError: Names or shapes do not match the trained weights. Nothing was changed.
        """
        ...

    def use_network(self, network: nn.Module) -> None:
        """Run `velocity` through `network`, a module around `transformer` such as DistributedDataParallel.

        Parameters, states and configuration are still taken from `transformer`. Passing `transformer` itself undoes it.

        Raises:
            ValueError: `transformer` is not inside `network`.
        """
        ...

    def reference(self) -> VelocityModel:
        """Reference policy of the KL divergence, with the same precision as the policy.

        With an adapter: the same weights with the adapter off. This is always the untrained policy and takes no extra
        memory. Otherwise: a frozen copy of the current weights, sharded as they are, so call it before training starts.
        """
        ...

    def frozen_copy(self) -> Family:
        """A second model with a copy of the velocity network. The other parts are shared."""
        ...

    def with_transformer(self, path: Path) -> Family:
        """A second, frozen model with the velocity network that `save_transformer` wrote. The other parts are shared.

        With an adapter, this model's frozen weights are shared too: do not train them afterwards. Passes run in the
        type of the weights. The velocities equal the saved policy's bit for bit, unless it ran under autocast.

        Args:
            path: Folder of the transformer or adapter, also of other programs in the layouts of diffusers or PEFT, or
                the file of an adapter.

        Raises:
            DataError: There is neither a transformer nor an adapter, or one of another model.
            ValueError: There is an adapter, but this model's weights are trained and no longer its base.
        """
        ...

    def start_state(self, path: Path, options: TuningOptions) -> dict[str, Tensor]:
        """Weights of a saved policy for `load_trainable_state`, float32 in the CPU's memory.

        Call before `prepare_training`, and load after it and after `reference`: the reference is then the base model.

        Args:
            path: As in `with_transformer`. If all weights are trained, an adapter is merged into the base model's.
            options: Options of the training.

        Raises:
            ConfigError: An adapter is trained, but the policy is a transformer.
            DataError: As in `with_transformer`.
        """
        ...

    def replaced_by(self, path: Path) -> AbstractContextManager[Family]:
        """Context of a `with_transformer` model whose velocity network takes this one's place on the device.

        Inside the block this model computes no velocity. With an adapter both share their weights, which stay in place.

        Raises:
            DataError: As in `with_transformer`.
        """
        ...

    def save_transformer(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """Save the trained weights in the diffusers layout: the transformer, or the adapter alone.

        A transformer is saved in the checkpoint's type, an adapter in float32. Equal weights give equal bytes.

        Args:
            state: Result of `policy_state`.
            folder: Folder of the transformer or adapter.
        """
        ...


def default_device() -> torch.device:
    """The current GPU if there is one, otherwise the CPU; see `has_gpu` for the error."""
    return torch.device("cuda" if has_gpu() else "cpu")


def release_memory() -> None:
    """Free objects in reference cycles, and the GPU memory that torch keeps for later."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def velocity_function(model: VelocityModel, conditioning: Conditioning) -> Callable[[Tensor, Tensor], Tensor]:
    """Bind `conditioning`: velocity [B, L, D] as a function of state [B, L, D] and noise level [B] alone."""

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return model.velocity(x, t, conditioning)

    return velocity
