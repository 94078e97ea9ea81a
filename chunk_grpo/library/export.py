"""Export a trained policy: for diffusers, for ComfyUI, or merged into the transformer, with a model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import jinja2

from chunk_grpo.artifacts import output_dir, read_json, write_text
from chunk_grpo.config import Params, load_params
from chunk_grpo.config.models import ModelParams, SamplingParams
from chunk_grpo.config.training import TrainParams
from chunk_grpo.config.variants import VariantParams
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import Family
from chunk_grpo.families.export import comfyui_lora, merged
from chunk_grpo.library.model import Model
from chunk_grpo.library.training import Policy, TrainingRecord
from chunk_grpo.reporting.comparisons import interval_text, signed
from chunk_grpo.reporting.statistics import Interval
from chunk_grpo.reporting.variant_summary import mix_text, recipe

Kind = Literal["diffusers", "comfyui", "merged"]


@dataclass(frozen=True)
class _Measured:
    """What a card says about scores.

    Attributes:
        text: Sentences above the table.
        header: Column names after the first, empty one.
        rows: Cells of each row.
    """

    text: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class _Card:
    """Content of a model card.

    Attributes:
        title: Its heading.
        subject: What was exported, as the start of a sentence.
        hub_id: Base model on the hub; None: a local folder.
        facts: Rows of its first table, each a label and a text.
        measured: Scores of the policy.
        settings: All settings.
    """

    title: str
    subject: str
    hub_id: str | None
    facts: Sequence[tuple[str, str]]
    measured: _Measured
    settings: Mapping[str, Any]


def export(
    policy: Policy | str | Path,
    out: str | Path,
    to: Kind = "diffusers",
    *,
    name: str = "policy",
    measured: Mapping[str, Interval] | None = None,
) -> None:
    """Write a trained policy for other programs, with a README.md that says what it is.

    Args:
        policy: The policy, or its folder.
        out: Folder to write; it must not exist.
        to: "diffusers": as it was trained. "comfyui": an adapter in one file, for ComfyUI. "merged": a transformer that
            has the adapter in its weights.
        name: Name of the policy, in the card and of the file for ComfyUI.
        measured: Results of `compare` for the card, by what was measured.

    Raises:
        ConfigError: `to` is unknown, or the folder exists.
        DataError: The folder holds no policy of `train`, or no adapter where one is needed.
    """
    if to not in get_args(Kind):
        raise ConfigError(f"to: must be one of {', '.join(get_args(Kind))}, got {to!r}")
    trained = policy.folder if isinstance(policy, Policy) else Path(policy)
    record = TrainingRecord.of(trained)
    rows = [
        (label, f"{signed(each.mean)} ({interval_text(each)})") for label, each in (measured or {}).items()
    ]
    text = "Differences with 95 % intervals." if rows else "Nothing was given to this card."
    card = _Card(
        name,
        f"Policy `{name}`, training seed {record.train.seeds[0]}, trained",
        None if Path(record.model.checkpoint).exists() else record.model.checkpoint,
        _facts(
            record.model,
            record.train,
            record.sampling,
            record.variant,
            f"{record.num_prompts} for training",
            record.reward,
        ),
        _Measured(text, ["difference"] if rows else [], rows),
        record.model_dump(mode="json"),
    )
    _write(trained, Path(out), to, name, card, lambda: _base(record.model, record.model.checkpoint))


def export_run(checkout: Path, variant: str, seed: int, kind: Kind, out: Path) -> None:
    """Write a policy of a finished run, with a README.md that says what it is.

    Args:
        checkout: Checkout with the run.
        variant: Name of the variant.
        seed: Training seed.
        kind: As `to` of `export`.
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
    trained = checkout / "artifacts" / "train" / variant / f"seed-{seed}" / "transformer"
    local = checkout / params.model.checkpoint
    facts = _facts(
        params.model,
        params.train,
        params.sampling,
        params.variants[variant],
        f"{params.prompts.source}, {params.prompts.train_count} for training",
        mix_text(params.rewards),
    )
    card = _Card(
        params.report.title,
        f"Policy `{variant}`, training seed {seed}, trained",
        None if local.exists() else params.model.checkpoint,
        [*facts, ("commit", _commit(checkout, variant, seed))],
        _report(params, checkout, variant),
        params.model_dump(mode="json", exclude={"pools", "trackers", "executors"}),
    )
    base = str(local) if local.exists() else params.model.checkpoint
    _write(trained, out, kind, f"{variant}-seed-{seed}", card, lambda: _base(params.model, base))


