"""The sections `scorers` and `executors` of params.yaml.

A scorer's settings affect its scores and are part of its identity; its executor does not affect scores.
"""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from chunk_grpo.config.judges import QuestionsScorer, VlmJudgeScorer, WiseScorer
from chunk_grpo.config.scorer_settings import (
    Dtype,
    JsonMapping,
    RefusingScorer,
    ScorerSettings,
    Url,
    Variable,
    Weights,
)
from chunk_grpo.config.section import Fraction, Section, Text


class ShapesScorer(ScorerSettings):
    """Scorer of the toy world: exact rules, a smooth grade of them, or vividness."""

    kind: Literal["shapes-exact", "shapes-graded", "shapes-vivid"]


class ClipScorer(ScorerSettings):
    """Similarity of image and prompt by a CLIP model.

    Attributes:
        model: CLIPModel in the transformers layout.
        processor: processor of images and texts; null: the model's own.
        resize: method of resizing. `processor`: as in preprocessor_config.json, the shorter side to the model's size
            and a centre crop of the longer; `squash`: both sides to the model's size, as open_clip does for DFN5B.
        dtype: precision of the weights.
        scale: scale of the scores: `cosine` in [-1, 1], or `logit`, the cosine times exp(logit_scale).
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
        processor: processor of images and texts, from the CLIP model that was tuned.
        dtype: precision of the weights.
        scale: scale of the scores: `logit` (good images: about 22), `cosine` (about 0.22) or `logit/26` (about 0.85).
    """

    kind: Literal["pickscore"]
    model: Weights
    processor: Weights
    dtype: Dtype
    scale: Literal["logit", "cosine", "logit/26"]


class HPSv2Scorer(ScorerSettings):
    """HPSv2.1: a CLIP ViT-H/14 tuned on preferences, in open_clip's format.

    Attributes:
        model: folder or repository with HPS_v2.1_compressed.pt.
        tokenizer: tokenizer of the CLIP model that was tuned.
        dtype: precision of the weights.
        scale: scale of the scores: `cosine` (good images: about 0.3) or, as published, `cosine*100`.
    """

    kind: Literal["hpsv2"]
    model: Weights
    tokenizer: Weights
    dtype: Dtype
    scale: Literal["cosine", "cosine*100"]


class ImageRewardScorer(ScorerSettings):
    """ImageReward: BLIP with a regression head, standardised.

    Attributes:
        model: folder or repository with ImageReward.pt and med_config.json.
        tokenizer: tokenizer of bert-base-uncased.
        dtype: precision of the weights.
    """

    kind: Literal["imagereward"]
    model: Weights
    tokenizer: Weights
    dtype: Dtype


class HPSv3Scorer(ScorerSettings):
    """HPSv3: Qwen2-VL-7B with a head that predicts the mean of a preference score at a special token.

    Attributes:
        model: folder or repository with HPSv3.safetensors.
        backbone: configuration, tokenizer and image processor of Qwen2-VL-7B-Instruct; its weights are not read.
        dtype: precision of the backbone's weights; the head is float32.
    """

    kind: Literal["hpsv3"]
    model: Weights
    backbone: Weights
    dtype: Dtype


class AestheticScorer(ScorerSettings):
    """LAION's improved aesthetic predictor: a regression head on CLIP's image embeddings; the prompt has no part in it.

    Attributes:
        model: folder or repository with sac+logos+ava1-l14-linearMSE.pth.
        encoder: CLIPModel that the head was trained on, with its processor: openai/clip-vit-large-patch14.
        dtype: precision of the encoder's weights; the head is float32.
    """

    kind: Literal["aesthetic"]
    model: Weights
    encoder: Weights
    dtype: Dtype


class GenEvalScorer(ScorerSettings):
    """GenEval's rules on a Mask2Former's detections.

    Attributes:
        detector: Mask2FormerForUniversalSegmentation trained on COCO's instances.
        classifier: CLIP model that classifies colours.
        dtype: precision of the weights.
        threshold: confidence above which a detection counts.
        counting_threshold: confidence threshold for prompts that demand a number.
        max_objects: detections kept per class.
        position_threshold: fraction of the summed side lengths by which offsets between boxes are reduced.
        reward: value of an image. `exact`: 1 or 0, GenEval's verdict; `graded`: Flow-GRPO's reward, at most 1, by the
            numbers, colours and positions that are right.
    """

    kind: Literal["geneval"]
    detector: Weights
    classifier: Weights
    dtype: Dtype
    threshold: Fraction
    counting_threshold: Fraction
    max_objects: PositiveInt
    position_threshold: NonNegativeFloat
    reward: Literal["exact", "graded"] = "exact"


