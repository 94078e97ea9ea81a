"""Workspaces with synthetic scores and known changes between them. No number here was measured."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import yaml

from chunk_grpo.artifacts import table_from_rows, write_table
from chunk_grpo.artifacts.schemas import SCORER_KEY
from chunk_grpo.reporting.history import Evaluation
from tests.conftest import ROOT
from tests.reporting.conftest import prompt_rows

SCORERS = ("shapes-exact", "shapes-graded")
VARIANTS = ("dance", "chunk")
LIFT = {"base": 0.0, "dance": 0.05, "chunk": 0.1}
MIDNIGHT = datetime(2001, 1, 1, tzinfo=UTC)


def evaluation(number: int, model: str = "0123456789abcdef") -> Evaluation:
    """The evaluation of a night, counted from 0."""
    at = MIDNIGHT + timedelta(days=number)
    return Evaluation(f"night-{number}", at, "tiny", model, "fedcba9876543210")


@dataclass(frozen=True)
class Case:
    """Ingredients of a workspace's scores."""

    image_seed: int = 0
    """Of the noise; equal seeds give equal scores."""
    shift: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(policy, scorer) to what is added to the expected scores."""


def write_workspace(root: Path, case: Case = Case()) -> Path:
    """Write params.yaml, prompts and scores: each prompt has its own level, each image its own noise."""
    prompts = prompt_rows(10)
    write_table(table_from_rows(prompts, "prompts"), root / "artifacts/prompts/evaluation.parquet", "prompts")
    for policy in ("base", *VARIANTS):
        for scorer in SCORERS:
            rows = score_rows(case, policy, scorer, [str(row["prompt_id"]) for row in prompts])
            spec = {"key": scorer, "spec_hash": "v1"}
            write_table(
                table_from_rows(rows, "scores"),
                root / "artifacts" / "scores" / policy / f"{scorer}.parquet",
                "scores",
                {SCORER_KEY.decode(): json.dumps(spec)},
            )
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["variants"] = {name: {"objective": "step", "plan": "step"} for name in VARIANTS}
    params["scorers"] = {name: params["scorers"][name] for name in SCORERS}
    params["rewards"] = {"shapes-graded": 1.0}
    params["train"]["heldout"]["scorers"] = ["shapes-exact"]
    params["train"]["seeds"] = [0, 1]
    params["generate"]["seed"] = case.image_seed
    (root / "params.yaml").write_text(json.dumps(params))
    return root


def score_rows(case: Case, policy: str, scorer: str, prompt_ids: list[str]) -> list[dict[str, object]]:
    drawn = [("base", -1)] if policy == "base" else [(m, s) for m in ("tuned", "hybrid") for s in (0, 1)]
    shift = LIFT.get(policy, 0.0) + case.shift.get((policy, scorer), 0.0)
    rows = []
    for index, prompt_id in enumerate(prompt_ids):
        level = np.random.default_rng([index, 1]).normal(0.5, 0.2)
        for sample in range(2):
            noise = np.random.default_rng([case.image_seed, index, sample, 2]).normal(0, 0.1)
            for mode, seed in drawn:
                own = np.random.default_rng([case.image_seed, index, sample, seed + 1, len(policy)])
                value = level + noise + shift + own.normal(0, 0.1)
                value = float(value > 0.5) if scorer == "shapes-exact" else float(np.clip(value, 0, 1))
                rows.append(
                    {
                        "policy": policy, "mode": mode, "train_seed": seed, "prompt_id": prompt_id,
                        "sample": sample, "scorer": scorer, "metric": "score", "value": value,
                    }
                )  # fmt: skip
    return rows
