"""Report: intervals, tables, plots and images of all policies, as a page, as Markdown and as numbers."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow.compute as pc
import yaml

from chunk_grpo.artifacts import (
    RunManifest,
    SchemaName,
    find_files,
    join,
    output_dir,
    read_manifest,
    read_table,
)
from chunk_grpo.config import Params
from chunk_grpo.reporting.evidence import BASE, Evidence, ReportSettings, Source
from chunk_grpo.reporting.page import build_report
from stages._stage import argument, run_stage


@dataclass(frozen=True)
class Arguments:
    prompts: str = field(metadata=argument("prompts/1, Parquet"))
    profile: str = field(metadata=argument("l1_profile/1, Parquet"))
    chunks: str = field(metadata=argument("folder of PLAN.parquet"))
    train: str = field(metadata=argument("folder of VARIANT/metrics.parquet"))
    images: str = field(metadata=argument("folder of POLICY/images.parquet"))
    scores: str = field(metadata=argument("folder of POLICY/SCORER.parquet"))
    runs: str = field(metadata=argument("folder of run manifests, STAGE.json"))
    out: str = field(metadata=argument("folder to write"))


def settings_of(params: Params) -> ReportSettings:
    """The report's settings: the plan shown is that of the first variant that trains by chunks."""
    plans = {name: variant.plan for name, variant in params.variants.items()}
    by_chunks = [v.plan for v in params.variants.values() if v.objective == "chunk"]
    shown = (by_chunks or list(plans.values()))[0]
    guided = [n for n, plan in params.chunks.plans.items() if plan.kind == "guided" and n != shown]
    return ReportSettings(
        title=params.report.title,
        preset=params.preset,
        variants=tuple(params.variants),
        plans=plans,
        other_plans=tuple(name for name in params.chunks.plans if name not in plans.values()),
        rewards=params.rewards,
        scorers=params.scorers,
        clip_range=params.train.clip_range,
        num_steps=params.generate.num_steps,
        base_steps=params.generate.base_steps,
        shown_plan=shown,
        guided_plan=guided[0] if guided else None,
        bootstrap_samples=params.report.bootstrap_samples,
        grid_prompts=params.report.grid_prompts,
        seed=params.report.seed,
        train_seeds=params.train.seeds,
        image_seed=params.generate.seed,
        parameters=yaml.safe_dump(params.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
    )


def evidence_at(arguments: Arguments, settings: ReportSettings) -> Evidence:
    """Read everything that the report is made from; of the images those of sample 0 alone are kept."""
    policies = (BASE, *settings.variants)
    plans = [settings.shown_plan, *([settings.guided_plan] if settings.guided_plan else [])]
    return Evidence(
        prompts=_read(arguments.prompts, "prompts"),
        profile=_read(arguments.profile, "l1_profile"),
        plans={p: _read(join(arguments.chunks, f"{p}.parquet"), "chunk_plan") for p in plans},
        metrics={
            v: _read(join(arguments.train, v, "metrics.parquet"), "train_metrics") for v in settings.variants
        },
        scores={
            (p, s): _read(join(arguments.scores, p, f"{s}.parquet"), "scores")
            for p in policies
            for s in settings.scorers
        },
        images={p: _first_images(join(arguments.images, p, "images.parquet")) for p in policies},
        runs=tuple(sorted(_manifests(arguments.runs, settings), key=lambda run: (run.started_at, run.stage))),
    )


def _read(path: str, schema: SchemaName) -> Source:
    return Source(path, read_table(path, schema))


def _first_images(path: str) -> Source:
    table = read_table(path, "images")
    return Source(path, table.filter(pc.equal(table["sample"], 0)))


def _manifests(folder: str, settings: ReportSettings) -> Iterator[RunManifest]:
    """Manifests of the present variants and scorers; those of others may be left from earlier parameters."""
    pairs = {f"{variant}-{scorer}" for variant in settings.variants for scorer in settings.scorers}
    items = {"", *settings.variants, *settings.scorers, *pairs}
    for path in find_files(folder, "*.json"):
        run = read_manifest(path)
        if run.stage != "report" and run.stage.partition("@")[2] in items:
            yield run


def main(params: Params, arguments: Arguments) -> None:
    settings = settings_of(params)
    files = build_report(evidence_at(arguments, settings), settings)
    with output_dir(arguments.out) as folder:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
