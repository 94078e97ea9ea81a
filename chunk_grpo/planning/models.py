"""The parts of a FluxPipeline, read from its config.json files: a local folder, or the table of known hub ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.planning.text import T5, Clip
from chunk_grpo.planning.transformer import Transformer
from chunk_grpo.planning.vae import Vae

PARTS = ("transformer", "vae", "text_encoder", "text_encoder_2")

_FLUX_1_DEV: dict[str, dict[str, Any]] = {
    "transformer": {
        "num_attention_heads": 24,
        "attention_head_dim": 128,
        "num_layers": 19,
        "num_single_layers": 38,
        "in_channels": 64,
        "joint_attention_dim": 4096,
        "pooled_projection_dim": 768,
        "guidance_embeds": True,
    },
    "vae": {
        "block_out_channels": (128, 256, 512, 512),
        "layers_per_block": 2,
        "latent_channels": 16,
        "out_channels": 3,
    },
    "text_encoder": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "vocab_size": 49408,
        "max_position_embeddings": 77,
    },
    "text_encoder_2": {
        "d_model": 4096,
        "d_kv": 64,
        "num_heads": 64,
        "d_ff": 10240,
        "num_layers": 24,
        "vocab_size": 32128,
        "relative_attention_num_buckets": 32,
        "feed_forward_proj": "gated-gelu",
    },
}

KNOWN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    # black-forest-labs/FLUX.1-dev, hub commit 3de623fc3c33e44ffbe2bad470d0f45bccf2eb21, as in
    # conf/preset/flux-dev.yaml: the keys on which sizes depend, of config.json in transformer/, vae/, text_encoder/ and
    # text_encoder_2/.
    "black-forest-labs/FLUX.1-dev": _FLUX_1_DEV,
}
"""Configurations of hub ids, so that planning needs no network and no licence."""


@dataclass(frozen=True)
class Model:
    """Sizes of a FluxPipeline.

    Attributes:
        transformer: Velocity network.
        vae: Autoencoder.
        clip: Shorter text encoder, whose pooled output is used.
        t5: Longer text encoder.
    """

    transformer: Transformer
    vae: Vae
    clip: Clip
    t5: T5

    def embedding_elements(self, max_sequence_length: int) -> int:
        """Elements stored of a prompt: T * E of the tokens, and F of the pooled vector."""
        return max_sequence_length * self.t5.width + self.clip.width


def read_model(checkpoint: str) -> Model:
    """Read the sizes of `model.checkpoint`.

    Args:
        checkpoint: Local folder, or a hub id of `KNOWN`.

    Raises:
        ConfigError: The hub id is not in the table.
        DataError: A config.json is missing, not JSON, or lacks a key.
    """
    folder = Path(checkpoint)
    if folder.is_dir():
        found = {part: _read(folder / part / "config.json") for part in PARTS}
    elif checkpoint in KNOWN:
        found = {part: dict(config) for part, config in KNOWN[checkpoint].items()}
    else:
        raise ConfigError(
            f"model.checkpoint: planning reads config.json of a local folder, or knows {', '.join(KNOWN)}; got "
            f"{checkpoint!r}. Download its config.json files (hf download {checkpoint} --include '*/config.json' "
            "--local-dir FOLDER) and set model.checkpoint to the folder."
        )
    makers: dict[str, Any] = dict(zip(PARTS, (Transformer, Vae, Clip, T5), strict=True))
    made: dict[str, Any] = {}
    for part, maker in makers.items():
        try:
            made[part] = maker.from_config(found[part])
        except KeyError as error:
            raise DataError(
                f"{folder / part / 'config.json'}: must hold {error.args[0]!r}; give the checkpoint's own file"
            ) from None
    return Model(*made.values())


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); give a folder in the diffusers layout"
        ) from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); give the checkpoint's own file") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: must be a JSON object; give the checkpoint's own file")
    return content
