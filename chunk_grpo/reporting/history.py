"""One evaluation of a preset's policies: the mean and interval of each score, and prompt means for later comparisons.

A score belongs to one scorer, one policy, one mode and one split of prompts.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from chunk_grpo.artifacts import join, read_table, table_from_rows
from chunk_grpo.artifacts.publishing import PLAIN_NAME
from chunk_grpo.artifacts.schemas import SCORER_KEY
from chunk_grpo.config import Params, load_params
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.reporting.evidence import BASE, MODES, ReportSettings, ScoreBook, ScoredPrompts, Source
from chunk_grpo.reporting.inputs import settings_from
from chunk_grpo.reporting.statistics import crossed_interval

Change = Literal["first", "scorer", "prompts", "same", "unknown", "none", "moved"]
"""Result of comparing a score with its reference; docs/artifacts.md explains each value."""


@dataclass(frozen=True)
class Evaluation:
    """Identification of an evaluation.

    Attributes:
        name: Name, unique among the evaluations of the preset, such as that of the flow run; used as a file name.
        evaluated_at: Time in UTC, with its time zone.
        preset: Preset of the policies.
        model_commit: Commit whose run trained the policies.
        code_commit: Commit whose code generated and scored the images.
    """

    name: str
    evaluated_at: datetime
    preset: str
    model_commit: str
    code_commit: str


class Score(NamedTuple):
    """Key of a score."""

    policy: str
    mode: str
    split: str
    scorer: str


@dataclass(frozen=True)
class HistoryRow:
    """One row of evaluation_history/1: one score in one evaluation; docs/artifacts.md describes the columns."""

    evaluation: str
    evaluated_at: datetime
    preset: str
    model_commit: str
    code_commit: str
    image_seed: int
    policy: str
    mode: str
    split: str
    scorer: str
    scorer_hash: str
    mean: float
    low: float
    high: float
    standard_error: float
    degrees_of_freedom: float
    num_seeds: int
    num_prompts: int
    num_captions: int
    num_images: int
    change: Change = "first"
    reference: str = ""
    difference: float = math.nan
    band: float = math.nan
    p_value: float = math.nan

    @property
    def score(self) -> Score:
        """Key of the score."""
        return Score(self.policy, self.mode, self.split, self.scorer)

    @property
    def next_reference(self) -> str:
        """Reference for the next evaluation: the last evaluation that set the level of this score."""
        begins = self.change in ("first", "scorer", "prompts", "moved")
        return self.evaluation if begins else self.reference


@dataclass(frozen=True)
class Measured:
    """One evaluation's scores.

    Attributes:
        evaluation: Identification of the evaluation.
        rows: One row per score, in the order of params.yaml.
        prompts: Schema evaluation_prompts: the mean of each prompt, for paired comparisons.
    """

    evaluation: Evaluation
    rows: tuple[HistoryRow, ...]
    prompts: pa.Table


def known(history: Sequence[HistoryRow], rows: Sequence[HistoryRow]) -> str:
    """Name of the last earlier evaluation with exactly the same results, or the empty string.

    Results are the same if model commit, image seed and, for every score, scorer and numbers are equal.

    Args:
        history: Rows in order of time. Rows from this evaluation on are ignored.
        rows: The rows of one evaluation.
    """
    this = rows[0]
    found: defaultdict[str, set[str]] = defaultdict(set)
    for row in history:
        if row.evaluation == this.evaluation:
            break
        if (row.model_commit, row.image_seed) == (this.model_commit, this.image_seed):
            found[row.evaluation].add(_numbers(row))
    numbers = {_numbers(row) for row in rows}
    return next((name for name in reversed(found) if found[name] == numbers), "")


def _numbers(row: HistoryRow) -> str:
    """Values that change with any image or scorer, as text, so that NaN equals NaN."""
    return repr((*row.score, row.scorer_hash, row.num_images, row.mean, row.standard_error, row.low))


def measure(workspace: Path, evaluation: Evaluation) -> Measured:
    """Measure the scores of a workspace in which the score stages have run, without comparing them.

    Args:
        workspace: The folder of params.yaml.
        evaluation: Identification of the evaluation.

    Raises:
        ConfigError: params.yaml is invalid, or the name, preset or time of the evaluation is.
        DataError: A table is missing, corrupt, has another schema, or lacks scores; the message names it.
    """
    _check(evaluation)
    params = load_params(workspace / "params.yaml")
    settings = settings_from(params)
    artifacts = workspace / "artifacts"
    sources = {
        (policy, use.name): _source(join(artifacts, "scores", policy, f"{use.name}.parquet"))
        for policy in (BASE, *settings.variants)
        for use in settings.measured
    }
    path = join(artifacts, "prompts", "evaluation.parquet")
    prompts = Source(path, read_table(path, "prompts"))
    book = ScoreBook(sources, settings.rewards)
    rows: list[HistoryRow] = []
    means: list[dict[str, object]] = []
    for score, of_split in _scores(book, prompts, settings):
        source = sources[score.policy, score.scorer]
        left = book.samples(score.scorer, of_split.ids)
        values = book.values(score.policy, score.mode, score.scorer, of_split.ids)
        images = [len(left[prompt_id]) * len(values) for prompt_id in of_split.ids]
        rows.append(_row(evaluation, score, params, source, values, of_split, sum(images)))
        means += [
            {
                "evaluation": evaluation.name,
                **score._asdict(),
                "prompt_id": prompt_id,
                "prompt": caption,
                "mean": float(mean),
                "num_images": count,
            }
            for prompt_id, caption, mean, count in zip(
                of_split.ids, of_split.captions, values.mean(axis=0), images, strict=True
            )
        ]
    return Measured(evaluation, tuple(rows), table_from_rows(means, "evaluation_prompts"))


def _check(evaluation: Evaluation) -> None:
    for key, name in (("name", evaluation.name), ("preset", evaluation.preset)):
        if not PLAIN_NAME.fullmatch(name):
            raise ConfigError(
                f"evaluation {key}: must be letters, digits, '.', '_' and '-' to name a file, got {name!r}"
            )
    if evaluation.evaluated_at.utcoffset() != timedelta(0):
        raise ConfigError(f"evaluation time: must be in UTC, got {evaluation.evaluated_at.isoformat()}")


def _source(path: str) -> Source:
    return Source(path, read_table(path, "scores"))


def _scores(
    book: ScoreBook, prompts: Source, settings: ReportSettings
) -> Iterator[tuple[Score, ScoredPrompts]]:
    """Every score of the workspace with its prompts."""
    drawn = [(BASE, BASE), *((variant, mode) for variant in settings.variants for mode in MODES)]
    for use in settings.measured:
        for split in use.splits:
            of_split = book.prompt_set(prompts, split, use.name)
            if of_split is not None:
                answered = book.answered(use.name, of_split)
                yield from ((Score(policy, mode, split, use.name), answered) for policy, mode in drawn)


def _row(
    evaluation: Evaluation,
    score: Score,
    params: Params,
    source: Source,
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    prompts: ScoredPrompts,
    num_images: int,
) -> HistoryRow:
    generator = np.random.default_rng(params.report.seed)
    interval = crossed_interval(values, params.report.bootstrap_samples, generator, None, prompts.captions)
    return HistoryRow(
        evaluation=evaluation.name,
        evaluated_at=evaluation.evaluated_at,
        preset=evaluation.preset,
        model_commit=evaluation.model_commit,
        code_commit=evaluation.code_commit,
        image_seed=params.generate.seed,
        **score._asdict(),
        scorer_hash=_spec_hash(source),
        mean=interval.mean,
        low=interval.low,
        high=interval.high,
        standard_error=interval.standard_error,
        degrees_of_freedom=interval.degrees_of_freedom,
        num_seeds=interval.num_seeds,
        num_prompts=interval.num_prompts,
        num_captions=interval.num_captions,
        num_images=num_images,
    )


def _spec_hash(source: Source) -> str:
    try:
        return str(json.loads(source.table.schema.metadata[SCORER_KEY])["spec_hash"])
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(
            f"{source.path}: must carry its scorer's spec ({SCORER_KEY.decode()} in the metadata), got none that "
            "can be read. Run its score stage again (`dvc repro`)."
        ) from error
