"""Blocks of the study: scores of every policy by training seed and prompt, read from docs/study."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.studies.hypotheses import BESIDE, Hypothesis, Pair, Policy
from chunk_grpo.errors import DataError
from chunk_grpo.reporting.statistics import Interval, crossed_interval

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "study"
BASE = ("base", "base")
CURVES = "-curves"


@dataclass(frozen=True)
class Block:
    """Results of a block."""

    reward: str
    """Scorer that was trained on: the primary outcome."""
    scorers: tuple[str, ...]
    """All scorers, the reward first."""
    seeds: tuple[int, ...]
    captions: tuple[str, ...]
    values: Mapping[tuple[Policy, str], NDArray[np.float64]]
    """(policy, scorer) to [R, P]; the base has one row."""

    def difference(self, first: Policy, second: Policy, scorer: str, less: Pair | None = None) -> Interval:
        """Paired difference of two policies, less that of two others."""
        found = self.values[first, scorer] - self.values[second, scorer]
        if less is not None:
            found = found - (self.values[less[0], scorer] - self.values[less[1], scorer])
        return crossed_interval(found, captions=self.captions)

    def tested(self, hypothesis: Hypothesis, scorer: str) -> Interval:
        """The difference that a hypothesis is about."""
        return self.difference(hypothesis.first, hypothesis.second, scorer, hypothesis.less)


def read_block(block: str, results: Path) -> Block:
    """Read the results of a block, in which no policy may lack a seed or prompt.

    Policies of the block beside it come along, and then all have the training seeds that both blocks have.
    """
    own = _read(block, results)
    if block not in BESIDE:
        return own
    beside = _read(BESIDE[block], results)
    if beside.captions != own.captions:
        raise DataError(
            f"{results}: {block} and {BESIDE[block]} have other prompts and cannot be paired; run both at one commit"
        )
    seeds = tuple(seed for seed in own.seeds if seed in beside.seeds)
    if not seeds:
        raise DataError(
            f"{results}: {block} has the training seeds {own.seeds}, and {BESIDE[block]} none of them; run one with a "
            "seed of the other, and add it"
        )
    values = {**_of_seeds(beside, seeds), **_of_seeds(own, seeds)}
    kept = {place: matrix for place, matrix in values.items() if place[1] in own.scorers}
    return Block(own.reward, own.scorers, seeds, own.captions, kept)


def _of_seeds(block: Block, seeds: Sequence[int]) -> dict[tuple[Policy, str], NDArray[np.float64]]:
    rows = [block.seeds.index(seed) for seed in seeds]
    return {
        (policy, scorer): matrix if policy == BASE else matrix[rows]
        for (policy, scorer), matrix in block.values.items()
    }


def _read(block: str, results: Path) -> Block:
    table, about = results / f"{block}.parquet", results / f"{block}.json"
    if not table.exists():
        raise DataError(f"{table}: no such file; `python -m benchmarks.studies.study add CHECKOUT` writes it")
    known = json.loads(about.read_text(encoding="utf-8"))
    seeds = tuple(sorted(seed for run in known["runs"] for seed in run["seeds"]))
    columns = pq.read_table(table)
    captions = dict(zip(columns["prompt_id"].to_pylist(), columns["caption"].to_pylist(), strict=True))
    places = {prompt: place for place, prompt in enumerate(sorted(captions))}
    values: dict[tuple[Policy, str], NDArray[np.float64]] = {}
    names = ("variant", "mode", "scorer", "train_seed", "prompt_id", "value")
    for variant, mode, scorer, seed, prompt, value in zip(*(columns[n].to_pylist() for n in names), strict=True):
        policy = (variant, mode)
        of: tuple[int, ...] = (-1,) if policy == BASE else seeds
        if (policy, scorer) not in values:
            values[policy, scorer] = np.full((len(of), len(places)), math.nan)
        values[policy, scorer][of.index(seed), places[prompt]] = value
    for (policy, scorer), matrix in values.items():
        if np.isnan(matrix).any():
            raise DataError(f"{table}: {policy} lacks scores of {scorer} for a seed or prompt")
    reward = known["reward"]
    others = tuple(sorted({scorer for _, scorer in values} - {reward}))
    return Block(reward, (reward, *others), seeds, tuple(captions[name] for name in places), values)
