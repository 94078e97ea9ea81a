"""A vision-language model answers a question of the user about each image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from chunk_grpo.config.judges import NumberReading, VlmJudgeScorer
from chunk_grpo.config.templates import Template, parse_template
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.judging.asking import JudgeScorer, question_about
from chunk_grpo.scorers.judging.client import Question
from chunk_grpo.scorers.judging.reading import NumberByPattern, YesProbability
from chunk_grpo.scorers.judging.wording import digest, fill, read_template


class VlmJudge(JudgeScorer[VlmJudgeScorer]):
    """Asks a judge the template's question about each image; the value is the number in the answer.

    The value is in [lowest, highest] or, with `scale: unit` and `yes-probability`, in [0, 1]. A question is identified
    by image, text and system message.
    """

    version = 1

    @property
    def name(self) -> str:
        """<key in params.yaml>/<judge>: the question makes the measure, and the key is its name."""
        return f"{self.key}/{self.settings.judge}"

    @property
    def fields(self) -> Mapping[str, Any]:
        """Default request fields."""
        return self._reading.fields if isinstance(self._reading, YesProbability) else super().fields

    @property
    def wording(self) -> Mapping[str, str]:
        """Digest of the template's file."""
        return {} if self.settings.template_file is None else {"template": digest(self._template)}

    def answer(self, reply: bytes) -> str:
        """Answer in the body of a chat completion; ValueError if there is none."""
        return self._reading.answer(reply) if isinstance(self._reading, YesProbability) else super().answer(reply)

    def parse(self, answer: str) -> float:
        """Value of a stored answer."""
        return self._reading.value(answer)

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Same as `score`, without checking the batch."""
        questions = [self._question(batch, row) for row in range(len(batch))]
        judged, refused = self.judged(questions)
        return Scores(np.array([judged.get(row, np.nan) for row in range(len(batch))]), {}, refused)

    @cached_property
    def _reading(self) -> NumberByPattern | YesProbability:
        reading = self.settings.reading
        if isinstance(reading, NumberReading):
            pattern, to_unit = re.compile(reading.pattern), reading.scale == "unit"
            return NumberByPattern(pattern, reading.lowest, reading.highest, to_unit)
        return YesProbability()

    @cached_property
    def _template(self) -> Template:
        settings = self.settings
        if settings.template_file is not None:
            return read_template(f"scorers.{self.key}.template_file", settings.template_file)
        return parse_template(settings.template or "")

    def _question(self, batch: ScoreBatch, row: int) -> Question:
        text = fill(f"scorers.{self.key}", self._template, batch, row)
        label = f"prompt {batch.prompts[row][:60]!r}"
        return question_about(self.key, batch, row, text, label, self.settings)
