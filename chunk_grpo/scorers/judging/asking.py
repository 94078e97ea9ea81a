"""Base of the scorers that ask a judge: every question of a batch is asked, and every answer is kept on arrival."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.config.judges import JudgeSettings, QuestionsScorer, VlmJudgeScorer
from chunk_grpo.config.templates import METADATA, Template
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Need, ScoreBatch, Scores, sources_of
from chunk_grpo.scorers.judging.answers import AnswerFile
from chunk_grpo.scorers.judging.client import Judge, Question
from chunk_grpo.scorers.judging.reading import answer_text, without_thoughts
from chunk_grpo.scorers.running.configured import ConfiguredScorer
from chunk_grpo.scorers.running.fingerprint import spec_hash

Settings = TypeVar("Settings", bound=JudgeSettings)
WithTemplate = TypeVar("WithTemplate", bound=VlmJudgeScorer | QuestionsScorer)


class JudgeScorer(ConfiguredScorer[Settings]):
    """A vision-language model behind an OpenAI-compatible endpoint answers questions about images.

    Every answer is written at once to `answers`/<spec hash>.jsonl. A killed run therefore resumes with the missing
    answers, and equal questions about equal images are asked once.

    A subclass sets `version`, and implements `parse` and `score_rows`.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"prompt", "metadata"})

    @property
    def fields(self) -> Mapping[str, Any]:
        """Default request fields."""
        return {"max_tokens": 2000}

    @property
    def wording(self) -> Mapping[str, str]:
        """Digests of the questions' wording, as far as it is not in the settings. Reads its file."""
        return {}

    def answer(self, reply: bytes) -> str:
        """Answer in the body of a chat completion; ValueError if there is none."""
        return answer_text(reply)

    @abstractmethod
    def parse(self, answer: str) -> object:
        """Content of a stored answer; ValueError if it is malformed."""

    def check(self) -> None:
        """Read the wording, and check that the endpoint answers."""
        self.spec_hash()  # reads the wording
        self._judge.check()

    def spec_hash(self) -> str:
        """Hash of version, score-relevant settings and wording; not of request rates or retries."""
        return spec_hash(self.key, self.version, self.settings, self.files, self.wording)

    def score_all(self, batch: ScoreBatch) -> Scores:
        """Score a checked batch of any size, with `concurrency` requests at a time.

        An image without a well-formed answer is refused; the other images are still judged.
        """
        return self.score_rows(batch)

    def ask(self, questions: Sequence[Question]) -> dict[str, str]:
        """Ask every question without a stored answer.

        Returns:
            Key of each question without a well-formed answer, to the reason.
        """
        missing = {question.key: question for question in questions if question.key not in self._answers}
        return self._judge.ask(list(missing.values()), self._take) if missing else {}

    def stored(self, question: Question) -> Any:
        """Content of the answer to a question that `ask` has asked."""
        return self.parse(self._answers[question.key])

    def judged(self, questions: Sequence[Question]) -> tuple[dict[int, Any], dict[int, str]]:
        """Ask one question about each image.

        Returns:
            Row of each judged image to the content of its answer, and of each refused one to the reason.
        """
        faults = self.ask(questions)
        refused = {row: faults[each.key] for row, each in enumerate(questions) if each.key in faults}
        return {row: self.stored(each) for row, each in enumerate(questions) if row not in refused}, refused

    @cached_property
    def _file(self) -> AnswerFile:
        return AnswerFile(Path(self.settings.answers) / f"{self.spec_hash()}.jsonl")

    @cached_property
    def _answers(self) -> dict[str, str]:
        return self._file.read(self.parse)

    @cached_property
    def _judge(self) -> Judge:
        return Judge(f"scorers.{self.key}", self.settings, self.fields, self.answer)

    def _take(self, question: Question, answer: str) -> None:
        """Store a well-formed answer, without reasoning; raise ValueError for any other."""
        answer = without_thoughts(answer)
        self.parse(answer)
        self._file.append(question.key, question.label, answer)
        self._answers[question.key] = answer


def question_key(pixels: NDArray[np.uint8], *words: object) -> str:
    """Key of a question: hash of its images' pixels, [H, W, 3] or [2, H, W, 3], and JSON values that identify it.

    Pixels, since PNG bytes differ between encoder versions.
    """
    question = json.dumps([*words, pixels.shape])
    return hashlib.sha256(question.encode() + pixels.tobytes()).hexdigest()


class TemplateScorer(JudgeScorer[WithTemplate]):
    """A judge whose questions are the user's template, filled in for each image."""

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]  # of the settings, not of the class
        """Prompt and metadata, and the pictures if the judge sees a pair."""
        return super().needs | ({"sources"} if self.settings.image == "pair" else set())

    def question(
        self, batch: ScoreBatch, row: int, template: Template, label: str, values: Mapping[str, str] | None = None
    ) -> Question:
        """Question about an image, identified by images, system message and text.

        Args:
            batch: Images with prompts and metadata.
            row: Row of the image.
            template: The template. Texts of the metadata are filled in as they are, other values as JSON.
            label: Name of the question in messages.
            values: Values of the template's other fields.

        Raises:
            DataError: The prompt's metadata has no value for a field; or the judge is to see the picture that the image
                edits, and there is none.
        """
        prompt, record = batch.prompts[row], batch.metadata[row]
        filled = {"prompt": prompt, **(values or {})}
        for key in template.keys:
            value = record.get(key)
            if value is None:
                raise DataError(
                    f"scorers.{self.key}: row {row + 1} of {len(batch)}, prompt {prompt!r}: the metadata has no "
                    f"{key!r}, which the template asks for; it has {', '.join(sorted(record)) or 'nothing'}. Add the "
                    "column to the prompt file, or set `splits` to splits whose prompts have it."
                )
            filled[f"{METADATA}{key}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        text, system, place = template.fill(filled), self.settings.system, self.settings.image
        shown = np.ascontiguousarray(batch.images[row])
        if place == "pair":
            shown = np.stack([sources_of(self.key, batch)[row], shown])
        images = tuple(shown) if place == "pair" else (shown,)
        return Question(question_key(shown, system, text), label, system, text, images, images_first=place != "after")
