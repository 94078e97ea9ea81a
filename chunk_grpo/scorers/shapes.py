"""Scorers of the shapes world: exact rules of captions and edits, smooth grades, and vividness, which can be hacked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.config.scorers import ShapesScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch, Scores
from chunk_grpo.scorers.running.configured import ConfiguredScorer
from chunk_grpo.shapes.detect import MIN_CONFIDENCE, detect
from chunk_grpo.shapes.edit_judge import graded_edit, judge_edit
from chunk_grpo.shapes.edits import Edit, parse_edit
from chunk_grpo.shapes.judge import exact_score, graded_score, vividness
from chunk_grpo.shapes.prompts import PromptSpec, parse_metadata
from chunk_grpo.shapes.scene import SIZE

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


class ShapesEdit(ConfiguredScorer[ShapesScorer]):
    """Value 1 if exactly the edit that the prompt asks for was made, else 0."""

    version = 1
    needs = frozenset({"prompt", "metadata"})

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Exact scores; as details, whether what was asked happened, and whether everything else was kept."""
        verdicts = [judge_edit(*pair) for pair in _edits(self, batch)]
        asked = np.array([float(verdict.asked is None) for verdict in verdicts])
        kept = np.array([float(verdict.kept is None) for verdict in verdicts])
        return Scores(asked * kept, {"asked": asked, "kept": kept})


class ShapesEditGraded(ConfiguredScorer[ShapesScorer]):
    """Degree to which exactly the edit was made, in [0, 1]; smooth."""

    version = 1
    needs = frozenset({"prompt", "metadata"})

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Grades in [0, 1]."""
        return Scores(np.array([graded_edit(*pair) for pair in _edits(self, batch)]))


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
        "shapes-edit": ShapesEdit,
        "shapes-edit-graded": ShapesEditGraded,
    }
    return kinds[settings.kind](key, settings, device)


def _floats(images: Pictures) -> NDArray[np.float32]:
    """Images as float32 [B, 3, H, W] in [0, 1]."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(255)


def _edits(scorer: ConfiguredScorer[ShapesScorer], batch: ScoreBatch) -> Iterator[tuple[NDArray[np.float32], Edit]]:
    """Images with their edits; DataError if they have another size than the pictures that were edited."""
    edits = scorer.parsed(batch, parse_edit, _NEED.replace("shapes)", "shapes-edits)"))
    images = _floats(batch.images)
    if images.shape[2:] != (SIZE, SIZE):
        height, width = images.shape[2:]
        raise DataError(
            f"scorers.{scorer.key}: judges images of {SIZE} x {SIZE} pixels, got {width} x {height}; set "
            "generate.height, generate.width, model.height and model.width"
        )
    return zip(images, edits, strict=True)


def _spec(prompt: str, record: Mapping[str, object]) -> PromptSpec:
    return parse_metadata({**record, "prompt": prompt})
