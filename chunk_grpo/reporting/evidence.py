"""Input of the report, and scores as matrices of training seeds by prompts.

Shape letters: R training seeds, P prompts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from chunk_grpo.artifacts import RunManifest
from chunk_grpo.config.judges import WiseScorer
from chunk_grpo.config.scorer_settings import Scale
from chunk_grpo.errors import DataError

BASE = "base"
MODES = ("tuned", "hybrid")
GIVEN = ("tuned",)
"""Modes of images that were made elsewhere."""
PAPER_KINDS = {"hpsv3", "imagereward", "pickscore", "geneval", "wise"}
"""Kinds of scorers with which the paper trains or evaluates."""

REWARD = "training reward"
"""The weighted sum of the reward scorers, as a measure beside the scorers themselves."""

Sample = tuple[str, int]
"""(prompt_id, sample)."""


class Drawn(NamedTuple):
    """Images of a policy in a mode."""

    policy: str
    mode: str


@dataclass(frozen=True)
class TrainingSettings:
    """Training settings that the report uses."""

    iterations: int
    images: Mapping[str, int]
    """Variant to images drawn per iteration."""
    clip_ranges: Mapping[str, tuple[float, ...]]
    """Variant to epsilon of Eq. (13): one, or one for each chunk."""
    unseen: tuple[str, ...]
    """Scorers of held-out images that are not part of the training reward."""
    decisive: str
    """Metric that selects the best policy of a run."""
    keeps_best: bool
    """Whether the best policy is saved in addition to the last one."""
    single_chunks: bool
    """Whether any variant trains only some of its chunks."""
    chunk_rewards: bool
    """Whether any variant has a reward per chunk."""
    heldout_prompts: int
    """Number of held-out prompts of the curves, the first ones."""
    heldout_images: int
    """Images of each of them."""
    num_steps: int
    """Steps of the sampler in training."""

    @property
    def clip_range(self) -> float | None:
        """The clip range of all variants, or None if they differ."""
        found = {value for values in self.clip_ranges.values() for value in values}
        return found.pop() if len(found) == 1 else None


@dataclass(frozen=True)
class ScorerUse:
    """A scorer of params.yaml."""

    name: str
    kind: str
    """Kind of the scorer; geneval-graded for GenEval with graded rewards, which no benchmark publishes."""
    splits: tuple[str, ...]
    """Splits of prompts whose images it judges."""
    scale: Scale
    judge: WiseScorer | None = None
    """The scorer's settings if its kind is wise; else None."""


@dataclass(frozen=True)
class PromptKind:
    """Source of a split's prompts: shapes, coco, geneval, wise or file; for WISE, whether they are rewritten."""

    kind: str
    rewritten: bool = False


@dataclass(frozen=True)
class ReportSettings:
    """The values of params.yaml that the report uses, and all parameters as text."""

    title: str
    preset: str
    model: str
    """Checkpoint of the base, with its revision."""
    variants: tuple[str, ...]
    """Names in the order of params.yaml, which also sets the colours."""
    policies: Mapping[str, tuple[str, ...]]
    """Compared policies besides the variants, to the modes of their images."""
    recipes: Mapping[str, str]
    """Variant or compared policy to a description of its settings."""
    other_plans: tuple[str, ...]
    """Plans of params.yaml that no variant trains with."""
    rewards: Mapping[str, float]
    """Weight of each scorer in the training reward."""
    measured: tuple[ScorerUse, ...]
    """The scorers in the order of params.yaml."""
    prompt_kinds: Mapping[str, PromptKind]
    """Split to the source of its prompts."""
    training: TrainingSettings
    num_steps: int
    """ODE steps of the evaluation images."""
    base_steps: int
    """Number of last steps that the base model takes in the mode "hybrid"."""
    shown_plan: str
    """Plan whose chunks shade the profile."""
    guided_plan: str | None
    """Guided plan to show for comparison, if there is one."""
    grid_prompts: int
    seed: int
    """Seed of the choice of grid prompts."""
    train_seeds: tuple[int, ...]
    image_seed: int
    """Seed of the noise of the evaluation images."""
    images_per_prompt: int
    parameters: str
    """All parameters as YAML."""

    @property
    def compared(self) -> tuple[str, ...]:
        """The variants, then the other compared policies. This order sets the colours."""
        return (*self.variants, *self.policies)

    @property
    def drawn(self) -> tuple[Drawn, ...]:
        """The images of all compared policies."""
        return self.drawn_of(self.compared)

    @property
    def given(self) -> tuple[str, ...]:
        """Compared policies whose images were made elsewhere."""
        return tuple(name for name, modes in self.policies.items() if modes == GIVEN)

    def only(self, names: Collection[str]) -> ReportSettings:
        """These settings with some of the compared policies."""
        kept = {name: modes for name, modes in self.policies.items() if name in names}
        return replace(self, variants=tuple(name for name in self.variants if name in names), policies=kept)

    def drawn_of(self, names: Iterable[str]) -> tuple[Drawn, ...]:
        """The images of some compared policies."""
        return tuple(Drawn(name, mode) for name in names for mode in self.policies.get(name, MODES))

    @property
    def scorers(self) -> tuple[str, ...]:
        """Scorers of the eval split, on which policies are compared."""
        return tuple(use.name for use in self.measured if "eval" in use.splits)

    @property
    def measures(self) -> tuple[str, ...]:
        """`REWARD`, and the scorers of the eval split. A reward that is one of these scorers stands for it."""
        return (REWARD, *(name for name in self.scorers if name != self._only_reward))

    @property
    def is_like_paper(self) -> bool:
        """Whether the paper's numbers belong beside the run's: by its scorers, or for the toy world's prompts."""
        kinds = {use.kind for use in self.measured}
        return self.prompt_kinds["eval"].kind == "shapes" or not kinds.isdisjoint(PAPER_KINDS)

    def label(self, measure: str) -> str:
        """Name of a measure; that of the training reward has its scorer if it is a single one."""
        if measure != REWARD or self._only_reward is None:
            return measure
        return f"reward {self._only_reward}"

    @property
    def _only_reward(self) -> str | None:
        """The scorer whose scores are the training reward, if there is one."""
        names = [name for name, weight in self.rewards.items() if weight == 1]
        return names[0] if len(names) == len(self.rewards) == 1 else None


