"""The scorers of params.yaml: what each one needs, and where it runs.

A scorer's settings move its results and identify what is measured; where it runs (`executors`) moves none.
"""

import re
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    field_validator,
)
from pydantic_core import PydanticCustomError

from chunk_grpo.config.section import BatchSize, Fraction, Name, Section, Text

Dtype = Literal["float32", "bfloat16"]


def _without_user(url: object) -> object:
    """The URL with *** for its user and password: what is refused is quoted, and must not tell them."""
    return re.sub("//.*@", "//***@", url) if isinstance(url, str) else url


def _checked_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s@?#]+", url) or not _has_a_possible_port(url):
        raise PydanticCustomError(
            "server_url",
            "must be http:// or https:// with a host, and no user, password, query or fragment (secrets stand in an "
            "environment variable that another key names)",
        )
    return url


def _has_a_possible_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


Url = Annotated[str, AfterValidator(_checked_url), BeforeValidator(_without_user)]


def _checked_variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise PydanticCustomError(
            "variable", "must be the name of an environment variable: letters, digits and _, no digit first"
        )
    return name


Variable = Annotated[str, AfterValidator(_checked_variable)]
"""Name of an environment variable."""


class Weights(Section):
    """Where the files of a model are.

    Attributes:
        checkpoint: a local folder, or a hub id.
        revision: a hub commit; null for a local folder.
    """

    checkpoint: Text
    revision: Text | None


class ScorerSettings(Section):
    """What every scorer has.

    Attributes:
        splits: of the prompts, those whose images are scored.
        batch_size: images scored at a time; fewer where the device's memory is too small for them.
    """

    MOVES_NO_SCORE: ClassVar[frozenset[str]] = frozenset({"splits", "batch_size"})
    """Settings that choose images, or how they are scored at less cost; the rest could move a score."""

    splits: Annotated[tuple[Name, ...], Field(min_length=1)]
    batch_size: BatchSize

    @property
    def images_at_once(self) -> int:
        """Evaluation images that are handed over at a time, and whose scores are kept together."""
        return self.batch_size


class ShapesScorer(ScorerSettings):
    """A scorer of the toy world: exact rules, their smooth grade, or vividness."""

    kind: Literal["shapes-exact", "shapes-graded", "shapes-vivid"]


class ClipScorer(ScorerSettings):
    """Similarity of image and prompt by a CLIP model.

    Attributes:
        model: a CLIPModel in the transformers layout.
        processor: of images and texts; null: the model's own.
        resize: `processor`: as its preprocessor_config.json says, which is the shorter side to the model's size and the
            middle of the longer; `squash`: both sides to the model's size, as open_clip does for DFN5B.
        dtype: of the weights.
        scale: `cosine` in [-1, 1], or `logit`, which is that times exp(logit_scale).
    """

    kind: Literal["clip"]
    model: Weights
    processor: Weights | None
    resize: Literal["processor", "squash"]
    dtype: Dtype
    scale: Literal["cosine", "logit"]


class PickScoreScorer(ScorerSettings):
    """PickScore: a CLIP ViT-H/14 tuned on preferences.

    Attributes:
        model: PickScore_v1, or another CLIPModel.
        processor: of images and texts; that of the CLIP it was tuned from.
        dtype: of the weights.
        scale: `logit` (about 22 for good images), `cosine` (about 0.22) or `logit/26` (about 0.85).
    """

    kind: Literal["pickscore"]
    model: Weights
    processor: Weights
    dtype: Dtype
    scale: Literal["logit", "cosine", "logit/26"]


class ImageRewardScorer(ScorerSettings):
    """ImageReward: BLIP with a regression head, standardised.

    Attributes:
        model: folder or repository with ImageReward.pt and med_config.json.
        tokenizer: of bert-base-uncased.
        dtype: of the weights.
    """

    kind: Literal["imagereward"]
    model: Weights
    tokenizer: Weights
    dtype: Dtype


class HPSv3Scorer(ScorerSettings):
    """HPSv3: Qwen2-VL-7B with a head that reads the mean of a preference score at a special token.

    Attributes:
        model: folder or repository with HPSv3.safetensors.
        backbone: configuration, tokenizer and image processor of Qwen2-VL-7B-Instruct; its weights are not read.
        dtype: of the backbone's weights; the head is float32.
    """

    kind: Literal["hpsv3"]
    model: Weights
    backbone: Weights
    dtype: Dtype


class GenEvalScorer(ScorerSettings):
    """GenEval's rules on a Mask2Former's detections.

    Attributes:
        detector: a Mask2FormerForUniversalSegmentation trained on COCO's instances.
        classifier: the CLIP model that names colours.
        dtype: of the weights.
        threshold: confidence above which a detection counts.
        counting_threshold: the same where the prompt demands a number.
        max_objects: detections kept of each class.
        position_threshold: of the summed sides, by which offsets shrink.
    """

    kind: Literal["geneval"]
    detector: Weights
    classifier: Weights
    dtype: Dtype
    threshold: Fraction
    counting_threshold: Fraction
    max_objects: PositiveInt
    position_threshold: NonNegativeFloat


