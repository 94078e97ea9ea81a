"""Tables of prompts: prompts/1 of each split and of each training, and the table of findings."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence

import pyarrow as pa

from chunk_grpo.artifacts.layout import of_seed
from chunk_grpo.config import Params
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.rows import PromptReport
from chunk_grpo.prompts.splits import Split
from chunk_grpo.training.schedule import scheduled_prompts

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


def prompt_id(split: str, number: int) -> str:
    """Id of a split's prompt, by its number from 0."""
    return f"{split}-{number:05d}"


def table_rows(split: Split) -> list[Row]:
    """Rows of prompts/1."""
    return [
        {
            "prompt_id": prompt_id(split.name, number),
            "split": split.name,
            "prompt": row.text,
            "category": row.category,
            "metadata": json.dumps(row.metadata),
        }
        for number, row in enumerate(split.rows)
    ]


def scheduled_rows(train: Sequence[Row], heldout: Sequence[Row], params: Params) -> Mapping[str, Sequence[Row]]:
    """Rows of the train and eval prompts that the profile and each seed's training use; the others need no embeddings.

    The profile uses the first prompts. A training uses the prompts of its iterations, and the first eval prompts for
    the held-out reward. A table each, so that another seed changes no input of the others.
    """
    iterations, count = params.train.iterations, params.train.prompts_per_iteration
    scheduled = {seed: scheduled_prompts(seed, iterations, count, len(train)) for seed in params.train.seeds}
    of_profile = range(min(params.profile.num_prompts, len(train)))
    used = set(of_profile).union(*scheduled.values())
    if len(used) < len(train):
        _LOG.warning(
            "train: %s of %s prompts are used: by the iterations and seeds of `train`, and by the profile. "
            "The others are listed, but not encoded.",
            f"{len(used):,}",
            f"{len(train):,}",
        )
    watched = heldout[: params.train.heldout.num_prompts]
    return {"profile": [train[at] for at in of_profile]} | {
        of_seed(seed): [*(train[at] for at in chosen), *watched] for seed, chosen in scheduled.items()
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
