"""A vision-language model answers a question of the user about each image."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from chunk_grpo.config.judges import NumberReading, VlmJudgeScorer
from chunk_grpo.config.templates import Template, parse_template
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.judging.asking import TemplateScorer
from chunk_grpo.scorers.judging.reading import TOKEN_FIELDS, first_tokens, number_in, yes_probability
from chunk_grpo.scorers.judging.wording import digest, read_template


class VlmJudge(TemplateScorer[VlmJudgeScorer]):
    """Asks a judge the template's question about each image; the value is the number in the answer.

    The value is in [lowest, highest] or, with `scale: unit` and `yes-probability`, in [0, 1].
    """

    version = 1

    @property
    def name(self) -> str:
        """<key in params.yaml>/<judge>: the question makes the measure, and the key is its name."""
        return f"{self.key}/{self.settings.judge}"

    @property
    def fields(self) -> Mapping[str, Any]:
        """Default request fields."""
        return super().fields if isinstance(self.settings.reading, NumberReading) else TOKEN_FIELDS

    @property
    def wording(self) -> Mapping[str, str]:
        """Digest of the template's file."""
        return {} if self.settings.template_file is None else {"template": digest(self._template)}

    def answer(self, reply: bytes) -> str:
        """Answer in the body of a chat completion; ValueError if there is none."""
        return super().answer(reply) if isinstance(self.settings.reading, NumberReading) else first_tokens(reply)

    def parse(self, answer: str) -> float:
        """Value of a stored answer."""
        reading = self.settings.reading
        return number_in(answer, reading) if isinstance(reading, NumberReading) else yes_probability(answer)

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Same as `score`, without checking the batch."""
        labels = [f"prompt {prompt[:60]!r}" for prompt in batch.prompts]
        judged, refused = self.judged(
            [self.question(batch, row, self._template, label) for row, label in enumerate(labels)]
        )
        return Scores(np.array([judged.get(row, np.nan) for row in range(len(batch))]), {}, refused)

    @cached_property
    def _template(self) -> Template:
        if self.settings.template_file is not None:
            return read_template(self.where("template_file"), self.settings.template_file)
        return parse_template(self.settings.template or "")
