"""WISE: a vision-language model judges images whose prompts require world knowledge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.config.judges import WiseScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import ScoreBatch, Scores, check_batch
from chunk_grpo.scorers.running.configured import ConfiguredScorer
from chunk_grpo.scorers.running.fingerprint import spec_hash
from chunk_grpo.scorers.wise.answers import AnswerFile
from chunk_grpo.scorers.wise.endpoint import Endpoint
from chunk_grpo.scorers.wise.instructions import Instructions, find_instructions
from chunk_grpo.scorers.wise.judge import Judge, Question
from chunk_grpo.scorers.wise.protocols import (
    NUM_PROMPTS,
    PROTOCOLS,
    image_value,
    parse_answer,
    without_thoughts,
)


class Wise(ConfiguredScorer[WiseScorer]):
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
    needs = frozenset({"prompt", "metadata"})

    @property
    def name(self) -> str:
        """wise/<protocol>/<judge>: the judge is part of the metric."""
        return f"wise/{self.settings.protocol}/{self.settings.judge}"

    def check(self) -> None:
        """Read the instructions, and check that the endpoint answers.

        Raises:
            ConfigError: The openai package is not installed (the message names the extra), or the key's variable is
                not set.
            DataError: The instructions cannot be read, or the endpoint refuses the key.
            TransientError: The endpoint does not answer.
        """
        self.spec_hash()  # reads the instructions
        self._judge.check()

    def spec_hash(self) -> str:
        """Hash of version, score-relevant settings and wording of the instructions; not of request rates or retries."""
        words = {"instructions": self._instructions.digest()}
        return spec_hash(self.key, self.version, self.settings, self.files, words)

    def score(self, batch: ScoreBatch) -> Scores:
        """Score a batch of any size, with `concurrency` requests at a time.

        An image without a well-formed answer is refused; the other images are still judged.

        Raises:
            ConfigError: The openai package is not installed, or the key's variable is not set.
            DataError: The metadata is not WISE's, or the endpoint refuses the key or the form of the requests.
            TransientError: The endpoint fails or does not answer.
        """
        check_batch(batch)
        return self.score_rows(batch)

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Same as `score`, without checking the batch."""
        protocol = self.settings.protocol
        questions = [self._question(batch, row) for row in range(len(batch))]
        missing = {q.key: q for q in questions if q.key not in self._answers}
        faults = self._judge.ask(list(missing.values()), self._take) if missing else {}
        refused = {
            row: faults[question.key] for row, question in enumerate(questions) if question.key in faults
        }
        scores = {
            row: parse_answer(protocol, self._answers[question.key])
            for row, question in enumerate(questions)
            if row not in refused
        }
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

    @cached_property
    def _file(self) -> AnswerFile:
        return AnswerFile(Path(self.settings.answers) / f"{self.spec_hash()}.jsonl")

    @cached_property
    def _answers(self) -> dict[str, str]:
        return self._file.read(lambda answer: parse_answer(self.settings.protocol, answer))

    @cached_property
    def _judge(self) -> Judge:
        settings = self.settings
        return Judge(
            Endpoint(
                section=f"scorers.{self.key}",
                judge=settings.judge,
                url=settings.base_url,
                api_key_variable=settings.api_key_variable,
                request=settings.request,
                max_tokens=PROTOCOLS[settings.protocol].max_tokens,
                concurrency=settings.concurrency,
                attempts=settings.attempts,
                timeout_seconds=settings.timeout_seconds,
            )
        )

    def _take(self, question: Question, answer: str) -> None:
        """Store a well-formed answer; raise ValueError for any other."""
        answer = without_thoughts(answer)
        parse_answer(self.settings.protocol, answer)
        self._file.append(question.key, question.label, answer)
        self._answers[question.key] = answer

    def _question(self, batch: ScoreBatch, row: int) -> Question:
        prompt, image = batch.prompts[row], np.ascontiguousarray(batch.images[row])
        wise_id, explanation = self._knowledge(prompt, batch.metadata[row])
        text = self._instructions.fill(prompt, explanation)
        return Question(
            key=_key(image, wise_id, text, self.name),
            label=f"WISE prompt {wise_id}",
            system=self._instructions.system,
            text=text,
            image=image,
        )

    def _knowledge(self, prompt: str, record: Mapping[str, object]) -> tuple[int, str]:
        wise_id, explanation = record.get("wise_id"), record.get("explanation")
        if not isinstance(wise_id, int) or isinstance(wise_id, bool) or not 1 <= wise_id <= NUM_PROMPTS:
            fault = f"wise_id must be a whole number from 1 to {NUM_PROMPTS}, got {wise_id!r}"
        elif not isinstance(explanation, str) or not explanation.strip():
            fault = f"explanation must be a text, got {explanation!r}"
        else:
            return wise_id, explanation
        raise DataError(
            f"scorers.{self.key}: prompt {prompt!r}: metadata: {fault}. This scorer needs WISE's prompts; set "
            "its `splits` to the splits that hold them."
        )


def _key(image: NDArray[np.uint8], wise_id: int, text: str, name: str) -> str:
    """Key of a question. It hashes pixels, not PNG bytes, which differ between encoder versions."""
    question = json.dumps([name, wise_id, text, image.shape])
    return hashlib.sha256(question.encode() + image.tobytes()).hexdigest()
