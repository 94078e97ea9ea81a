"""Questions that a benchmark lists for each prompt, answered with yes or no: DPG-Bench's value of an image."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from chunk_grpo.config.judges import QUESTION_FIELDS, QuestionsScorer
from chunk_grpo.config.questions import ListedQuestion, parse_questions
from chunk_grpo.config.templates import parse_template
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.judging.asking import TemplateScorer

_YES_OR_NO = re.compile(r"[\"'*]*(yes|no)[\"'*.!]*", re.IGNORECASE)
"""One word, also bold, in quotation marks, or with a full stop."""

_QUOTED = 60
"""Maximum number of characters of an answer, or of a prompt, that a message quotes."""


class Questions(TemplateScorer[QuestionsScorer]):
    """Asks a judge the questions of a prompt about its image; the value is the share that counts, in [0, 1].

    A question counts if it and its parents are answered yes (`image_value`). Detail `yes`: share that is answered yes,
    whatever the parents. An image without an answer to each of its questions is refused.
    """

    version = 1

    @property
    def name(self) -> str:
        """questions/<judge>."""
        return f"questions/{self.settings.judge}"

    def parse(self, answer: str) -> bool:
        """Whether a stored answer is yes."""
        return yes_or_no(answer)

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Same as `score`, without checking the batch."""
        need = ". Set `splits` to splits whose prompts have questions, such as those of kind dpg."
        listed = self.parsed(batch, lambda _, record: parse_questions(record), need)
        template = parse_template(self.settings.template, QUESTION_FIELDS)
        asked = [
            [
                self.question(
                    batch,
                    row,
                    template,
                    f"question {one.id} of prompt {batch.prompts[row][:_QUOTED]!r}",
                    {"question": one.text},
                )
                for one in questions
            ]
            for row, questions in enumerate(listed)
        ]
        faults = self.ask([question for questions in asked for question in questions])
        values, yes = np.full(len(batch), np.nan), np.full(len(batch), np.nan)
        refused: dict[int, str] = {}
        for row, questions in enumerate(asked):
            missing = [faults[question.key] for question in questions if question.key in faults]
            if missing:
                refused[row] = f"{len(missing)} of {len(questions)} questions have no answer, such as {missing[0]}"
                continue
            answers = [self.stored(question) for question in questions]
            values[row] = image_value(listed[row], answers)
            yes[row] = np.mean(answers)
        return Scores(values, {"yes": yes}, refused)


def image_value(questions: Sequence[ListedQuestion], answers: Sequence[bool]) -> float:
    """Share of questions that count: answered yes, with no parent that does not count.

    DPG-Bench's rule: questions are taken in their order, and one whose parent is 0 by then becomes 0. So a no is passed
    on to all descendants, if parents precede their children.

    Args:
        questions: Questions about an image.
        answers: Whether each is answered yes.

    Returns:
        The share, in [0, 1]. DPG-Bench's score is its mean over all images, times 100.

    Source: TencentQQGYLab/ELLA at 3c228f1, dpg_bench/compute_dpg_bench.py, compute_dpg_one_sample.
    """
    counts = {question.id: yes for question, yes in zip(questions, answers, strict=True)}
    for question in questions:
        if not all(counts[parent] for parent in question.parents):
            counts[question.id] = False
    return sum(counts.values()) / len(counts)


def yes_or_no(answer: str) -> bool:
    """Whether the answer is yes; ValueError if it is neither yes nor no, as one word."""
    found = _YES_OR_NO.fullmatch(answer.strip())
    if found is None:
        raise ValueError(f"must be yes or no, as one word, got {answer[:_QUOTED]!r}")
    return found[1].lower() == "yes"
