"""Choose the prompts of every split: captions of the toy world, prompts from files, and benchmarks."""

import functools
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from chunk_grpo.artifacts import output_dir, table_from_rows, write_csv, write_json, write_table
from chunk_grpo.config import Params
from chunk_grpo.digests import Digests
from chunk_grpo.errors import DataError
from chunk_grpo.families.tokens import token_limits
from chunk_grpo.prompts import PromptReport, check_lengths
from chunk_grpo.training.schedule import scheduled_prompts
from stages._prompts import Split, splits_of
from stages._records import prompt_records, require_model, require_unchanged
from stages._scorer_data import check_scorer_data
from stages._stage import argument, run_stage

_LOG = logging.getLogger(__name__)

Row = dict[str, str]
"""Row of prompts/1."""

FINDINGS = pa.schema(
    [
        *((name, pa.string()) for name in ("split", "source", "unit")),
        ("number", pa.int64()),
        *((name, pa.string()) for name in ("problem", "action", "message")),
    ]
)
"""Columns of the table of findings; `number` is that of the line, row or prompt, by `unit`."""


@dataclass(frozen=True)
class Arguments:
    model: str = field(
        metadata=argument("JSON of stage inputs: content of the base model's files", reads=True)
    )
    files: str = field(metadata=argument("JSON of stage inputs: content of the prompt files", reads=True))
    training: str = field(metadata=argument("prompts/1, Parquet: splits train and eval", writes=True))
    scheduled: str = field(
        metadata=argument(
            "folder for prompts/1: rows of `training` that each seed's training uses (seed-N.parquet), and "
            "those that the profile uses (profile.parquet)",
            writes=True,
        )
    )
    evaluation: str = field(
        metadata=argument(
            "prompts/1, Parquet: all splits except train, of eval what is compared", writes=True
        )
    )
    report: str = field(metadata=argument("JSON: findings in the prompts, and the action taken", writes=True))
    findings: str = field(metadata=argument("CSV: every prompt that broke a rule", writes=True))


def table_rows(split: Split) -> list[Row]:
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


def scheduled_rows(
    train: Sequence[Row], heldout: Sequence[Row], params: Params
) -> Mapping[str, Sequence[Row]]:
    """Rows of the train and eval prompts that the profile and each seed's training use; the others need no embeddings.

    The profile uses the first prompts, a training those of its iterations, and the first eval prompts for the held-out
    reward. A table each, so that another seed changes no input of the others.
    """
    iterations, count = params.train.iterations, params.train.prompts_per_iteration
    of_seed = {seed: scheduled_prompts(seed, iterations, count, len(train)) for seed in params.train.seeds}
    of_profile = range(min(params.profile.num_prompts, len(train)))
    used = set(of_profile).union(*of_seed.values())
    if len(used) < len(train):
        _LOG.warning(
            "train: %s of %s prompts are used: by the iterations and seeds of `train`, and by the profile. "
            "The others are listed, but not encoded.",
            f"{len(used):,}",
            f"{len(train):,}",
        )
    watched = heldout[: params.train.heldout.num_prompts]
    return {"profile": [train[at] for at in of_profile]} | {
        f"seed-{seed}": [*(train[at] for at in chosen), *watched] for seed, chosen in of_seed.items()
    }


def compared_rows(rows: Sequence[Row], params: Params) -> list[Row]:
    """Rows of the eval prompts that policies are compared on, at least one.

    Prompts whose held-out scores decide when training ends would flatter the policy that it ends with, and so would
    others with the same text.
    """
    heldout = params.train.heldout
    if not heldout.decides:
        return list(rows)
    watched = {row["prompt"] for row in rows[: heldout.num_prompts]}
    left = [row for row in rows if row["prompt"] not in watched]
    if not left:
        raise DataError(
            f"prompts.eval_count: the first {heldout.num_prompts} eval prompts decide when training ends, so they and "
            f"their repetitions are not evaluated, and none of {len(rows)} is left; raise prompts.eval_count or lower "
            "train.heldout.num_prompts"
        )
    return left


def findings_table(reports: Mapping[str, PromptReport]) -> pa.Table:
    """Every prompt that broke a rule, by split."""
    rows = [
        dict(zip(FINDINGS.names, (name, *row), strict=True))
        for name, report in reports.items()
        for row in report.findings_rows()
    ]
    return pa.Table.from_pylist(rows, schema=FINDINGS)


def main(params: Params, arguments: Arguments) -> None:
    """Write the tables, and a report of prompts that were dropped, changed, or kept although suspicious."""
    model = params.model
    limits = functools.cache(
        lambda: token_limits(model.family, model.checkpoint, model.revision, model.max_sequence_length)
    )
    splits = list(splits_of(params.prompts, limits))  # first: errors in prompt files before the model's
    check_scorer_data(params, splits)
    require_unchanged(prompt_records(params, Digests()), arguments.files)
    reports = {}
    for split in splits:
        report = check_lengths(split.rows, split.report, params.prompts.checks, limits())
        if report is not None:
            reports[split.name] = report
            for line in report.lines():
                _LOG.warning("%s: %s", split.name, line)
    require_model(params, arguments.model)
    rows = {split.name: table_rows(split) for split in splits}
    evaluated = rows | {"eval": compared_rows(rows["eval"], params)}
    for location, chosen in (
        (arguments.training, [*rows["train"], *rows["eval"]]),
        (arguments.evaluation, [row for name, of in evaluated.items() if name != "train" for row in of]),
    ):
        write_table(table_from_rows(chosen, "prompts"), location, "prompts")
    with output_dir(arguments.scheduled) as folder:
        for name, used in scheduled_rows(rows["train"], rows["eval"], params).items():
            write_table(table_from_rows(used, "prompts"), str(folder / f"{name}.parquet"), "prompts")
    write_json({name: report.as_json() for name, report in reports.items()}, arguments.report)
    write_csv(findings_table(reports), arguments.findings)


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