@dataclass(frozen=True)
class Source:
    """A table and the path it was read from, for error messages."""

    path: str
    table: pa.Table


@dataclass(frozen=True)
class Evidence:
    """The tables behind the report. Of an unfinished run, each mapping has what is there."""

    prompts: Source
    """Schema prompts."""
    profile: Source | None
    """Schema l1_profile; None if the run has not measured it yet."""
    plans: Mapping[str, Source]
    """Plan name to schema chunk_plan."""
    metrics: Mapping[str, Source]
    """Variant to schema train_metrics."""
    images: Mapping[str, str]
    """Policy (base, then the compared ones) to the path of schema images, for a variant of its lowest training seed.
    The grid reads its own rows of them."""
    scores: Mapping[tuple[str, str], Source]
    """(policy, scorer) to schema scores; of a policy, those by all scorers or none."""
    runs: Sequence[RunManifest]
    """Manifests of the stages that ran, in display order."""
    pictures: str | None
    """Folder with schema pictures and those that prompts edit; None: it is not there yet."""

    @property
    def scored(self) -> set[str]:
        """Policies with scores."""
        return {policy for policy, _ in self.scores}


@dataclass(frozen=True)
class ScoredPrompts:
    """The scored prompts of one split, in the order of the prompts table; captions may repeat."""

    ids: tuple[str, ...]
    categories: tuple[str, ...]
    captions: tuple[str, ...]


def prompts_of(prompts: Source, split: str) -> ScoredPrompts:
    """All prompts of a split, from schema prompts."""
    columns = (prompts.table.column(n).to_pylist() for n in ("prompt_id", "category", "prompt", "split"))
    chosen = [row for *row, row_split in zip(*columns, strict=True) if row_split == split]
    return ScoredPrompts(*zip(*chosen, strict=True)) if chosen else ScoredPrompts((), (), ())


@dataclass(frozen=True)
class LeftOut:
    """Images without a score."""

    refused: int
    samples: int
    """Number of (prompt, sample) pairs with a refused image; these are left out for every policy."""


