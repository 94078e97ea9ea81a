"""Choose the prompts of every split: captions of the toy world, prompts from files, and benchmarks."""

import json
import logging
import sys
from dataclasses import dataclass, field

from chunk_grpo.artifacts import table_from_rows, write_json, write_table
from chunk_grpo.config import Params
from chunk_grpo.families.tokens import flux_token_limits
from chunk_grpo.prompts import check_lengths
from stages._prompts import Split, splits_of
from stages._stage import argument, run_stage

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    training: str = field(metadata=argument("prompts/1, Parquet: splits train and eval", writes=True))
    evaluation: str = field(metadata=argument("prompts/1, Parquet: all splits except train", writes=True))
    report: str = field(metadata=argument("JSON: findings in the prompts, and the action taken", writes=True))


def table_rows(split: Split) -> list[dict[str, str]]:
    """Rows of prompts/1."""
    return [
        {
            "prompt_id": f"{split.name}-{number:05d}",
            "split": split.name,
            "prompt": row.text,
            "category": row.category,
            "metadata": json.dumps(row.metadata),
        }
        for number, row in enumerate(split.rows)
    ]


def main(params: Params, arguments: Arguments) -> None:
    """Write the tables, and a report of prompts that were dropped, changed, or kept although suspicious."""
    splits = list(
        splits_of(params.prompts)
    )  # first: report errors in prompt files before looking for the model
    model = params.model
    limits = flux_token_limits(model.checkpoint, model.revision, model.max_sequence_length)
    reports = {}
    for split in splits:
        report = check_lengths(split.rows, split.report, params.prompts.checks, limits)
        if report is not None:
            reports[split.name] = report
            for line in report.lines():
                _LOG.warning("%s: %s", split.name, line)
    for location, chosen in (
        (arguments.training, [split for split in splits if split.name in ("train", "eval")]),
        (arguments.evaluation, [split for split in splits if split.name != "train"]),
    ):
        rows = [row for split in chosen for row in table_rows(split)]
        write_table(table_from_rows(rows, "prompts"), location, "prompts")
    write_json({name: report.as_json() for name, report in reports.items()}, arguments.report)


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
