"""Build the report: intervals, tables, plots and images of all policies, as HTML, as Markdown and as numbers."""

import sys
from dataclasses import asdict, dataclass

from chunk_grpo.artifacts import output_dir
from chunk_grpo.artifacts.kept import forget_recorded
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.config import Params
from chunk_grpo.reporting.inputs import read_evidence, settings_from
from chunk_grpo.reporting.page import build_report
from stages._stage import reads, run_stage, writes


@dataclass(frozen=True)
class Arguments:
    """Fields of `Layout`, by their names."""

    prompts: str = reads("prompts/1, Parquet")
    pictures: str = reads("folder with pictures/1 and the pictures that prompts edit")
    profile: str = reads("l1_profile/1, Parquet")
    chunks: str = reads("folder with PLAN.parquet")
    train: str = reads("folder with VARIANT/seed-N/metrics.parquet")
    images: str = reads("folder with POLICY/images.parquet")
    scores: str = reads("folder with POLICY/SCORER.parquet")
    runs: str = reads("folder with run manifests, STAGE.json")
    report: str = writes("folder for the report")


def main(params: Params, arguments: Arguments) -> None:
    forget_recorded()
    settings = settings_from(params)
    layout = Layout(**asdict(arguments))
    files = build_report(read_evidence(layout, settings), settings)
    with output_dir(layout.report) as folder:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