def _write(trained: Path, out: Path, kind: Kind, name: str, card: _Card, base: Callable[[], Family]) -> None:
    """Write the weights and the card, all or nothing.

    Raises:
        ConfigError: The folder exists.
        DataError: There is no policy, or no adapter where one is needed.
    """
    if out.exists():
        raise ConfigError(f"{out}: exists; name another folder, or remove this one")
    if not trained.is_dir():
        raise DataError(f"{trained}: no such folder; run `dvc repro` there, or `dvc pull`")
    with output_dir(str(out)) as draft:
        match kind:
            case "diffusers":
                shutil.copytree(trained, draft, dirs_exist_ok=True)
            case "comfyui":
                comfyui_lora(trained, draft / f"{name}.safetensors")
            case "merged":
                merged(base(), trained, draft)
        write_text(_text(card, kind), str(draft / "README.md"))


def _text(card: _Card, kind: Kind) -> str:
    loader = jinja2.PackageLoader("chunk_grpo", "library/templates")
    environment = jinja2.Environment(
        loader=loader,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    settings = json.dumps(card.settings, indent=1)
    return environment.get_template("card.md").render(card=card, kind=kind, settings=settings)


def _facts(
    model: ModelParams,
    train: TrainParams,
    sampling: SamplingParams,
    variant: VariantParams,
    prompts: str,
    reward: str,
) -> list[tuple[str, str]]:
    """First table of a card."""
    revision = f" at {model.revision}" if model.revision else ""
    lora = train.lora
    return [
        ("base model", f"{model.checkpoint}{revision}, family {model.family}"),
        ("prompts", prompts),
        ("training reward", reward),
        ("method", recipe(variant)),
        (
            "adapter",
            f"rank {lora.rank}, alpha {lora.alpha:g}, {', '.join(lora.targets)}"
            if lora
            else "none: all weights were trained",
        ),
        (
            "images",
            f"{train.iterations} iterations of {train.prompts_per_iteration} prompts x {train.group_size} images",
        ),
        (
            "updates",
            f"{train.updates_per_iteration} an iteration, learning rate {train.learning_rate:g}, "
            f"clip range {train.clip_range:g}",
        ),
        (
            "rollouts",
            f"{sampling.num_steps} steps, eta {sampling.eta:g}, cfg scale {sampling.cfg_scale:g}, "
            f"{model.width} x {model.height} pixels",
        ),
    ]


def _report(params: Params, checkout: Path, variant: str) -> _Measured:
    """Scores from the report of a run."""
    path = checkout / "artifacts" / "report" / "summary.json"
    if not path.exists():
        return _Measured("The run has no report.")
    summary = read_json(str(path))
    base, generate = summary["base"], params.generate
    rows = [["base", *(f"{value:.3f}" for value in base.values())]]
    for mode, found in summary[variant].items():
        rows.append([mode, *(_cell(found[name]) for name in base)])
    text = (
        f"On {summary['prompts']} held-out prompts, over {summary['train_seeds']} training seeds; difference from the\n"
        "base model on the same prompts and noise, with 95 % intervals. Hybrid: the base model takes the last\n"
        f"{generate.base_steps} of {generate.num_steps} steps."
    )
    return _Measured(text, list(base), rows)


def _cell(found: Mapping[str, Any]) -> str:
    """Mean of a score, with its difference from the base if that has an interval."""
    if found["low"] is None:
        return f"{found['mean']:.3f}"
    return f"{found['mean']:.3f}, {found['difference']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"


def _commit(checkout: Path, variant: str, seed: int) -> str:
    path = checkout / "artifacts" / "runs" / f"train@{variant}-{seed}.json"
    return str(read_json(str(path))["commit"]) if path.exists() else "unknown"


def _base(model: ModelParams, checkpoint: str) -> Family:
    return Model(model.model_copy(update={"checkpoint": checkpoint}), cfg_scale=1.0).loaded("transformer")