class OcrScorer(ScorerSettings):
    """Rendering of text: edit distance between the text read in an image and the text that it should show.

    Attributes:
        text_field: field of the prompt's metadata with the text to be shown; null: the first text in double quotes in
            the prompt.
        recogniser: folder with models for rapidocr, one *det*.onnx and one *rec*.onnx; null: those in the package.
    """

    DATA_FIELDS: ClassVar[tuple[str, ...]] = ("text_field",)

    kind: Literal["ocr"]
    text_field: Text | None = "text"
    recogniser: Weights | None = None

    def target(self, prompt: str, metadata: Mapping[str, object]) -> str:
        """Text that an image of the prompt should show.

        Raises:
            ValueError: there is none.
        """
        if self.text_field is None:
            quoted = re.search('"([^"]*)"', prompt)
            if quoted is None or not quoted[1].strip():
                raise ValueError(
                    'must hold the text to be shown in double quotes, as in a sign that says "OPEN" (text_field: null)'
                )
            return quoted[1]
        if self.text_field not in metadata:
            there = ", ".join(map(repr, metadata)) or "none"
            raise ValueError(
                f"needs the field {self.text_field!r} with the text to be shown, got {there} (text_field names it; "
                "null: the text is in double quotes in the prompt)"
            )
        text = metadata[self.text_field]
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"field {self.text_field!r} must be text, and not blank, got {text!r}")
        return text

    def check_data(self, prompt: str, metadata: Mapping[str, object]) -> None:
        """Check that the prompt has a text to be shown."""
        self.target(prompt, metadata)


class ExternalScorer(RefusingScorer):
    """Scorer from outside this package.

    Attributes:
        source: entry point of the group chunk_grpo.scorers, or `module:attribute` of a class or a function.
        version: version number; raise it when scores change for a reason that is not in the scorer's code or `files`.
        options: keyword arguments of the scorer.
        files: files and folders that the scorer reads; their content is part of its identity, like its code.
    """

    NON_SCORING_FIELDS: ClassVar[frozenset[str]] = RefusingScorer.NON_SCORING_FIELDS | {
        "files"  # their paths; their content is in the hash of the scorer's code
    }

    kind: Literal["external"]
    source: Text
    version: PositiveInt
    options: JsonMapping
    files: tuple[Text, ...] = ()


AnyScorer = Annotated[
    ShapesScorer
    | ClipScorer
    | PickScoreScorer
    | HPSv2Scorer
    | ImageRewardScorer
    | HPSv3Scorer
    | AestheticScorer
    | GenEvalScorer
    | WiseScorer
    | OcrScorer
    | VlmJudgeScorer
    | QuestionsScorer
    | ExternalScorer,
    Field(discriminator="kind"),
]


class InProcess(Section):
    """Executor in the process of the stage.

    Attributes:
        device: device such as cuda:1; null: the first GPU (in training that of the process), without a GPU the CPU.
        timeout_seconds: time limit for a batch, including the time to load; null: no limit, and the scorer runs in the
            stage's own thread.
    """

    kind: Literal["in-process"]
    device: Text | None
    timeout_seconds: PositiveFloat | None = 3600.0


class InSubprocess(Section):
    """Executor in a separate process, which may be another Python with other packages.

    Attributes:
        python: Python interpreter; null: the stage's interpreter.
        script: custom worker script that implements the protocol; null: this package's worker, which must be installed
            for the interpreter.
        device: device, as in InProcess.
        start_seconds: time limit for loading.
        timeout_seconds: time limit for a batch.
    """

    kind: Literal["subprocess"]
    python: Text | None
    script: Text | None
    device: Text | None
    start_seconds: PositiveFloat
    timeout_seconds: PositiveFloat


class OverHttp(Section):
    """Executor at a server, started with `python -m chunk_grpo.scorers.serve NAME`.

    Attributes:
        url: URL of the server; no user, password, query or fragment, because messages contain it.
        token_variable: environment variable with the server's token; null: the server needs none.
        timeout_seconds: time limit for a batch.
    """

    kind: Literal["http"]
    url: Url
    token_variable: Variable | None
    timeout_seconds: PositiveFloat


AnyExecutor = Annotated[InProcess | InSubprocess | OverHttp, Field(discriminator="kind")]
