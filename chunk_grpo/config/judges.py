"""Settings of scorers that ask a vision-language model behind an endpoint."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, field_validator
from pydantic_core import PydanticCustomError

from chunk_grpo.config.questions import parse_questions
from chunk_grpo.config.scorer_settings import (
    NO_NETWORK,
    RIGHT_OR_NOT,
    JsonMapping,
    RefusingScorer,
    Scale,
    Url,
    Variable,
)
from chunk_grpo.config.section import Section, Text
from chunk_grpo.config.templates import parse_template

QUESTION_FIELDS = ("question", "prompt")
"""Fields of a template for listed questions, besides those of the metadata."""


def _checked_template(text: str, fields: Sequence[str] = ("prompt",)) -> str:
    try:
        parse_template(text, fields)
    except ValueError as error:
        raise PydanticCustomError("template", "{fault}", {"fault": str(error)}) from error
    return text


def _checked_question_template(text: str) -> str:
    _checked_template(text, QUESTION_FIELDS)
    if "question" not in parse_template(text, QUESTION_FIELDS).slots:
        raise PydanticCustomError("template", "must have the field {field}", {"field": "{question}"})
    return text


def _checked_pattern(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        fault = f"must be a regular expression ({error})"
        raise PydanticCustomError("pattern", "{fault}", {"fault": fault}) from error
    if groups != 1:
        fault = f"must have one group, the number, and (?:...) for others; has {groups}"
        raise PydanticCustomError("pattern", "{fault}", {"fault": fault})
    return pattern


def _check_keys(keys: Sequence[str], metadata: Mapping[str, object]) -> None:
    missing = [repr(key) for key in keys if metadata.get(key) is None]
    if missing:
        there = ", ".join(map(repr, metadata)) or "none"
        raise ValueError(f"needs the field {', '.join(missing)}, which `template` asks for, got {there}")


class JudgeSettings(RefusingScorer):
    """Settings common to the scorers that ask a judge, a vision-language model at an OpenAI-compatible endpoint."""

    NETWORK = NO_NETWORK
    NON_SCORING_FIELDS = RefusingScorer.NON_SCORING_FIELDS | {
        *("concurrency", "attempts", "timeout_seconds", "api_key_variable", "answers")
    }

    judge: Text
    """Id of the model at the endpoint; part of the metric's name. Source: WISE: gpt-4o-2024-05-13."""
    request: JsonMapping
    """Fields that each request adds to this package's fields or replaces them with; null removes a field. Qwen3.5
    behind vLLM: `{chat_template_kwargs: {enable_thinking: false}}`."""
    base_url: Url
    """URL of the endpoint, up to and including /v1; no user, password or query. Part of the identity: at another
    address all requests are repeated."""
    api_key_variable: Variable | None
    """Environment variable with the API key; null: no key is sent. Does not affect results."""
    concurrency: PositiveInt
    """Number of concurrent requests; independent of `batch_size`. Does not affect results."""
    attempts: PositiveInt
    """Attempts at a failed request, and at a question whose answer cannot be parsed. Does not affect results."""
    timeout_seconds: PositiveFloat
    """Time limit of one request, in seconds. Does not affect results."""
    answers: Text
    """Folder of the stored answers, from which an interrupted run resumes. Does not affect results."""

    @property
    def images_at_once(self) -> int:
        """At least 16 per concurrent request, so that few of them idle while the slowest finishes."""
        return max(16 * self.concurrency, self.batch_size)

    @property
    def wording_files(self) -> dict[str, str]:
        """Files with the wording of the questions, by the name of their setting; their content affects scores."""
        return {}

    @field_validator("request")
    @classmethod
    def _leaves_the_question_alone(cls, request: dict[str, Any]) -> dict[str, Any]:
        taken = sorted({"messages", "model", "n", "stream"} & set(request))
        if taken:
            raise ValueError(f"must not hold {', '.join(taken)}")
        return request


class WiseScorer(JudgeSettings):
    """WISE: a judge of images of knowledge prompts."""

    SCORER = "chunk_grpo.scorers.wise.scorer:Wise"
    NON_SCORING_FIELDS = JudgeSettings.NON_SCORING_FIELDS | {
        "instructions"  # the path; the content is hashed separately
    }

    kind: Literal["wise"]
    protocol: Literal["legacy", "verified"]
    """Version of the protocol. `legacy`: consistency, realism and aesthetic quality, 0 to 2 each; `verified`: right or
    wrong. Source: WISE."""
    instructions: Text | None
    """Local copy of WISE's evaluator, gpt_eval.py (legacy) or vllm_eval.py (verified), from which the question is read.
    Only scores with it compare with published ones. Null: this package's wording. Source: docs/scorers.md."""

    @property
    def wording_files(self) -> dict[str, str]:
        """The evaluator's copy."""
        return {} if self.instructions is None else {"instructions": self.instructions}

    @property
    def value_scale(self) -> Scale:
        """Scale of the values."""
        return Scale("WiScore, 0 to 1", 0, 1) if self.protocol == "legacy" else RIGHT_OR_NOT