class RefusingScorer(ScorerSettings):
    """A scorer that may refuse to judge an image.

    Attributes:
        refusals: share of the evaluation images that may stay without a score; above it the stage ends with an error.
    """

    MOVES_NO_SCORE: ClassVar[frozenset[str]] = ScorerSettings.MOVES_NO_SCORE | {"refusals"}

    refusals: Annotated[float, Field(ge=0, le=1)] = 0.0


class WiseScorer(RefusingScorer):
    """WISE: a vision-language model behind an OpenAI-compatible endpoint judges images of knowledge prompts.

    Attributes:
        protocol: `legacy`: consistency, realism and aesthetic quality, 0 to 2 each; `verified`: right or wrong.
        judge: the model's id at the endpoint; part of the metric's name.
        instructions: the user's own copy of WISE's evaluator, gpt_eval.py (legacy) or vllm_eval.py (verified), whose
            question is asked; published numbers compare with no other. Null: this package's wording.
        request: fields of each request besides, or instead of, those of this package; null leaves one out.
            Qwen3.5 behind vLLM: {chat_template_kwargs: {enable_thinking: false}}.
        base_url: of the endpoint, up to and with /v1; no user, password or query.
        api_key_variable: environment variable with the key; null: the endpoint asks for none.
        concurrency: requests under way at once; here `batch_size` has no part in it.
        attempts: of a request that fails, and of a question answered in another form than asked for.
        timeout_seconds: of one request.
        answers: folder for the answers, by which a run that was stopped goes on.
    """

    MOVES_NO_SCORE: ClassVar[frozenset[str]] = RefusingScorer.MOVES_NO_SCORE | {
        *("concurrency", "attempts", "timeout_seconds", "api_key_variable", "answers"),
        "instructions",  # where they are; what they say does, and is told apart from it
    }

    kind: Literal["wise"]
    protocol: Literal["legacy", "verified"]
    judge: Text
    instructions: Text | None
    request: dict[str, Any]
    base_url: Url
    api_key_variable: Variable | None
    concurrency: PositiveInt
    attempts: PositiveInt
    timeout_seconds: PositiveFloat
    answers: Text

    @property
    def images_at_once(self) -> int:
        """Enough for all requests at once, whose answers are kept one by one; so that few wait for the slowest."""
        return max(16 * self.concurrency, self.batch_size)

    @field_validator("request")
    @classmethod
    def _leaves_the_question_alone(cls, request: dict[str, Any]) -> dict[str, Any]:
        taken = sorted({"messages", "model", "n", "stream"} & set(request))
        if taken:
            raise ValueError(f"must not hold {', '.join(taken)}")
        return request


class ExternalScorer(RefusingScorer):
    """A scorer from outside this package.

    Attributes:
        source: an entry point of the group chunk_grpo.scorers, or `module:attribute`, a class or a function.
        version: raised by hand when it scores the same image differently for a reason that its code does not show.
        options: its keyword arguments.
        files: files and folders that it reads: their content is part of what it is, as its code is.
    """

    MOVES_NO_SCORE: ClassVar[frozenset[str]] = RefusingScorer.MOVES_NO_SCORE | {
        "files"  # their paths; their content is in the hash of the scorer's code
    }

    kind: Literal["external"]
    source: Text
    version: PositiveInt
    options: dict[str, Any]
    files: tuple[Text, ...] = ()


AnyScorer = Annotated[
    ShapesScorer
    | ClipScorer
    | PickScoreScorer
    | ImageRewardScorer
    | HPSv3Scorer
    | GenEvalScorer
    | WiseScorer
    | ExternalScorer,
    Field(discriminator="kind"),
]


class InProcess(Section):
    """In the process of the stage.

    Attributes:
        device: such as cuda:1; null: the first GPU, in training that of the process, else the CPU.
        timeout_seconds: until it must have scored a batch, with the time to load; null: no limit, and it is called in
            the stage's own thread.
    """

    kind: Literal["in-process"]
    device: Text | None
    timeout_seconds: PositiveFloat | None = 3600.0


class InSubprocess(Section):
    """In a process of its own, which may be another Python with other packages.

    Attributes:
        python: interpreter; null: the one of the stage.
        script: a worker that speaks the protocol by itself; null: this package's, which the interpreter must have.
        device: as in InProcess.
        start_seconds: until it must have loaded.
        timeout_seconds: until it must have scored a batch.
    """

    kind: Literal["subprocess"]
    python: Text | None
    script: Text | None
    device: Text | None
    start_seconds: PositiveFloat
    timeout_seconds: PositiveFloat


class OverHttp(Section):
    """At a server, started with `python -m chunk_grpo.scorers.serve NAME`.

    Attributes:
        url: of the server; no user, password, query or fragment, since messages name it.
        token_variable: environment variable with the server's token; null: it asks for none.
        timeout_seconds: until it must have scored a batch.
    """

    kind: Literal["http"]
    url: Url
    token_variable: Variable | None
    timeout_seconds: PositiveFloat


AnyExecutor = Annotated[InProcess | InSubprocess | OverHttp, Field(discriminator="kind")]
