"""Scorers of the shapes world: GenEval's exact rules, a smooth grade, and vividness (a reward that can be hacked)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.config.scorers import ShapesScorer
from chunk_grpo.scorers.base import Pictures, ScoreBatch, Scores
from chunk_grpo.scorers.running.configured import ConfiguredScorer
from chunk_grpo.shapes.detect import MIN_CONFIDENCE, detect
from chunk_grpo.shapes.judge import exact_score, graded_score, vividness
from chunk_grpo.shapes.prompts import PromptSpec, parse_metadata

_NEED = ". This scorer needs prompts of the shapes world (prompts.source: shapes); choose others for other prompts."


class ShapesExact(ConfiguredScorer[ShapesScorer]):
    """Value 1 if the image meets every demand of the prompt, else 0, by the rules of GenEval's evaluator."""

    version = 1
    needs = frozenset({"prompt", "metadata"})

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Exact scores, with the number of confident detections as a detail."""
        found = [detect(image) for image in _floats(batch.images)]
        specs = self.parsed(batch, _spec, _NEED)
        values = [float(exact_score(d, spec)) for d, spec in zip(found, specs, strict=True)]
        confident = [float(sum(d.confidence >= MIN_CONFIDENCE for d in ds)) for ds in found]
        return Scores(np.array(values), {"detections": np.array(confident)})


class ShapesGraded(ConfiguredScorer[ShapesScorer]):
    """Degree to which the demands are met, in [0, 1]. It is smooth, so that groups rarely have equal rewards."""

    version = 1
    needs = frozenset({"prompt", "metadata"})

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Grades in [0, 1]."""
        specs = self.parsed(batch, _spec, _NEED)
        images = _floats(batch.images)
        grades = [graded_score(detect(image), spec) for image, spec in zip(images, specs, strict=True)]
        return Scores(np.array(grades))


class ShapesVivid(ConfiguredScorer[ShapesScorer]):
    """Vividness in [0, 1], independent of the prompt; a simple model of a preference model that can be hacked."""

    version = 1
    needs = frozenset()

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Vividness in [0, 1]."""
        return Scores(np.array([vividness(image) for image in _floats(batch.images)]))


def shapes_scorer(key: str, settings: ShapesScorer, device: str | None) -> ConfiguredScorer[ShapesScorer]:
    """The scorer of a kind, which needs no device."""
    kinds: dict[str, Callable[..., ConfiguredScorer[ShapesScorer]]] = {
        "shapes-exact": ShapesExact,
        "shapes-graded": ShapesGraded,
        "shapes-vivid": ShapesVivid,
    }
    return kinds[settings.kind](key, settings, device)


def _floats(images: Pictures) -> NDArray[np.float32]:
    """Images as float32 [B, 3, H, W] in [0, 1]."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(255)


def _spec(prompt: str, record: Mapping[str, object]) -> PromptSpec:
    return parse_metadata({**record, "prompt": prompt})
