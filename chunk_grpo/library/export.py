"""Export a trained policy: for diffusers, for ComfyUI, or merged into the transformer, with a model card."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import jinja2
from ruamel.yaml import YAML

from chunk_grpo.artifacts import output_dir, read_json, write_text
from chunk_grpo.artifacts.layout import ARTIFACTS, Layout
from chunk_grpo.config import Params, VariantParams, load_params, resolve
from chunk_grpo.config.models import ModelParams, SamplingParams
from chunk_grpo.config.training import TrainParams
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.registry import family_class
from chunk_grpo.families.weights.policy import comfyui_lora, merged
from chunk_grpo.library.model import Model
from chunk_grpo.library.training import Policy, TrainingRecord
from chunk_grpo.reporting.comparisons import SEEN, difference_text, digits_of, interval_text
from chunk_grpo.reporting.inputs import title_of
from chunk_grpo.reporting.markdown import escaped
from chunk_grpo.reporting.statistics import Interval
from chunk_grpo.reporting.variant_summary import mix_text, recipe

Kind = Literal["diffusers", "comfyui", "merged"]


@dataclass(frozen=True)
class _Measured:
    """What a card says about scores."""

    text: str
    """Sentences above the table."""
    header: Sequence[str] = ()
    """Column names after the first, empty one."""
    rows: Sequence[Sequence[str]] = ()
    """Cells of each row."""


@dataclass(frozen=True)
class _Card:
    """Content of a model card."""

    title: str
    """Its heading."""
    name: str
    """Name of the policy or variant."""
    seed: int
    """Training seed."""
    model: ModelParams
    """Base model."""
    train: TrainParams
    """Sizes and rates."""
    sampling: SamplingParams
    """Sampler of the rollouts."""
    variant: VariantParams
    """Objective, plan and settings of the variant."""
    prompts: str
    """Where the prompts are from, and their number."""
    reward: str
    """Training reward."""
    measured: _Measured
    """Scores of the policy."""
    settings: Mapping[str, Any]
    """All settings."""
    steps: int | None = None
    """Steps of the evaluation images; None: not recorded."""
    commit: str | None = None
    """Commit that trained it; None: not recorded."""


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
    rows = [(label, f"{difference_text(each)} ({interval_text(each)})") for label, each in (measured or {}).items()]
    text = "Differences with 95 % intervals." if rows else "Nothing was given to this card."
    card = _Card(
        title=name,
        name=name,
        seed=record.train.seeds[0],
        model=record.model,
        train=record.train,
        sampling=record.sampling,
        variant=record.variant,
        prompts=f"{record.num_prompts} for training",
        reward=record.reward,
        measured=_Measured(text, ["difference"], rows),
        settings=record.model_dump(mode="json"),
    )
    _write(trained, Path(out), to, name, card, record.model)


def export_run(checkout: Path, variant: str, seed: int, kind: Kind, out: Path) -> None:
    """Write a policy of a finished run, with a README.md that says what it is.

    The card has the settings that the last run's stages have read, not later edits of params.yaml.

    Args:
        checkout: Checkout with the run.
        variant: Name of the variant.
        seed: Training seed.
        kind: As `to` of `export`.
        out: Folder to write; it must not exist.

    Raises:
        ConfigError: There is no such variant or seed, or the folder exists.
        DataError: The run is not finished, the policy was trained with other settings than the last run has read, or
            is no adapter where one is needed.
    """
    settings = Path(Layout.below(checkout).settings)
    if not settings.exists():
        raise DataError(f"{settings}: no such file; run `chunk-grpo run` there, or `dvc pull`")
    params = load_params(settings)
    if variant not in params.variants or seed not in params.train.seeds:
        raise ConfigError(
            f"{settings}: has the variants {', '.join(params.variants)} with the training seeds "
            f"{', '.join(map(str, params.train.seeds))}, got {variant} with seed {seed}"
        )
    trained = Path(Layout.below(checkout).transformer(variant, seed))
    if not trained.is_dir():
        raise DataError(f"{trained}: no such folder; run `chunk-grpo run` there, or `dvc pull`")
    if not _ran_with(checkout, f"train@{variant}-{seed}", f"{ARTIFACTS}/inputs/variants/{variant}.json"):
        raise DataError(
            f"{trained}: was trained with other settings than {settings} has, since the last run was stopped before "
            "its training; finish it by `chunk-grpo run`, or run it with the earlier params.yaml"
        )
    model, local = params.model, checkout / params.model.checkpoint
    card = _Card(
        title=title_of(params),
        name=variant,
        seed=seed,
        model=model,
        train=params.train,
        sampling=params.sampling,
        variant=params.variants[variant],
        prompts=f"{params.prompts.source}, {params.prompts.train_count} for training",
        reward=mix_text(params.rewards),
        measured=_report(params, checkout, variant),
        settings=params.model_dump(mode="json", exclude={"pools", "trackers", "executors"}),
        steps=params.generate.num_steps,
        commit=_commit(checkout, variant, seed),
    )
    base = model.model_copy(update={"checkpoint": str(local)}) if local.exists() else model
    _write(trained, out, kind, f"{variant}-seed-{seed}", card, base)


def _write(trained: Path, out: Path, kind: Kind, name: str, card: _Card, base: ModelParams) -> None:
    """Write the weights and the card, all or nothing."""
    if out.exists():
        raise ConfigError(f"{out}: exists; name another folder, or remove this one")
    with output_dir(str(out)) as draft:
        match kind:
            case "diffusers":
                shutil.copytree(trained, draft, dirs_exist_ok=True)
            case "comfyui":
                comfyui_lora(trained, draft / f"{name}.safetensors")
            case "merged":
                whole = base.model_copy(update={"base_precision": None, "block_swap": 0.0})
                merged(Model(whole, cfg_scale=1.0).loaded("transformer"), trained, draft)
        _forget_folders(draft / "config.json")
        is_on_hub = not Path(base.checkpoint).exists()
        write_text(_text(card, kind, is_on_hub), str(draft / "README.md"))


def _forget_folders(config: Path) -> None:
    """Remove the folder that diffusers loaded the base model from, which is this machine's."""
    if config.exists():
        content = {key: value for key, value in read_json(str(config)).items() if key != "_name_or_path"}
        write_text(json.dumps(content, indent=2) + "\n", str(config))


