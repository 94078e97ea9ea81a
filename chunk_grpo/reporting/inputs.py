"""Settings and input tables of the report, from params.yaml and the artifacts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import yaml

from chunk_grpo.artifacts import Location, RunManifest, SchemaName, find_files, join, read_manifest, read_table
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.artifacts.pictures import INDEX
from chunk_grpo.artifacts.table_checks import check_scale
from chunk_grpo.config import Params
from chunk_grpo.config.judges import WiseScorer
from chunk_grpo.config.policies import ComparedImages
from chunk_grpo.config.prompts import WisePrompts
from chunk_grpo.config.resolved import resolved_variant
from chunk_grpo.config.scorers import AnyScorer, GenEvalScorer
from chunk_grpo.reporting.evidence import (
    BASE,
    GIVEN,
    MODES,
    Evidence,
    PromptKind,
    ReportSettings,
    ScorerUse,
    Source,
    TrainingSettings,
)
from chunk_grpo.reporting.variant_summary import images_of, origin, recipe


def settings_from(params: Params) -> ReportSettings:
    """Settings of the report; the plan shown is that of the first variant with a chunk objective, if any."""
    variants = params.variants
    trained = [variant.plan for variant in variants.values()]
    shown = next((v.plan for v in variants.values() if v.objective == "chunk"), trained[0])
    guided = [n for n, plan in params.chunks.plans.items() if plan.kind == "guided" and n != shown]
    return ReportSettings(
        title=title_of(params),
        preset=params.composed_from,
        model=", revision ".join(filter(None, (params.model.checkpoint, params.model.revision))),
        variants=tuple(variants),
        policies={
            name: GIVEN if isinstance(policy, ComparedImages) else MODES for name, policy in params.policies.items()
        },
        recipes={name: recipe(variant) for name, variant in variants.items()}
        | {name: origin(policy) for name, policy in params.policies.items()},
        other_plans=tuple(name for name in params.chunks.plans if name not in trained),
        rewards=params.rewards,
        measured=tuple(_use(name, scorer) for name, scorer in params.scorers.items()),
        prompt_kinds=_prompt_kinds(params),
        training=_training_settings(params),
        num_steps=params.generate.num_steps,
        base_steps=params.generate.base_steps,
        shown_plan=shown,
        guided_plan=guided[0] if guided else None,
        grid_prompts=params.report.grid_prompts,
        seed=params.report.seed,
        train_seeds=params.train.seeds,
        image_seed=params.generate.seed,
        images_per_prompt=params.generate.images_per_prompt,
        parameters=yaml.safe_dump(
            params.model_dump(mode="json", exclude={"executors", "pools"}), sort_keys=False, allow_unicode=True
        ),
    )


def title_of(params: Params) -> str:
    """Heading of the report and of exported policies."""
    model = params.model.checkpoint.rstrip("/").rpartition("/")[2]
    return params.report.title or f"{model}, trained for {' + '.join(params.rewards)}"


def _use(name: str, scorer: AnyScorer) -> ScorerUse:
    judge = scorer if isinstance(scorer, WiseScorer) else None
    kind = "geneval-graded" if isinstance(scorer, GenEvalScorer) and scorer.reward == "graded" else scorer.kind
    return ScorerUse(name, kind, scorer.splits, scorer.value_scale, judge)


def _prompt_kinds(params: Params) -> dict[str, PromptKind]:
    found = {"eval": PromptKind(params.prompts.source), "wise": PromptKind("shapes")}
    for split, source in params.prompts.benchmarks.items():
        found[split] = PromptKind(source.kind, isinstance(source, WisePrompts) and bool(source.rewritten))
    return found


def _training_settings(params: Params) -> TrainingSettings:
    heldout, variants = params.train.heldout, params.variants
    return TrainingSettings(
        iterations=params.train.iterations,
        images={name: images_of(params, name) for name in variants},
        clip_ranges={name: resolved_variant(params, name).limits for name in variants},
        unseen=tuple(name for name in heldout.scorers if name not in params.rewards),
        decisive=f"heldout/{heldout.scorers[0]}" if heldout.scorers else "heldout_reward",
        keeps_best=heldout.keep_best,
        single_chunks=any(variant.train_chunks is not None for variant in variants.values()),
        chunk_rewards=any(variant.chunk_rewards is not None for variant in variants.values()),
        heldout_prompts=heldout.num_prompts,
        heldout_images=heldout.images_per_prompt,
        num_steps=params.sampling.num_steps,
    )


def read_evidence(at: Layout, settings: ReportSettings, *, partial: bool = False) -> Evidence:
    """Read all input of the report but the images, of which `Evidence` has the paths.

    A missing table is a DataError. With `partial`, of an unfinished run on this machine, what it lacks is left out.
    """

    def there(path: str) -> bool:
        return not partial or Path(path).is_file()

    shown_seed, images = min(settings.train_seeds), {BASE: at.drawn(BASE)}
    images |= {name: at.drawn(name) for name in settings.policies}
    images |= {variant: at.drawn(variant, shown_seed) for variant in settings.variants}
    plans = {p: at.plan(p) for p in (settings.shown_plan, settings.guided_plan) if p is not None}
    metrics = {
        v: {seed: path for seed in settings.train_seeds if there(path := at.metrics(v, seed))}
        for v in settings.variants
    }
    scored = [p for p in (BASE, *settings.compared) if all(there(at.scored(p, u.name)) for u in settings.measured)]
    return Evidence(
        prompts=read_source(at.prompts, "prompts"),
        profile=read_source(at.profile, "l1_profile") if there(at.profile) else None,
        plans={name: read_source(path, "chunk_plan", {"plan": name}) for name, path in plans.items() if there(path)},
        metrics={variant: read_metrics(variant, paths) for variant, paths in metrics.items() if paths},
        scores={
            (p, use.name): read_scores(p, use, at.scored(p, use.name)) for p in scored for use in settings.measured
        },
        images={policy: path for policy, path in images.items() if there(path)},
        runs=tuple(sorted(_manifests(at.runs, settings), key=lambda run: (run.started_at, run.stage))),
        pictures=at.pictures if there(join(at.pictures, INDEX)) else None,
    )


def read_source(path: Location, schema: SchemaName, of: Mapping[str, object] | None = None) -> Source:
    """A table with its path; `of` and errors as in `read_table`."""
    return Source(str(path), read_table(path, schema, of))


def read_scores(policy: str, use: ScorerUse, path: Location) -> Source:
    """Read a policy's scores by a scorer. DataError: the table is of another one, or a score is not on the scale."""
    found = read_source(path, "scores", {"policy": policy, "scorer": use.name})
    check_scale(found.table, path, use.scale.low, use.scale.high)
    return found


def read_metrics(variant: str, paths: Mapping[int, Location]) -> Source:
    """Read a variant's metrics, one table per training seed. DataError: a table is of another variant or seed."""
    found = [
        read_table(path, "train_metrics", {"variant": variant, "train_seed": seed}) for seed, path in paths.items()
    ]
    return Source(str(next(iter(paths.values()))), pa.concat_tables(found))


_SPLITS = ("profile", "evaluation")
"""What encode_prompts runs for, in every run."""


def _manifests(folder: str, settings: ReportSettings) -> Iterator[RunManifest]:
    """Manifests of this run. The folder may have others, of earlier variants, seeds and scorers.

    What a stage runs for stands after the @ of its name: a variant, training seed, compared policy, scorer, or a pair.
    """
    scorers = [use.name for use in settings.measured]
    seeds = list(map(str, settings.train_seeds))
    pairs = {f"{name}-{of}" for name in settings.compared for of in (*seeds, *scorers)}
    items = {"", *_SPLITS, *seeds, *scorers, *settings.compared, *pairs}
    for path in find_files(folder, "*.json"):
        run = read_manifest(path)
        stage, _, item = run.stage.partition("@")
        if stage != "report" and item in items:
            yield run
