"""History of a preset's evaluations: each score's mean and interval, compared with its reference.

A score belongs to one scorer, one policy, one mode and one split of prompts. If nothing changed, two evaluations of the
same policies on the same prompts differ by the image noise alone, and with the same image seed not at all. A score has
moved if the report's interval of its difference, paired by prompt, excludes zero at the level 1 - `ALPHA` / N for N
compared scores: with this correction (Bonferroni) any score moves in at most about `ALPHA` of the evaluations in which
nothing changed.

The reference of a score is the evaluation that set its level: the last one in which it moved or its scorer changed, or
the first one. Comparing with the previous evaluation would miss a slow drift; always comparing with the first would
miss every change after the first one.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from scipy import stats

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.artifacts.layout import PARAMS, Layout
from chunk_grpo.artifacts.schemas import SCORER_KEY
from chunk_grpo.config import load_params
from chunk_grpo.errors import DataError
from chunk_grpo.reporting.evidence import BASE, ScoreBook, Source
from chunk_grpo.reporting.inputs import read_scores, read_source, settings_from
from chunk_grpo.reporting.statistics import crossed_interval

ALPHA = 0.01
"""Probability that any score counts as moved in an evaluation in which nothing changed."""
MIN_CAPTIONS = 8
"""Least number of distinct captions to compare: the signs of fewer differences are equal by chance too often."""

Change = Literal["first", "scorer", "prompts", "same", "unknown", "none", "moved"]
"""Result of comparing a score with its reference; docs/artifacts.md explains each value."""
Means = dict[tuple[str, str], float]
"""(prompt_id, caption) to mean."""


@dataclass(frozen=True)
class Evaluation:
    """Identification of an evaluation."""

    evaluation: str
    """Name, unique among the evaluations of the preset, such as that of the flow run; used as a file name."""
    evaluated_at: datetime
    """Time in UTC, with its time zone."""
    preset: str
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


def measure(workspace: Path, evaluation: Evaluation) -> Measured:
    """Measure the scores of a workspace in which the score stages have run, without comparing them."""
    settings, at = settings_from(load_params(workspace / PARAMS)), Layout.below(workspace)
    sources = {
        (policy, use.name): read_scores(policy, use, at.scored(policy, use.name))
        for policy in (BASE, *settings.compared)
        for use in settings.measured
    }
    prompts, book = read_source(at.prompts, "prompts"), ScoreBook(sources, settings.rewards)
    rows: list[HistoryRow] = []
    means: list[dict[str, object]] = []
    for use, split in [(scorer, split) for scorer in settings.measured for split in scorer.splits]:
        of_split = book.prompt_set(prompts, split, use.name)
        if of_split is None:
            continue
        of = book.answered(use.name, of_split)
        counts = [len(found) for found in book.samples(use.name, of.ids).values()]
        for policy, mode in ((BASE, BASE), *settings.drawn):
            score, values = Score(policy, mode, split, use.name), book.values(policy, mode, use.name, of.ids)
            row = HistoryRow(
                **asdict(evaluation),
                image_seed=settings.image_seed,
                **score._asdict(),
                scorer_hash=_spec_hash(sources[policy, use.name]),
                **asdict(crossed_interval(values, None, of.captions)),
                num_images=len(values) * sum(counts),
            )
            rows.append(row)
            key = {"evaluation": row.evaluation, **score._asdict()}
            columns = (of.ids, of.captions, values.mean(axis=0).tolist(), counts)
            means += [
                {**key, "prompt_id": i, "prompt": text, "mean": mean, "num_images": len(values) * count}
                for i, text, mean, count in zip(*columns, strict=True)
            ]
    return Measured(tuple(rows), table_from_rows(means, "evaluation_prompts"))


def _spec_hash(source: Source) -> str:
    try:
        return str(json.loads(source.table.schema.metadata[SCORER_KEY])["spec_hash"])
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(
            f"{source.path}: must carry its scorer's spec ({SCORER_KEY.decode()} in the metadata), got none that "
            "can be read. Run its score stage again (`dvc repro`)."
        ) from error


def compare(
    measured: Measured, earlier: Sequence[HistoryRow], read_means: Callable[[str], pa.Table]
) -> tuple[HistoryRow, ...]:
    """Compare each score with its reference.

    Returns the rows of `measured` with change, reference, difference, band and p_value. `earlier` is in order of time,
    with no row of the same evaluation. `read_means` gives an evaluation's table evaluation_prompts, and is called once
    for each reference.
    """
    last, now = {row.score: row for row in earlier}, _means(measured.prompts)
    then = cache(lambda name: _means(read_means(name)))
    compared: list[tuple[HistoryRow, Means]] = []
    for row in measured.rows:
        before, differences = last.get(row.score), Means()
        if before is not None and before.scorer_hash != row.scorer_hash:
            row = replace(row, change="scorer", reference=before.evaluation)
        elif before is not None:
            # An evaluation that is recorded again may have been the reference itself.
            is_own = before.next_reference == row.evaluation
            reference = before.evaluation if is_own else before.next_reference
            means = then(reference).get(row.score, {})
            differences = {prompt: m - means[prompt] for prompt, m in now[row.score].items() if prompt in means}
            row = replace(row, change=_change(differences), reference=reference)
        compared.append((row, differences))
    count = sum(row.change == "none" for row, _ in compared)
    return tuple(_tested(row, differences, count) for row, differences in compared)


def _means(table: pa.Table) -> Mapping[Score, Means]:
    names = (*Score._fields, "prompt_id", "prompt", "mean")
    found: defaultdict[Score, Means] = defaultdict(dict)
    for *score, prompt_id, prompt, mean in zip(*(table[name].to_pylist() for name in names), strict=True):
        found[Score(*score)][prompt_id, prompt] = mean
    return found


def _change(differences: Means) -> Change:
    """Result of a comparison; "none" if it takes an interval to tell."""
    if not differences:
        return "prompts"
    if not any(differences.values()):
        return "same"
    return "unknown" if len({caption for _, caption in differences}) < MIN_CAPTIONS else "none"


def _tested(row: HistoryRow, differences: Means, count: int) -> HistoryRow:
    """The row with its difference, and whether it moved if it is one of `count` that take an interval to tell."""
    if not differences:
        return row
    captions = [caption for _, caption in differences]
    found = crossed_interval(np.array([list(differences.values())]), None, captions)
    row = replace(row, difference=found.mean)
    if row.change != "none":
        return row
    p_value = count * found.p_value
    band = found.standard_error * float(stats.t.isf(ALPHA / 2 / count, found.degrees_of_freedom))
    change: Change = "moved" if p_value <= ALPHA else "none"
    return replace(row, change=change, band=band, p_value=min(1.0, p_value))


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
