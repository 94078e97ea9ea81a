"""Settings of scorers that ask a vision-language model behind an endpoint."""

from typing import Any, ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt, field_validator

from chunk_grpo.config.scorer_settings import RefusingScorer, Url, Variable
from chunk_grpo.config.section import Text


class JudgeSettings(RefusingScorer):
    """Settings common to the scorers that ask a judge, a vision-language model at an OpenAI-compatible endpoint.

    Attributes:
        judge: id of the model at the endpoint; part of the metric's name.
        request: fields that each request adds to this package's fields or replaces them with; null removes a field.
            Qwen3.5 behind vLLM: {chat_template_kwargs: {enable_thinking: false}}.
        base_url: URL of the endpoint, including /v1; no user, password or query.
        api_key_variable: environment variable with the API key; null: the endpoint needs none.
        concurrency: number of concurrent requests; independent of `batch_size`.
        attempts: attempts at a failed request, and at a question whose answer cannot be parsed.
        timeout_seconds: time limit of one request.
        answers: folder of the stored answers, from which an interrupted run resumes.
    """

    NON_SCORING_FIELDS: ClassVar[frozenset[str]] = RefusingScorer.NON_SCORING_FIELDS | {
        *("concurrency", "attempts", "timeout_seconds", "api_key_variable", "answers")
    }

    judge: Text
    request: dict[str, Any]
    base_url: Url
    api_key_variable: Variable | None
    concurrency: PositiveInt
    attempts: PositiveInt
    timeout_seconds: PositiveFloat
    answers: Text

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
    """WISE: a judge of images of knowledge prompts.

    Attributes:
        protocol: version of the protocol. `legacy`: consistency, realism and aesthetic quality, 0 to 2 each;
            `verified`: right or wrong.
        instructions: local copy of WISE's evaluator, gpt_eval.py (legacy) or vllm_eval.py (verified), from which the
            question is read. Only scores with it compare with published ones. Null: this package's wording.
    """

    NON_SCORING_FIELDS: ClassVar[frozenset[str]] = JudgeSettings.NON_SCORING_FIELDS | {
        "instructions"  # the path; the content is hashed separately
    }

    kind: Literal["wise"]
    protocol: Literal["legacy", "verified"]
    instructions: Text | None

    @property
    def wording_files(self) -> dict[str, str]:
        """The evaluator's copy."""
        return {} if self.instructions is None else {"instructions": self.instructions}
