"""Export a trained policy: for diffusers, for ComfyUI, or merged into the transformer, with a model card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import jinja2

from chunk_grpo.artifacts import output_dir, read_json, write_text
from chunk_grpo.config import Params, load_params
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import Family
from chunk_grpo.families.export import comfyui_lora, merged
from chunk_grpo.library.model import Model
from chunk_grpo.reporting.variant_summary import mix_text, recipe

Kind = Literal["diffusers", "comfyui", "merged"]


def export(checkout: Path, variant: str, seed: int, kind: Kind, out: Path) -> None:
    """Write a policy of a finished run, with a README.md that says what it is.

    Args:
        checkout: Checkout with the run.
        variant: Name of the variant.
        seed: Training seed.
        kind: "diffusers": as it was trained. "comfyui": an adapter in one file, for ComfyUI. "merged": a transformer
            that has the adapter in its weights.
        out: Folder to write; it must not exist.

    Raises:
        ConfigError: There is no such variant or seed, or the folder exists.
        DataError: The run is not finished, or is no adapter where one is needed.
    """
    params = load_params(checkout / "params.yaml")
    if variant not in params.variants or seed not in params.train.seeds:
        raise ConfigError(
            f"{checkout / 'params.yaml'}: has the variants {', '.join(params.variants)} with the training seeds "
            f"{', '.join(map(str, params.train.seeds))}, got {variant} with seed {seed}"
        )
    if out.exists():
        raise ConfigError(f"{out}: exists; name another folder, or remove this one")
    trained = checkout / "artifacts" / "train" / variant / f"seed-{seed}" / "transformer"
    if not trained.is_dir():
        raise DataError(f"{trained}: no such folder; run `dvc repro` there, or `dvc pull`")
    name = f"{variant}-seed-{seed}"
    with output_dir(str(out)) as draft:
        match kind:
            case "diffusers":
                shutil.copytree(trained, draft, dirs_exist_ok=True)
            case "comfyui":
                comfyui_lora(trained, draft / f"{name}.safetensors")
            case "merged":
                merged(_base(params, checkout), trained, draft)
        write_text(card(params, checkout, variant, seed, kind), str(draft / "README.md"))


def card(params: Params, checkout: Path, variant: str, seed: int, kind: Kind) -> str:
    """Model card: base, data, reward, settings, the report's intervals, a note on the licence."""
    loader = jinja2.PackageLoader("chunk_grpo", "library/templates")
    environment = jinja2.Environment(
        loader=loader,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    report = checkout / "artifacts" / "report" / "summary.json"
    settings = params.model_dump(mode="json", exclude={"pools", "trackers", "executors"})
    return environment.get_template("card.md").render(
        params=params,
        model=params.model,
        train=params.train,
        variant=variant,
        seed=seed,
        kind=kind,
        is_on_hub=not (checkout / params.model.checkpoint).exists(),
        reward=mix_text(params.rewards),
        method=recipe(params.variants[variant]),
        commit=_commit(checkout, variant, seed),
        summary=read_json(str(report)) if report.exists() else None,
        settings=json.dumps(settings, indent=1),
    )


def _commit(checkout: Path, variant: str, seed: int) -> str:
    path = checkout / "artifacts" / "runs" / f"train@{variant}-{seed}.json"
    return str(read_json(str(path))["commit"]) if path.exists() else "unknown"


def _base(params: Params, checkout: Path) -> Family:
    local = checkout / params.model.checkpoint
    chosen = params.model.model_copy(update={"checkpoint": str(local)}) if local.exists() else params.model
    return Model(chosen, cfg_scale=1.0).loaded("transformer")
