"""Rules between the settings of a model and its checkpoint's configuration, checked before the first pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.weights.checkpoint import takes_no_guidance

if TYPE_CHECKING:
    from chunk_grpo.families.diffusers_family import DiffusersFamily

_SIDES = "model.height and model.width, generate.height and generate.width"


def check_limits(family: DiffusersFamily, pipeline: Any, options: LoadOptions) -> None:
    """Check a pipeline of diffusers, which has None for the parts that are not loaded.

    Raises:
        ConfigError: The image size is not a multiple of the token size, or images or texts are too long for the tables
            of positions.
        DataError: Network, VAE and text encoders are of different checkpoints.
    """
    checkpoint, tokens = options.checkpoint, options.max_sequence_length
    network, vae = pipeline.transformer, pipeline.vae
    of_network = {} if network is None else {**network.config, "_class_name": type(network).__name__}
    if options.cfg_scale != 1 and takes_no_guidance(pipeline.config, of_network):
        raise ConfigError(
            f"sampling.cfg_scale and generate.cfg_scale: must be 1 for {checkpoint}, which was distilled to few steps "
            f"without guidance, got {options.cfg_scale:g}; set both to 1, or choose its base model"
        )
    if vae is not None:
        patch = getattr(network.config, "patch_size", 1) if network is not None else 1
        side = max(family.latent_pixels_per_token, family.side_step, int(patch)) * pipeline.vae_scale_factor
        if options.height % side or options.width % side:
            raise ConfigError(
                f"{_SIDES}: must be multiples of {side} for {checkpoint}, got {options.height} and {options.width}"
            )
    if network is not None and vae is not None:
        _check_network(family, vae.config, family.latent_pixels_per_token * pipeline.vae_scale_factor, options)
    for folder, is_limited in family.tokenizers.values():
        number = folder.removeprefix("tokenizer").removeprefix("processor")
        encoder = getattr(pipeline, f"text_encoder{number}", None)
        tokenizer = getattr(pipeline, folder, None)
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
        if encoder is not None and tokenizer is not None:
            text = encoder.config.get_text_config()
            _check_text(f"{checkpoint}/{folder}", tokenizer, text, tokens if is_limited else None)


def _check_network(family: DiffusersFamily, vae: Any, side: int, options: LoadOptions) -> None:
    checkpoint = options.checkpoint
    grid = family.grid_limit
    if grid is not None and max(options.height, options.width) > grid * side:
        raise ConfigError(
            f"{_SIDES}: must be at most {grid * side} for {checkpoint}, whose network has positions for {grid} x "
            f"{grid} tokens of {side} pixels, got {options.height} and {options.width}"
        )
    text = family.text_limit
    if text is not None and options.max_sequence_length > text:
        raise ConfigError(
            f"model.max_sequence_length: must be at most {text} for {checkpoint} and images of {options.height} x "
            f"{options.width} pixels, since its network has no more positions, got {options.max_sequence_length}"
        )
    channels = vae.get("latent_channels", vae.get("z_dim"))
    wanted = family.latent_shape[1] // family.latent_pixels_per_token**2
    if channels is not None and channels != wanted:
        raise DataError(
            f"{checkpoint}: transformer and vae must be of one checkpoint, but the transformer takes {wanted} latent "
            f"channels and the vae has {channels}. Download the checkpoint again, or choose another one."
        )


def _check_text(folder: str, tokenizer: Any, encoder: Any, tokens: int | None) -> None:
    """Check a tokenizer, by its encoder's configuration; `tokens` is the limit in params.yaml, if that counts."""
    if len(tokenizer) > encoder.vocab_size:
        raise DataError(
            f"{folder}: must have at most the {encoder.vocab_size} tokens of the text encoder beside it, got "
            f"{len(tokenizer)}. Download the checkpoint again."
        )
    positions = getattr(encoder, "max_position_embeddings", None)  # T5 has none
    if positions is None:
        return
    if tokens is not None and tokens > positions:
        raise ConfigError(
            f"model.max_sequence_length: must be at most {positions}, the positions of the text encoder of {folder}, "
            f"got {tokens}"
        )
    if tokens is None and tokenizer.model_max_length > positions:
        raise DataError(
            f"{folder}/tokenizer_config.json: model_max_length must be at most {positions}, the positions of the text "
            f"encoder beside it, got {tokenizer.model_max_length}. Download the checkpoint again."
        )
