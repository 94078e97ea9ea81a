"""WISE: a vision-language model judges images whose prompts require world knowledge."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from chunk_grpo.config.judges import WiseScorer
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.judging.asking import JudgeScorer, question_key
from chunk_grpo.scorers.judging.client import Question
from chunk_grpo.scorers.judging.wording import digest
from chunk_grpo.scorers.wise.instructions import Instructions, find_instructions
from chunk_grpo.scorers.wise.protocols import NUM_PROMPTS, PROTOCOLS, image_value, parse_answer


class Wise(JudgeScorer[WiseScorer]):
    """Queries a judge about each image, by WISE's legacy or verified protocol.

    The prompts' metadata must have `wise_id` (whole number from 1 to 1000) and `explanation` (text). The prompts must
    come from the protocol's prompt set. The value is WiScore in [0, 1] with the details consistency, realism and
    aesthetic in [0, 2] (legacy), or 0 or 1 (verified). The mean over all 1,000 prompts of a version is WISE's Overall;
    the mean over a part of them is not.

    Unless `instructions` names a copy of the original evaluator, the judge gets this package's own wording. Such scores
    compare only among runs with the same protocol, judge and version, not with published scores.

    Every answer is written at once to `answers`/<spec hash>.jsonl. A question is identified by image, prompt,
    explanation and id. A killed run therefore resumes with the missing answers, and equal images are judged once.
    """

    version = 1

    @property
    def name(self) -> str:
        """wise/<protocol>/<judge>: the judge is part of the metric."""
        return f"wise/{self.settings.protocol}/{self.settings.judge}"

    @property
    def fields(self) -> Mapping[str, Any]:
        """Default request fields."""
        return {"max_tokens": PROTOCOLS[self.settings.protocol].max_tokens}

    @property
    def wording(self) -> Mapping[str, str]:
        """Digest of the instructions."""
        return {"instructions": digest(self._instructions.question, self._instructions.system)}

    def parse(self, answer: str) -> dict[str, int]:
        """Scores by name."""
        return parse_answer(self.settings.protocol, answer)

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Same as `score`, without checking the batch."""
        protocol = self.settings.protocol
        known = self.parsed(
            batch, _knowledge, ". This scorer needs WISE's prompts; set its `splits` to the splits that hold them."
        )
        scores, refused = self.judged([self._question(batch, row, *each) for row, each in enumerate(known)])
        names = PROTOCOLS[protocol].weights if protocol == "legacy" else ()
        values = np.full(len(batch), np.nan)
        details = {name: np.full(len(batch), np.nan) for name in names}
        for row, score in scores.items():
            values[row] = image_value(protocol, score)
            for name, detail in details.items():
                detail[row] = score[name]
        return Scores(values, details, refused)

    @cached_property
    def _instructions(self) -> Instructions:
        return find_instructions(f"scorers.{self.key}", self.settings.protocol, self.settings.instructions)

    def _question(self, batch: ScoreBatch, row: int, wise_id: int, explanation: str) -> Question:
        image = np.ascontiguousarray(batch.images[row])
        text = self._instructions.fill(batch.prompts[row], explanation)
        return Question(
            key=question_key(image, self.name, wise_id, text),
            label=f"WISE prompt {wise_id}",
            system=self._instructions.system,
            text=text,
            images=(image,),
        )


def _knowledge(prompt: str, record: Mapping[str, object]) -> tuple[int, str]:
    del prompt
    wise_id, explanation = record.get("wise_id"), record.get("explanation")
    if not isinstance(wise_id, int) or isinstance(wise_id, bool) or not 1 <= wise_id <= NUM_PROMPTS:
        raise ValueError(f"wise_id must be a whole number from 1 to {NUM_PROMPTS}, got {wise_id!r}")
    if not isinstance(explanation, str) or not explanation.strip():
        raise ValueError(f"explanation must be a text, got {explanation!r}")
    return wise_id, explanation