class ScoreBook:
    """Scores by policy, mode, measure and training seed; missing scores raise DataError.

    If a scorer refused an image, the images with the same prompt and sample are left out for all policies, modes and
    training seeds. All means of a measure are then over the same (prompt, sample) pairs, and differences are paired.
    `scores` has a table of schema scores by (policy, scorer), `rewards` each scorer's weight in the training reward.
    """

    def __init__(self, scores: Mapping[tuple[str, str], Source], rewards: Mapping[str, float]) -> None:
        self._rewards = rewards
        self._paths = {key: source.path for key, source in scores.items()}
        self._values: dict[tuple[str, str, str], dict[int, dict[Sample, float]]] = {}
        self._refused: dict[str, Counter[Sample]] = {}
        for (policy, scorer), source in scores.items():
            self._take(policy, scorer, source.table)

    def _take(self, policy: str, scorer: str, table: pa.Table) -> None:
        columns = ("mode", "train_seed", "prompt_id", "sample", "metric", "value")
        data = [table.column(name).to_pylist() for name in columns]
        for mode, seed, prompt_id, sample, metric, value in zip(*data, strict=True):
            if metric != "score":
                continue
            found = self._values.setdefault((policy, mode, scorer), {}).setdefault(seed, {})
            found[prompt_id, sample] = math.nan if value is None else value
            if value is None:
                self._refused.setdefault(scorer, Counter())[prompt_id, sample] += 1

    def train_seeds(self, policy: str, mode: str, measure: str) -> tuple[int, ...]:
        """Training seeds of a policy, ascending; (-1,) for the base and for policies that were not trained here."""
        return tuple(sorted(self._by_seed(policy, mode, next(iter(self._weights(measure))))))

    def values(self, policy: str, mode: str, measure: str, prompt_ids: Sequence[str]) -> NDArray[np.float64]:
        """Means over the samples of each prompt, [R, P]; each prompt has at least one image that was not left out.

        `policy` is "base" or a compared one, `mode` base, tuned or hybrid, `measure` a scorer or `REWARD`.
        """
        seeds, samples = self.train_seeds(policy, mode, measure), self.samples(measure, prompt_ids)
        total = np.zeros((len(seeds), len(prompt_ids)))
        for scorer, weight in self._weights(measure).items():
            for row, seed in enumerate(seeds):
                for column, prompt_id in enumerate(prompt_ids):
                    drawn = [self.one(policy, mode, scorer, seed, (prompt_id, s)) for s in samples[prompt_id]]
                    total[row, column] += weight * float(np.mean(drawn))
        return total

    def spread(self, measure: str, prompt_ids: Sequence[str]) -> float:
        """Standard deviation of a measure over the base's images that are compared; 0 of a single one."""
        weights, (seed, *_) = self._weights(measure), self.train_seeds(BASE, BASE, measure)
        images = [(prompt_id, s) for prompt_id, samples in self.samples(measure, prompt_ids).items() for s in samples]
        values = [
            sum(w * self.one(BASE, BASE, scorer, seed, image) for scorer, w in weights.items()) for image in images
        ]
        return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0

    def samples(self, measure: str, prompt_ids: Sequence[str]) -> dict[str, list[int]]:
        """The base's sample numbers by prompt, without refused samples; policies are compared on these."""
        weights = self._weights(measure)
        refused = set().union(*(self._refused.get(scorer, ()) for scorer in weights))
        found: dict[str, list[int]] = {}
        for of_seed in self._by_seed(BASE, BASE, next(iter(weights))).values():
            for prompt_id, sample in sorted(of_seed):
                found.setdefault(prompt_id, []).append(sample)
        for prompt_id in prompt_ids:
            if prompt_id not in found:
                raise self._missing(BASE, BASE, next(iter(weights)), f"prompt_id={prompt_id}")
        return {name: [s for s in found[name] if (name, s) not in refused] for name in prompt_ids}

    def answered(self, measure: str, prompts: ScoredPrompts) -> ScoredPrompts:
        """The prompts, at least one, with an image that was not left out."""
        left = self.samples(measure, prompts.ids)
        rows = [row for row in zip(prompts.ids, prompts.categories, prompts.captions, strict=True) if left[row[0]]]
        if not rows:
            raise DataError(
                f"{measure}: every prompt has an image that its scorer refused, so nothing is left to compare; "
                "lower `refusals` of the scorer, or choose another"
            )
        return ScoredPrompts(*zip(*rows, strict=True))

    def left_out(self, scorer: str, prompt_ids: Sequence[str]) -> LeftOut:
        """Number of refused images of these prompts, and of the (prompt, sample) pairs left out as a result."""
        known = set(prompt_ids)
        counts = [n for (prompt_id, _), n in self._refused.get(scorer, Counter()).items() if prompt_id in known]
        return LeftOut(sum(counts), len(counts))

    def one(self, policy: str, mode: str, scorer: str, seed: int, sample: Sample) -> float:
        """The score of one image; NaN if the scorer refused it."""
        found = self._by_seed(policy, mode, scorer).get(seed, {})
        if sample not in found:
            what = f"train_seed={seed} prompt_id={sample[0]} sample={sample[1]}"
            raise self._missing(policy, mode, scorer, what)
        return found[sample]

    def prompt_set(self, prompts: Source, split: str, scorer: str) -> ScoredPrompts | None:
        """The prompts of a split, or None if the scorer judged none of the base's images for them.

        If it judged only some, DataError names a missing prompt.
        """
        found, by_seed = prompts_of(prompts, split), self._by_seed(BASE, BASE, scorer)
        scored = {prompt_id for of_seed in by_seed.values() for prompt_id, _ in of_seed}
        missing = [prompt_id for prompt_id in found.ids if prompt_id not in scored]
        if len(missing) == len(found.ids):
            return None
        if missing:
            raise self._missing(BASE, BASE, scorer, f"prompt_id={missing[0]} (split {split})")
        return found

    def _weights(self, measure: str) -> Mapping[str, float]:
        """Scorer to its weight in a measure."""
        return self._rewards if measure == REWARD else {measure: 1.0}

    def _by_seed(self, policy: str, mode: str, scorer: str) -> dict[int, dict[Sample, float]]:
        if (policy, scorer) not in self._paths:
            raise DataError(
                f"no scores of policy {policy!r} by scorer {scorer!r}, which the report needs; "
                "add the scorer to `scorers` in params.yaml and score again"
            )
        if (policy, mode, scorer) not in self._values:
            raise self._missing(policy, mode, scorer, "any prompt")
        return self._values[policy, mode, scorer]

    def _missing(self, policy: str, mode: str, scorer: str, what: str) -> DataError:
        return DataError(
            f"{self._paths[policy, scorer]}: no row with metric=score for policy={policy} mode={mode} {what}; "
            "every policy must be scored on the same prompts and samples as the base: "
            "run its generate and score stages again"
        )
