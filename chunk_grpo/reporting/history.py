"""One evaluation of a preset's policies: the mean and interval of each score, and prompt means for later comparisons.

A score belongs to one scorer, one policy, one mode and one split of prompts.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.artifacts.schemas import SCORER_KEY
from chunk_grpo.config import load_params
from chunk_grpo.errors import DataError
from chunk_grpo.reporting.evidence import BASE, ReportSettings, ScoreBook, ScoredPrompts, Source
from chunk_grpo.reporting.inputs import read_scores, read_source, settings_from
from chunk_grpo.reporting.statistics import crossed_interval

Change = Literal["first", "scorer", "prompts", "same", "unknown", "none", "moved"]
"""Result of comparing a score with its reference; docs/artifacts.md explains each value."""


@dataclass(frozen=True)
class Evaluation:
    """Identification of an evaluation."""

    evaluation: str
    """Name, unique among the evaluations of the preset, such as that of the flow run; used as a file name."""
    evaluated_at: datetime
    """Time in UTC, with its time zone."""
    preset: str
    """Preset of the policies."""
    model_commit: str
    """Commit whose run trained the policies."""
    code_commit: str
    """Commit whose code generated and scored the images."""


class Score(NamedTuple):
    """Key of a score."""

    policy: str
    mode: str
    split: str
    scorer: str


@dataclass(frozen=True)
class HistoryRow(Evaluation):
    """One row of evaluation_history/1: one score in one evaluation; docs/artifacts.md describes the columns."""

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


class Measured(NamedTuple):
    """Scores of one evaluation."""

    rows: tuple[HistoryRow, ...]
    """One row per score, in the order of params.yaml."""
    prompts: pa.Table
    """Schema evaluation_prompts: the mean of each prompt, for paired comparisons."""


def known(history: Sequence[HistoryRow], rows: Sequence[HistoryRow]) -> str:
    """Name of the last earlier evaluation with exactly the same results, or the empty string.

    Results are the same if model commit, image seed and, for every score, scorer and numbers are equal. `history` is in
    order of time; its rows from this evaluation on are ignored.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for row in takewhile(lambda row: row.evaluation != rows[0].evaluation, history):
        found[row.evaluation].add(_result(row))
    results = {_result(row) for row in rows}
    return next((name for name in reversed(found) if found[name] == results), "")


def _result(row: HistoryRow) -> str:
    """Values that change with any model, image or scorer, as text, so that NaN equals NaN."""
    numbers = (row.num_images, row.mean, row.standard_error, row.low)
    return repr((row.model_commit, row.image_seed, *row.score, row.scorer_hash, *numbers))


def measure(workspace: Path, evaluation: Evaluation) -> Measured:
    """Measure the scores of a workspace in which the score stages have run, without comparing them."""
    settings = settings_from(load_params(workspace / "params.yaml"))
    artifacts = workspace / "artifacts"
    sources = {
        (policy, use.name): read_scores(policy, use, artifacts / "scores" / policy / f"{use.name}.parquet")
        for policy in (BASE, *settings.compared)
        for use in settings.measured
    }
    prompts = read_source(artifacts / "prompts" / "evaluation.parquet", "prompts")
    book = ScoreBook(sources, settings.rewards)
    rows: list[HistoryRow] = []
    means: list[dict[str, object]] = []
    for score, of in _scores(book, prompts, settings):
        values = book.values(score.policy, score.mode, score.scorer, of.ids)
        samples = book.samples(score.scorer, of.ids)
        images = [len(values) * len(samples[prompt_id]) for prompt_id in of.ids]
        interval = crossed_interval(values, None, of.captions)
        rows.append(
            HistoryRow(
                **asdict(evaluation),
                image_seed=settings.image_seed,
                **score._asdict(),
                scorer_hash=_spec_hash(sources[score.policy, score.scorer]),
                **asdict(interval),
                num_images=sum(images),
            )
        )
        key = {"evaluation": evaluation.evaluation, **score._asdict()}
        means += [
            {**key, "prompt_id": prompt_id, "prompt": caption, "mean": mean, "num_images": count}
            for prompt_id, caption, mean, count in zip(
                of.ids, of.captions, values.mean(axis=0).tolist(), images, strict=True
            )
        ]
    return Measured(tuple(rows), table_from_rows(means, "evaluation_prompts"))


def _scores(
    book: ScoreBook, prompts: Source, settings: ReportSettings
) -> Iterator[tuple[Score, ScoredPrompts]]:
    """Every score of the workspace with its prompts."""
    drawn = [(BASE, BASE), *settings.drawn]
    for use in settings.measured:
        for split in use.splits:
            of_split = book.prompt_set(prompts, split, use.name)
            if of_split is not None:
                answered = book.answered(use.name, of_split)
                yield from ((Score(policy, mode, split, use.name), answered) for policy, mode in drawn)


def _spec_hash(source: Source) -> str:
    try:
        return str(json.loads(source.table.schema.metadata[SCORER_KEY])["spec_hash"])
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(
            f"{source.path}: must carry its scorer's spec ({SCORER_KEY.decode()} in the metadata), got none that "
            "can be read. Run its score stage again (`dvc repro`)."
        ) from error
