"""Build the report: intervals, tables, plots and images of all policies, as HTML, as Markdown and as numbers."""

import sys
from dataclasses import dataclass, field

from chunk_grpo.artifacts import output_dir
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.artifacts.unrecorded import forget_recorded
from chunk_grpo.config import Params
from chunk_grpo.reporting.inputs import read_evidence, settings_from
from chunk_grpo.reporting.page import build_report
from stages._stage import argument, run_stage


@dataclass(frozen=True)
class Arguments:
    prompts: str = field(metadata=argument("prompts/1, Parquet"))
    profile: str = field(metadata=argument("l1_profile/1, Parquet"))
    chunks: str = field(metadata=argument("folder with PLAN.parquet"))
    train: str = field(metadata=argument("folder with VARIANT/seed-N/metrics.parquet"))
    images: str = field(metadata=argument("folder with POLICY/images.parquet"))
    scores: str = field(metadata=argument("folder with POLICY/SCORER.parquet"))
    runs: str = field(metadata=argument("folder with run manifests, STAGE.json"))
    out: str = field(metadata=argument("folder for the report", writes=True))


def main(params: Params, arguments: Arguments) -> None:
    forget_recorded()
    settings = settings_from(params)
    layout = Layout(
        prompts=arguments.prompts,
        profile=arguments.profile,
        chunks=arguments.chunks,
        train=arguments.train,
        images=arguments.images,
        scores=arguments.scores,
        runs=arguments.runs,
    )
    files = build_report(read_evidence(layout, settings), settings)
    with output_dir(arguments.out) as folder:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