def _without_folders(value: Any) -> Any:
    """Settings with the last part alone of each absolute path: a card may be published."""
    if isinstance(value, Mapping):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _text(card: _Card, kind: Kind, is_on_hub: bool) -> str:
    loader = jinja2.PackageLoader("chunk_grpo", "library/templates")
    environment = jinja2.Environment(
        loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False
    )
    environment.filters["escaped"] = escaped
    family = family_class(card.model.family)
    return environment.get_template("card.md").render(
        vars(card),
        kind=kind,
        method=recipe(card.variant),
        own=resolve(card.variant, card.sampling, card.train),
        is_on_hub=is_on_hub,
        base=card.model.checkpoint if is_on_hub else Path(card.model.checkpoint).name,
        pipeline=family.pipeline_class.__name__,
        network=family.network_class.__name__,
        settings=json.dumps(_without_folders(card.settings), indent=1),
    )


def _report(params: Params, checkout: Path, variant: str) -> _Measured:
    """Scores from the report of a run."""
    path = Path(Layout.below(checkout).summary)
    if not path.exists() or not _ran_with(checkout, "report"):
        return _Measured("The run has no report.")
    summary = read_json(str(path))
    base, generate = summary["base"], params.generate
    if list(params.rewards.values()) == [1]:  # the same numbers as its scorer's
        base = {name: value for name, value in base.items() if name != "training_reward"}
    rows = [["base", *(f"{value:.3f}" for value in base.values())]]
    for mode, found in summary[variant].items():
        rows.append([mode, *(_cell(found[name]) for name in base)])
    seeds = f"{summary['train_seeds']} training seed{'s' * (summary['train_seeds'] > 1)}"
    text = (
        f"On {summary['prompts']} held-out prompts, over {seeds}; difference from the base\n"
        "model on the same prompts and noise, with 95 % intervals. Hybrid: the base model takes the last\n"
        f"{generate.base_steps} of {generate.num_steps} steps. Too small to see: less than {SEEN:g} of the standard\n"
        "deviation of the score over the base's images."
    )
    return _Measured(text, list(base), rows)


def _ran_with(checkout: Path, stage: str, *records: str) -> bool:
    """Whether a stage's last run had the settings that the run has read last; `records` are files with some of them.

    By dvc.lock; without an entry there is nothing to compare.
    """
    lock = checkout / "dvc.lock"
    entry = YAML(typ="safe").load(lock)["stages"].get(stage) if lock.exists() else None
    if entry is None:
        return True
    settings = read_json(Layout.below(checkout).settings)
    recorded = next(iter(entry["params"].values()))
    digests = {each["path"]: each.get("md5") for each in entry["deps"]}
    return all(settings.get(key) == value for key, value in recorded.items()) and all(
        hashlib.md5((checkout / path).read_bytes(), usedforsecurity=False).hexdigest() == digests.get(path)
        for path in records
    )


def _cell(found: Mapping[str, Any]) -> str:
    """Mean of a score, with its difference from the base if that has an interval."""
    if found["low"] is None:
        return f"{found['mean']:.3f}"
    digits = digits_of(found["low"], found["high"])
    difference, low, high = (f"{found[name]:+.{digits}f}" for name in ("difference", "low", "high"))
    is_small = found["size"] is not None and abs(found["size"]) < SEEN and found["low"] * found["high"] > 0
    return f"{found['mean']:.3f}, {difference} ({low} to {high}){', too small to see' if is_small else ''}"


def _commit(checkout: Path, variant: str, seed: int) -> str:
    path = Path(Layout.below(checkout).manifest(f"train@{variant}-{seed}"))
    return str(read_json(str(path))["commit"]) if path.exists() else "unknown"
