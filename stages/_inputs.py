"""Inputs shared by several stages: the model of params.yaml, and prompts with their embeddings."""

import json

import torch

from chunk_grpo.artifacts import read_json, read_table
from chunk_grpo.artifacts.tensors import read_tensors
from chunk_grpo.config import Params
from chunk_grpo.errors import DataError
from chunk_grpo.families.base import Conditioning, Family, LoadOptions, Part, default_device
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.families.recorded import require_recorded
from chunk_grpo.families.registry import load_family

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(params: Params, recorded: str, parts: tuple[Part, ...], size: tuple[int, int]) -> Family:
    """Load parts of the base model for images of `size` (height, width).

    Raises:
        DataError: The model differs from the one that the stage inputs recorded in the JSON file `recorded`.
    """
    model = params.model
    require_recorded(model.checkpoint, model.revision, read_json(recorded), recorded)
    options = LoadOptions(
        checkpoint=model.checkpoint,
        revision=model.revision,
        dtype=DTYPES[model.dtype],
        height=size[0],
        width=size[1],
        guidance_scale=model.guidance_scale,
        max_sequence_length=model.max_sequence_length,
        device=default_device(),
    )
    return load_family(model.family, options, parts)


def read_encoded_prompts(
    prompts: str, index: str, tensors: str, splits: tuple[str, ...] | None = None
) -> PromptSet:
    """Read the prompts of `splits` (default: all), in the table's order, with embeddings on the default device.

    Raises:
        DataError: A prompt has no embedding, or these splits have no prompts.
    """
    records = [
        r for r in read_table(prompts, "prompts").to_pylist() if splits is None or r["split"] in splits
    ]
    if not records:
        wanted = f" of the splits {', '.join(splits)}" if splits else ""
        raise DataError(f"{prompts}: must hold prompts{wanted}, got none")
    row_of = {(r["prompt_id"], r["prompt"]): r["row"] for r in read_table(index, "embeddings").to_pylist()}
    names = [(r["prompt_id"], r["prompt"]) for r in records]
    missing = [name for name in names if name not in row_of]
    if missing:
        raise DataError(
            f"{index}: must hold every prompt of {prompts}, got no row for {missing[0][0]!r}, {missing[0][1]!r}; "
            "run `dvc repro`"
        )
    stored = read_tensors(tensors, ("prompt_embeds", "pooled"))
    rows = [row_of[name] for name in names]
    if max(rows) >= len(stored["pooled"]):
        raise DataError(
            f"{tensors}: must hold the {max(rows) + 1} rows that {index} names, got {len(stored['pooled'])}; "
            "run `dvc repro`"
        )
    conditioning = Conditioning(stored["prompt_embeds"], stored["pooled"])
    return PromptSet(
        ids=[r["prompt_id"] for r in records],
        texts=[r["prompt"] for r in records],
        metadata=[json.loads(r["metadata"]) for r in records],
        conditioning=conditioning.rows(rows).to(default_device()),
    )
