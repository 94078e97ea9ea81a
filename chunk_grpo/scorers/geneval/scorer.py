"""GenEval: whether an image shows the objects, numbers, colours and positions that its prompt names.

Applies the benchmark's rules (rules) to a Mask2Former's detections (detector) and a CLIP model's colours (colours).
The original detector needs mmdet. transformers' detector has the same architecture but other weights, for which the
thresholds are not calibrated; hence the name geneval-hf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch

from chunk_grpo.config.scorers import GenEvalScorer
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.clip_model import MODEL_FILES, PROCESSOR_FILES, load_processor, take_encoder
from chunk_grpo.scorers.geneval.colours import ColourClassifier, crop_object
from chunk_grpo.scorers.geneval.detector import DETECTOR_FILES, Detector, check_classes, load_detector
from chunk_grpo.scorers.geneval.records import GenEvalRecord, parse_record
from chunk_grpo.scorers.geneval.rules import Verdict, asked_colours, found_objects, judge
from chunk_grpo.scorers.running.configured import ConfiguredScorer, chosen_device, model_name

_NEED = (
    ". This scorer needs GenEval's prompts, with the records of evaluation_metadata.jsonl as metadata; choose other "
    "scorers for other prompts."
)


class GenEval(ConfiguredScorer[GenEvalScorer]):
    """Value 1 if the image meets every clause of the prompt's record, else 0; with `reward: graded` Flow-GRPO's reward.

    Details: `objects`, the number of counted detections; `unmet`, the number of unmet clauses.
    """

    version = 1
    needs = frozenset({"prompt", "metadata"})

    @property
    def name(self) -> str:
        """Name with the detector, which the score depends on."""
        kind = "geneval-graded" if self.settings.reward == "graded" else "geneval-hf"
        return f"{kind}/{model_name(self.settings.detector)}"

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """File patterns of detector and classifier."""
        return {"detector": DETECTOR_FILES, "classifier": MODEL_FILES + PROCESSOR_FILES}

    def check(self) -> None:
        """Check the files of both models, and that the detector has COCO's classes."""
        super().check()
        check_classes(self.where("detector"), self.folder("detector"))

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Values with details."""
        verdicts = self.judge_rows(batch)
        is_graded = self.settings.reward == "graded"
        return Scores(
            np.array([verdict.graded if is_graded else float(verdict.correct) for verdict in verdicts]),
            {
                "objects": np.array([float(verdict.num_objects) for verdict in verdicts]),
                "unmet": np.array([float(len(verdict.reasons)) for verdict in verdicts]),
            },
        )

    def judge_rows(self, batch: ScoreBatch) -> list[Verdict]:
        """Verdicts behind `score_rows`, with the reasons."""
        records = self.parsed(batch, lambda _, record: parse_record(record), _NEED)
        detector, classifier = self.models
        least = min(self.settings.threshold, self.settings.counting_threshold)
        detections = detector.detect(batch.images, least)
        found = [
            found_objects(seen, self._threshold(record), self.settings.max_objects)
            for seen, record in zip(detections, records, strict=True)
        ]
        asked = [(row, wanted) for row, record in enumerate(records) for wanted in asked_colours(record, found[row])]
        crops = [
            crop_object(batch.images[row], detections[row].masks[number], detections[row].boxes[number])
            for row, (_, number) in asked
        ]
        colours = dict(zip(asked, classifier.classify(crops, [name for _, (name, _) in asked]), strict=True))
        return [
            judge(
                record,
                found[row],
                detections[row].boxes,
                {wanted: colour for (owner, wanted), colour in colours.items() if owner == row},
                self.settings.position_threshold,
            )
            for row, record in enumerate(records)
        ]

    def _threshold(self, record: GenEvalRecord) -> float:
        return self.settings.counting_threshold if record.tag == "counting" else self.settings.threshold

    @cached_property
    def models(self) -> tuple[Detector, ColourClassifier]:
        """Detector and classifier."""
        settings, device = self.settings, chosen_device(self.device)
        key, dtype = self.where("detector"), getattr(torch, settings.dtype)
        detector = self.take_model(
            ("mask2former", settings.detector, settings.dtype, device),
            lambda: load_detector(key, self.folder("detector"), dtype, device),
        )
        encoder = take_encoder(self, "classifier")
        processor = load_processor(self.where("classifier"), self.folder("classifier"), encoder)
        return detector, ColourClassifier(encoder, processor)
