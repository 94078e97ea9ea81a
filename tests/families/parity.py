"""Families against their pipelines of diffusers on small random checkpoints.

Each module of chunk_grpo/families/models has a module tests/families/checkpoint_NAME.py, whose `random_pipeline` makes
the checkpoint and whose `CASE` says how the pipeline is called.
"""

import importlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image
from torch import Tensor

from chunk_grpo.config.families import family_names
from chunk_grpo.core.rollout import rollout_ode
from chunk_grpo.families.base import Conditioning, LoadOptions, Part, Picture, velocity_function
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.registry import family_class

PARTS: tuple[Part, ...] = ("text", "transformer", "vae")
PROMPTS = ["a red circle", "two squares", "a cross above a circle", "a blue square and a red cross"]
STEPS = 4


QUICK = ("flux", "sd3", "qwen_image")
"""Families with two, three and one text encoders. The slow tier has the others."""


def names_with_slow_ones() -> list[Any]:
    """Families, as parameters of a test; all but three are slow."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in family_names()]


def module_of(name: str) -> Any:
    """The module with `CASE` and `random_pipeline` of a family."""
    return importlib.import_module(f"tests.families.checkpoint_{name}")


def save_checkpoints(name: str, folder: Path) -> dict[str, Path]:
    """The random checkpoint of a family with its network in several files, and stored in bfloat16."""
    make = module_of(name).random_pipeline
    make().save_pretrained(folder / "sharded", max_shard_size="60KB")
    make().to(torch.bfloat16).save_pretrained(folder / "bf16")
    return {kind: folder / kind for kind in ("sharded", "bf16")}


def options_of(name: str, checkpoint: Path, **options: Any) -> LoadOptions:
    """Options by a family's case, or others."""
    case = module_of(name).CASE
    height, width = case.sizes[0]
    settings = {"height": height, "width": width, "max_sequence_length": case.tokens} | options
    return LoadOptions(str(checkpoint), guidance_scale=case.embedded, **settings)


def load(name: str, checkpoint: Path, parts: Sequence[Part] = PARTS, **options: Any) -> DiffusersFamily:
    """A family by its case's settings."""
    return family_class(name).load(options_of(name, checkpoint, **options), parts)


def as_loaded(name: str, checkpoint: Path, **options: Any) -> DiffusersFamily:
    """As `load`, from files that no test changes: they are read once, and the network is copied."""
    wanted = options_of(name, checkpoint, **options)
    pipeline = _read(name, checkpoint, wanted.dtype).frozen_copy()._pipeline
    return family_class(name)(pipeline, wanted)


@cache
def _read(name: str, checkpoint: Path, dtype: torch.dtype) -> DiffusersFamily:
    return load(name, checkpoint, dtype=dtype)


@cache
def _theirs(checkpoint: Path) -> Any:
    """The pipeline of diffusers."""
    pipeline = DiffusionPipeline.from_pretrained(checkpoint, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def encoded(
    family: DiffusersFamily, prompts: list[str], sources: list[Picture] | None = None, away: str | None = None
) -> Conditioning:
    """Prompts, with source pictures or, unless the family only edits, without, and perhaps a negative prompt."""
    if family.only_edits:
        given = pictures(len(prompts), family._options.height, family._options.width)
        return family.encode(prompts, sources or given, away)
    negative = None if away is None else family.encode([away]).tensors
    return Conditioning(family.encode(prompts, sources).tensors, negative)


def pictures(count: int, height: int, width: int) -> list[Picture]:
    """Random pictures."""
    random = np.random.default_rng(3)
    return list(random.integers(0, 256, (count, height, width, 3), dtype=np.uint8))


def as_images(edited: list[Picture] | None) -> dict[str, object]:
    """Keywords of a call for one prompt, with the first picture; None: it has none."""
    return {} if edited is None else {"image": Image.fromarray(edited[0])}


def differences(
    name: str,
    checkpoint: Path,
    size: tuple[int, int],
    batch: int,
    scale: float,
    passes: int = 1,
    source: tuple[int, int] | None = None,
) -> tuple[float, float]:
    """Largest absolute difference of the final latents over their largest value (or 1), and of pictures in [0, 1].

    `source` is the height and width of the source pictures; None: there are none, or with a family that only edits they
    have the images' size.
    """
    case, (height, width) = module_of(name).CASE, size
    source = size if source is None and family_class(name).only_edits else source
    family = as_loaded(name, checkpoint, height=height, width=width, cfg_scale=scale, cfg_passes=passes)
    noise = torch.randn(batch, *family.latent_shape, generator=torch.Generator().manual_seed(8))
    edited = None if source is None else pictures(batch, *source)
    with torch.no_grad():
        velocity = velocity_function(family, encoded(family, PROMPTS[:batch], edited, case.away))
        latents = rollout_ode(lambda step: velocity, noise, family.pipeline_times(STEPS))[:, -1]
    pipeline = _theirs(checkpoint)
    # Some pipelines take the pictures of one prompt only.
    alone = case.alone or edited is not None
    calls = [[row] for row in range(batch)] if alone else [[*range(batch)]]

    def call(output_type: str) -> Tensor:
        images = [
            pipeline(
                prompt=[PROMPTS[row] for row in rows], latents=case.given(family, noise[rows]),
                output_type=output_type, height=height, width=width, num_inference_steps=STEPS,
                **case.limit, **case.keywords(scale, [case.away] * len(rows)), **case.of_size(height, width),
                **as_images(edited and edited[rows[0] :]),
            ).images for rows in calls
        ]  # fmt: skip
        return torch.cat(images)

    with case.given_sources(*(source or size)):
        theirs, drawn = call("latent"), case.drawn(call("pt"))
    ours = case.found(family, latents)
    apart = (ours - theirs).abs().max() / max(1.0, float(theirs.abs().max()))
    return float(apart), float((family.decode(latents) - drawn).abs().max())
