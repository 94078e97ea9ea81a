"""What all families share whose checkpoints are pipelines of diffusers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from chunk_grpo.families.attention import leave_out_cudnn, set_backend, try_backend
from chunk_grpo.families.base import (
    Conditioning,
    LoadOptions,
    Part,
    Picture,
    Spread,
    TuningOptions,
    VelocityModel,
    release_memory,
)
from chunk_grpo.families.compiling import compile_blocks, graphs_of_training, will_compile
from chunk_grpo.families.grids import linear_shift, scheduler_times
from chunk_grpo.families.guidance import away_and_towards, without_backward
from chunk_grpo.families.limits import check_limits
from chunk_grpo.families.packing import to_pixels
from chunk_grpo.families.recomputing import recompute
from chunk_grpo.families.sharding import StoredTensor, full_tensor, is_sharded, sharded_copy
from chunk_grpo.families.sources import as_pixels, edits_nothing
from chunk_grpo.families.weights.adapter_file import LayerNames
from chunk_grpo.families.weights.checkpoint import load_pipeline, network_with
from chunk_grpo.families.weights.lora import (
    WithoutLora,
    add_lora,
    has_lora,
    load_exactly,
    lora_parameters,
    lora_state,
    save_lora,
)
from chunk_grpo.families.weights.policy import policy_in, saved_network, start_state


class DiffusersFamily(ABC):
    """A family whose checkpoints are diffusers pipelines. Their samplers are not used; see `chunk_grpo.core.rollout`.

    A family states its classes and parts, and how text, states and latents pass through them. Latents are packed
    tokens [B, L, D], each of `latent_pixels_per_token` x as many latent pixels.
    """

    pipeline_class: ClassVar[Any]
    """Pipeline of diffusers that reads a checkpoint."""
    network_class: ClassVar[Any]
    """Velocity network of diffusers."""
    components: ClassVar[Mapping[Part, tuple[str, ...]]] = {
        "text": ("text_encoder", "tokenizer"),
        "transformer": ("transformer",),
        "vae": ("vae",),
    }
    """Components of the pipeline by part."""
    tokenizers: ClassVar[Mapping[str, tuple[str, bool]]]
    """By text encoder: folder of its tokenizer or of the processor around that, and whether its limit of tokens is
    `model.max_sequence_length`; else it is the tokenizer's own."""
    original_layers: ClassVar[LayerNames] = {}
    """Names of the network's layers in the model's original code, which some adapters have."""
    edits: ClassVar[bool] = False  # whether prompts may have pictures to edit
    only_edits: ClassVar[bool] = False  # whether they must; then the text encoder is shown them
    latent_pixels_per_token: ClassVar[int] = 2
    """Latent pixels that a token covers, along each side."""
    side_step: ClassVar[int] = 1
    """Each side must be a multiple of so many latent pixels, too."""
    grid_is_even: ClassVar[bool] = True
    """Whether the pipeline's noise levels are 1, 1 - 1/S, ..., 1/S before a shift; else the scheduler's own."""

    def __init__(self, pipeline: Any, options: LoadOptions) -> None:
        """Wrap a pipeline; `load` creates one from a checkpoint.

        Raises:
            ConfigError: Sizes of images or texts do not fit the checkpoint, or a package of the attention backend is
                missing.
            DataError: Parts are of different checkpoints.
        """
        self._pipeline = pipeline
        self._options = options
        self._network: nn.Module | None = None
        self._autocast: torch.dtype | None = None
        self._compiles = False
        self._guides_by_constant = False  # whether the negative prompt's velocity has no gradient
        # Without a VAE the scale factor is unknown and unused.
        side = self.latent_pixels_per_token * pipeline.vae_scale_factor
        self._rows, self._columns = options.height // side, options.width // side
        check_limits(self, pipeline, options)
        if options.attention_backend in (None, "native"):
            leave_out_cudnn()
        if options.attention_backend is not None and pipeline.transformer is not None:
            set_backend(pipeline.transformer, options.attention_backend)

    @property
    def grid_limit(self) -> int | None:
        """Most rows or columns of tokens for which the network has positions; None: it computes them."""
        return None

    @property
    def text_limit(self) -> int | None:
        """Most text tokens for which the network has positions, at this image size; None: it computes them."""
        return None

    @abstractmethod
    def text_tensors(self, prompts: Sequence[str]) -> Mapping[str, Tensor]:
        """The text encoders' outputs [B, ...] of B prompts, by the names that `network_output` takes."""

    @classmethod
    def token_count(cls, tokenizer: Any, prompt: str) -> int:
        """Tokens of a prompt, with the template around it, that count for the text encoder's limit."""
        return len(tokenizer(prompt, verbose=False)["input_ids"])

    @abstractmethod
    def text_example(self, tokens: int) -> Mapping[str, Tensor]:
        """Tensors [1, ...] of the shapes and types of `text_tensors` for a prompt of `tokens` tokens, without encoders.

        `make plan` reads sizes off them. A mask says that all tokens are there; other values do not matter.
        """

    def source_tensors(self, pictures: Tensor) -> Mapping[str, Tensor]:
        """Tensors [B, ...] of source pictures [B, 3, H, W] in [-1, 1], by the names that `network_output` takes."""
        raise edits_nothing(type(self).__module__)

    @abstractmethod
    def network_output(self, network: nn.Module, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Velocity [B, L, D] by one pass of the network.

        Args:
            network: The velocity network, or a module around it.
            x: States [B, L, D] in the checkpoint's type.
            t: Noise levels [B] in [0, 1], float32: pipelines differ in where they round them.
            text: Result of `text_tensors` on the same device, in the checkpoint's type.
        """

    def vae_latents(self, latents: Tensor) -> Tensor:
        """Latents as the VAE decodes them, of packed latents [B, L, D] in the checkpoint's type."""
        config = self._pipeline.vae.config
        scaled: Tensor = to_pixels(latents, self._rows) / config.scaling_factor + config.shift_factor
        return scaled

    @classmethod
    def load(cls, options: LoadOptions, parts: Sequence[Part] = ("text", "transformer", "vae")) -> Self:
        """Load parts of a checkpoint.

        Args:
            options: Checkpoint and settings.
            parts: Parts to load; the others take no memory.

        Raises:
            DataError: The checkpoint is missing, incomplete or of another family.
            ConfigError: Sizes of images or texts do not fit the checkpoint, a folder has a revision, or the attention
                backend does not work here.
        """
        # The (small) VAE determines the network's token grid, and encodes pictures to edit.
        needed = {*parts, "vae"} if "transformer" in parts or cls.edits else {*parts}
        wanted = {name for part in needed for name in cls.components[part]}
        left_out = dict.fromkeys({n for names in cls.components.values() for n in names} - wanted)
        family = cls(load_pipeline(cls.pipeline_class, options, sorted(wanted), left_out), options)
        if "transformer" in parts:
            family._try_attention(trains=False)
        return family

    @property
    def latent_shape(self) -> tuple[int, int]:
        """(L, D) of the packed latents at the configured image size."""
        return self._rows * self._columns, int(self.transformer.config.in_channels)

    @property
    def device(self) -> torch.device:
        """Device of `LoadOptions.device`."""
        return torch.device(self._options.device)

    @property
    def transformer(self) -> Any:
        """Velocity network."""
        network = self._pipeline.transformer
        if network is None:
            raise ValueError('the part "transformer" was not loaded: name it in parts=')
        return network

    def pipeline_times(self, num_steps: int) -> Tensor:
        """Noise levels [S + 1] by the checkpoint's scheduler; see `Family.pipeline_times`."""
        scheduler = self._pipeline.scheduler
        return scheduler_times(scheduler, num_steps, self.dynamic_shift(num_steps), is_even=self.grid_is_even)

    def dynamic_shift(self, num_steps: int) -> float:
        """Logarithm of the shift by image size, of a scheduler that takes one."""
        del num_steps  # other families depend on it
        return linear_shift(self._pipeline.scheduler, self._rows * self._columns)

    @torch.no_grad()
    def encode(
        self, prompts: Sequence[str], sources: Sequence[Picture] | None = None, negative: str | None = None
    ) -> Conditioning:
        """The text encoders' outputs, and the source pictures' latents; see `Family.encode`."""
        if self._pipeline.text_encoder is None:
            raise ValueError('the part "text" was not loaded: name it in parts=')
        edited = {} if sources is None else self.source_tensors(as_pixels(sources, self.device))
        return Conditioning({**self.text_tensors(prompts), **edited})

    def velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        """Velocity at packed latents: v(c), or with classifier-free guidance v(n) + scale * (v(c) - v(n)).

        c is the prompt and n the negative one. Source: Ho and Salimans 2022, arXiv:2207.12598, Eq. (6), whose w is
        scale - 1.

        Args:
            x: States [B, L, D].
            t: Noise levels [B] in [0, 1], float32.
            conditioning: B prompts.

        Returns:
            Velocity [B, L, D] in the dtype of `x`.

        Raises:
            ValueError: There is guidance, but no negative prompt.
        """
        if not self._compiles or torch.is_grad_enabled():
            return self._velocity(x, t, conditioning)
        with graphs_of_training():
            return self._velocity(x, t, conditioning).detach()

    def _velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        """`velocity`, by the graphs of the present mode."""
        dtype = self._options.dtype
        states, text = x.to(dtype), self._inputs(conditioning.tensors, x.device)
        with self._precision(x.device):
            if self._options.cfg_scale == 1:
                return self._pass(states, t, text).to(x.dtype)
            negative = self._inputs(conditioning.negative or {}, x.device)
            constant = without_backward(compiles=self._compiles) if self._guides_by_constant else None
            scale, passes = self._options.cfg_scale, self._options.cfg_passes
            away, towards = away_and_towards(self._pass, states, t, text, negative, passes, constant)
            return self.guided(towards, away, scale).to(x.dtype)

    def unused_modules(self) -> Sequence[nn.Module]:
        """Modules of the transformer whose output it drops. They stay as they are: replicas wait for each gradient."""
        return ()

    def guided(self, towards: Tensor, away: Tensor, scale: float) -> Tensor:
        """Velocity [B, L, D] of the prompts' and the negative prompt's; families with another rule replace it."""
        return away + scale * (towards - away)

    def _inputs(self, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        dtype = self._options.dtype
        return {n: v.to(device, dtype if v.is_floating_point() else None) for n, v in tensors.items()}

    def _pass(self, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        return self.network_output(self.transformer if self._network is None else self._network, x, t, text)

    def _try_attention(self, *, trains: bool) -> None:
        """Raise ConfigError if the attention backend does not work here. The weights must not be sharded yet."""
        if (backend := self._options.attention_backend) is not None:
            try_backend(self.transformer, backend, self._precision(self.device), trains=trains)

    def _precision(self, device: torch.device) -> AbstractContextManager[object]:
        if self._autocast is None:
            return nullcontext()
        # The cache would keep the casts of all weights until the end of the pass. A pass uses each weight once.
        return torch.autocast(device.type, self._autocast, cache_enabled=False)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Images [B, 3, H, W] in [0, 1] of packed latents [B, L, D]."""
        scaled = self.vae_latents(latents.to(self._options.dtype))
        images: Tensor = self._pipeline.vae.decode(scaled, return_dict=False)[0]
        if images.ndim == 5:  # of a VAE for videos: one frame
            images = images.squeeze(2)
        return (images.float() / 2 + 0.5).clamp(0, 1)

    def move_decoder(self, device: torch.device | str) -> None:
        """Move the VAE; see `Family.move_decoder`."""
        self._pipeline.vae.to(device)

    def prepare_training(self, options: TuningOptions, seed: int, spread: Spread | None = None) -> None:
        """Make the transformer trainable in place; see `Family.prepare_training`."""
        network = self.transformer
        if has_lora(network) or any(weight.requires_grad for weight in network.parameters()):
            raise ValueError("the transformer is already prepared or has an adapter: load the family again")
        self._autocast, self._compiles = options.autocast, will_compile(options.compiles, network, self.device)
        self._guides_by_constant = options.guidance_gradient == "conditional"
        if self._compiles:
            compile_blocks(network)
        if options.lora_rank is not None:
            add_lora(network, options, seed)
            self._try_attention(trains=True)
            if spread is not None:
                spread(network, None)
        else:
            is_half = self._options.dtype != torch.float32
            if is_half:
                self._autocast = options.autocast or self._options.dtype
            self._try_attention(trains=True)
            if spread is not None:
                # Autocast casts the weights of a pass to its type anyway; gathered in it, they are half as many bytes.
                spread(network, self._autocast)
            if is_half:
                # An update of 1e-6 is far below the resolution of bfloat16 and would be lost; float32 keeps it.
                network.float()
            network.requires_grad_(True)
        for module in self.unused_modules():
            module.requires_grad_(False)
        if options.gradient_checkpointing:
            recompute(network, float(options.gradient_checkpointing))

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """Adapter weights if there is an adapter, otherwise all weights of the transformer."""
        network = self.transformer
        yield from lora_parameters(network) if has_lora(network) else network.parameters()

    def trainable_state(self) -> dict[str, Tensor]:
        """The weights of `trainable_parameters` by name; see `Family.trainable_state`."""
        network = self.transformer
        return lora_state(network) if has_lora(network) else dict(network.state_dict())

    def policy_state(self) -> dict[str, Tensor]:
        """The trained weights, unsharded and in the type of the saved file; see `Family.policy_state`."""
        dtype = torch.float32 if has_lora(self.transformer) else self._options.dtype
        return {name: full_tensor(value.to(dtype)) for name, value in self.trainable_state().items()}

    def load_trainable_state(self, state: Mapping[str, Tensor | StoredTensor]) -> None:
        """Restore the result of `trainable_state`; DataError if it belongs to other weights."""
        load_exactly(self.trainable_state(), state)

    def use_network(self, network: nn.Module) -> None:
        """Run `velocity` through `network`, a module around the transformer."""
        if not any(module is self.transformer for module in network.modules()):
            raise ValueError(f"the network must contain the transformer, got a {type(network).__name__}")
        self._network = network

    def reference(self) -> VelocityModel:
        """The reference policy: the adapter off, or a frozen copy of the current weights."""
        return WithoutLora(self) if has_lora(self.transformer) else self.frozen_copy()

    def frozen_copy(self) -> Self:
        """A second model with a copy of the velocity network, sharded as it is. The other parts are shared."""
        network = self.transformer
        twin = sharded_copy(network, self._autocast) if is_sharded(network) else copy.deepcopy(network)
        copied = self.using(twin.requires_grad_(False).eval())
        copied._autocast, copied._compiles = self._autocast, self._compiles
        if self._compiles:
            compile_blocks(twin)
        return copied

    def with_transformer(self, path: Path) -> Self:
        """A second, frozen model with a saved transformer or adapter; see `Family.with_transformer`."""
        network = self.transformer
        if policy_in(path).is_file() and not has_lora(network) and any(w.requires_grad for w in network.parameters()):
            raise ValueError(f"{path}: an adapter needs the base model, but these weights are trained")
        saved = saved_network(network, path, self.original_layers, self._options)
        return self.using(saved.to(self._options.device))

    def start_state(self, path: Path, options: TuningOptions) -> dict[str, Tensor]:
        """Trained weights of a saved policy; see `Family.start_state`."""
        return start_state(self.transformer, path, self.original_layers, options)

    @contextmanager
    def replaced_by(self, path: Path) -> Iterator[Self]:
        """Context of a trained model in this one's place; see `Family.replaced_by`."""
        if policy_in(path).is_file():
            yield self.with_transformer(path)
            return
        network = self.transformer
        place = network.device
        network.to("cpu")
        try:
            yield self.with_transformer(path)
        finally:
            release_memory()
            network.to(place)

    def resized(self, height: int, width: int) -> Self:
        """A second model for images of another size, by the same rules. All parts are shared."""
        return type(self)(self._pipeline, replace(self._options, height=height, width=width))

    def using(self, network: nn.Module) -> Self:
        """A second model around `network`, which is not copied. The other parts are shared."""
        parts = {**self._pipeline.components, "transformer": network}
        return type(self)(self.pipeline_class(**parts), self._options)

    def save_transformer(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """Save the adapter if there is one, otherwise the transformer in the checkpoint's type."""
        if has_lora(self.transformer):
            save_lora(self.transformer, state, folder)
            return
        # A new network, because the trained one may have wider or sharded weights.
        saved = {name: value.to(self._options.dtype) for name, value in state.items()}
        network_with(self.network_class, self.transformer.config, saved).save_pretrained(folder)
