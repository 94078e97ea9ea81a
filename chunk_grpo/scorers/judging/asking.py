"""Base of the scorers that ask a judge: every question of a batch is asked, and every answer is kept on arrival."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.config.judges import JudgeSettings, QuestionsScorer, VlmJudgeScorer
from chunk_grpo.scorers.base import Need, ScoreBatch, Scores, sources_of
from chunk_grpo.scorers.judging.answers import AnswerFile
from chunk_grpo.scorers.judging.client import Judge, Question
from chunk_grpo.scorers.judging.endpoint import Endpoint
from chunk_grpo.scorers.judging.reading import answer_text, without_thoughts
from chunk_grpo.scorers.running.configured import ConfiguredScorer
from chunk_grpo.scorers.running.fingerprint import spec_hash

Settings = TypeVar("Settings", bound=JudgeSettings)


class JudgeScorer(ConfiguredScorer[Settings]):
    """A vision-language model behind an OpenAI-compatible endpoint answers questions about images.

    Every answer is written at once to `answers`/<spec hash>.jsonl. A killed run therefore resumes with the missing
    answers, and equal questions about equal images are asked once.

    A subclass sets `version`, and implements `parse` and `score_rows`.
    """

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]  # of the settings, not of the class
        """Prompt and metadata, and the pictures if the judge sees a pair."""
        is_pair = getattr(self.settings, "image", None) == "pair"
        return frozenset(("prompt", "metadata", *(("sources",) if is_pair else ())))

    @property
    def fields(self) -> Mapping[str, Any]:
        """Default request fields."""
        return {"max_tokens": 2000}

    @property
    def wording(self) -> Mapping[str, str]:
        """Digests of the questions' wording, as far as it is not in the settings.

        Raises:
            DataError: A file with the wording cannot be read.
        """
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
        return Judge(Endpoint(f"scorers.{self.key}", self.settings, self.fields), self.answer)

    def _take(self, question: Question, answer: str) -> None:
        """Store a well-formed answer, without reasoning; raise ValueError for any other."""
        answer = without_thoughts(answer)
        self.parse(answer)
        self._file.append(question.key, question.label, answer)
        self._answers[question.key] = answer


def question_key(pixels: NDArray[np.uint8], *words: object) -> str:
    """Key of a question. It hashes pixels, not PNG bytes, which differ between encoder versions.

    Args:
        pixels: uint8 [H, W, 3], or [2, H, W, 3] of two images.
        words: JSON values that identify the question.
    """
    question = json.dumps([*words, pixels.shape])
    return hashlib.sha256(question.encode() + pixels.tobytes()).hexdigest()


def question_about(
    key: str, batch: ScoreBatch, row: int, text: str, label: str, settings: VlmJudgeScorer | QuestionsScorer
) -> Question:
    """Question with a user's template, identified by images, system message and text.

    Args:
        key: Name of the scorer in params.yaml.
        batch: Images.
        row: Row of the image.
        text: The filled template.
        label: Name of the question in messages.
        settings: Section with the system message and the position of the image.

    Raises:
        DataError: The judge is to see the picture that the image edits, and there is none.
    """
    image, system = np.ascontiguousarray(batch.images[row]), settings.system
    if settings.image != "pair":
        first = settings.image == "before"
        return Question(question_key(image, system, text), label, system, text, (image,), images_first=first)
    pair = np.stack([sources_of(key, batch)[row], image])
    return Question(question_key(pair, system, text), label, system, text, tuple(pair), images_first=True)