class NumberReading(Section):
    """Number that a regular expression finds in the answer."""

    kind: Literal["number"]
    pattern: Annotated[Text, AfterValidator(_checked_pattern)]
    """Regular expression (Python's) with one group, the number. Source: yours."""
    lowest: float
    """Smallest number of the judge's scale; for a smaller one the judge is asked again. Source: yours."""
    highest: float
    """Largest number of the judge's scale, above `lowest`; for a larger one the judge is asked again. Source: yours."""
    scale: Literal["judge", "unit"]
    """Scale of the scores. `judge`: the number; `unit`: its position between lowest (0) and highest (1)."""


class YesReading(Section):
    """Probability of the answer yes, P(yes) / (P(yes) + P(no)), by the log probabilities of the first token."""

    kind: Literal["yes-probability"]


class VlmJudgeScorer(JudgeSettings):
    """A judge answers a question of yours about each image."""

    SCORER = "chunk_grpo.scorers.judging.vlm_judge:VlmJudge"
    NON_SCORING_FIELDS = JudgeSettings.NON_SCORING_FIELDS | {
        "template_file"  # the path; the content is hashed separately
    }
    DATA_FIELDS = ("metadata_keys",)

    kind: Literal["vlm-judge"]
    system: Text | None
    """System message; null: none."""
    template: Annotated[Text, AfterValidator(_checked_template)] | None
    """Question with the fields `{prompt}` and `{metadata.KEY}`, a value of the prompt's metadata; `{{` and `}}` are
    braces. Null: it is in `template_file`. Source: yours."""
    template_file: Text | None
    """Local file with the template, or the Python source (.py) of an evaluator that assigns an f-string with `{prompt}`
    to `question`. Null: `template`. Source: yours."""
    image: Literal["before", "after", "pair"]
    """Position of the image in the message, before or after the text; `pair`: the picture of which it is an edit, then
    the image, both before the text. Source: yours."""
    reading: Annotated[NumberReading | YesReading, Field(discriminator="kind")]
    """How the number is read from the answer. Source: yours."""

    @property
    def wording_files(self) -> dict[str, str]:
        """File with the template."""
        return {} if self.template_file is None else {"template_file": self.template_file}

    @property
    def metadata_keys(self) -> tuple[str, ...]:
        """Keys of the metadata that `template` asks for; those of `template_file` are found when it is read."""
        return () if self.template is None else parse_template(self.template).keys

    @property
    def value_scale(self) -> Scale:
        """Scale of the values."""
        match self.reading:
            case NumberReading(scale="judge", lowest=low, highest=high):
                return Scale(f"judge's scale, {low:g} to {high:g}", low, high)
            case NumberReading():
                return Scale("judge's scale, as 0 to 1", 0, 1)
        return Scale("probability of yes, 0 to 1", 0, 1)

    def check_data(self, prompt: str, metadata: Mapping[str, object]) -> None:
        """Check that the metadata has what `template` asks for."""
        _check_keys(self.metadata_keys, metadata)


class QuestionsScorer(JudgeSettings):
    """A judge answers the questions that the metadata of a prompt lists, each with yes or no; DPG-Bench's rule."""

    SCORER = "chunk_grpo.scorers.judging.questions:Questions"
    SCALE = Scale("share of questions, 0 to 1", 0, 1)
    DATA_FIELDS = ("metadata_keys",)

    kind: Literal["questions"]
    system: Text | None
    """System message; null: none."""
    template: Annotated[Text, AfterValidator(_checked_question_template)]
    """Message with the fields `{question}`, `{prompt}` and `{metadata.KEY}`; `{{` and `}}` are braces. Source:
    yours."""
    image: Literal["before", "after", "pair"]
    """Position of the image in the message, before or after the text; `pair`: the picture of which it is an edit, then
    the image, both before the text. Source: yours."""

    @property
    def metadata_keys(self) -> tuple[str, ...]:
        """Keys of the metadata that `template` asks for, besides the questions."""
        return parse_template(self.template, QUESTION_FIELDS).keys

    def check_data(self, prompt: str, metadata: Mapping[str, object]) -> None:
        """Check that the metadata has questions, and what `template` asks for."""
        parse_questions(metadata)
        _check_keys(self.metadata_keys, metadata)
