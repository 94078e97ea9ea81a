"""The sections `scorers` and `executors` of params.yaml.

A scorer's settings affect its scores and are part of its identity; its executor does not affect scores.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from chunk_grpo.config.judges import QuestionsScorer, VlmJudgeScorer, WiseScorer
from chunk_grpo.config.scorer_settings import (
    NO_NETWORK,
    RIGHT_OR_NOT,
    UNIT,
    Dtype,
    JsonMapping,
    Network,
    RefusingScorer,
    Scale,
    ScorerSettings,
    Url,
    Variable,
    Weights,
)
from chunk_grpo.config.section import Fraction, Section, Text

_VIT_H = Network(986_000_000, 2 * (0.632e9 * 257 + 0.354e9 * 77))
"""laion/CLIP-ViT-H-14-laion2B-s32B-b79K: 0.632 billion weights for 257 patches, 0.354 for 77 tokens."""
_Share = Annotated[float, Field(ge=0, le=1)]
_BOX = TypeAdapter(tuple[_Share, _Share, _Share, _Share])


class ShapesScorer(ScorerSettings):
    """Scorer of the toy world: exact rules of captions or of edits, a smooth grade of them, or vividness."""

    SCORER = "chunk_grpo.scorers.shapes:shapes_scorer"
    NETWORK = NO_NETWORK

    kind: Literal["shapes-exact", "shapes-graded", "shapes-vivid", "shapes-edit", "shapes-edit-graded"]

    @property
    def value_scale(self) -> Scale:
        """Scale of the values."""
        return RIGHT_OR_NOT if self.kind in ("shapes-exact", "shapes-edit") else UNIT


class ClipScorer(ScorerSettings):
    """Similarity of image and prompt by a CLIP model."""

    SCORER = "chunk_grpo.scorers.clip:ClipScore"
    NETWORK = None

    kind: Literal["clip"]
    model: Weights
    """CLIPModel in the transformers layout. Source: docs/scorers.md."""
    processor: Weights | None
    """Processor of images and texts; null: the model's own. Source: docs/scorers.md."""
    resize: Literal["processor", "squash"]
    """Method of resizing. `processor`: as in preprocessor_config.json, the shorter side to the model's size and a
    centre crop of the longer; `squash`: both sides to the model's size, as open_clip does for DFN5B. Source:
    docs/scorers.md."""
    dtype: Dtype
    """Precision of the weights."""
    scale: Literal["cosine", "logit"]
    """Scale of the scores: `cosine` in [-1, 1], or `logit`, the cosine times exp(logit_scale). Source:
    docs/scorers.md."""

    @property
    def value_scale(self) -> Scale:
        """Scale of the values."""
        return Scale(f"similarity, {self.scale}")


class PickScoreScorer(ScorerSettings):
    """PickScore: a CLIP ViT-H/14 tuned on preferences."""

    SCORER = "chunk_grpo.scorers.clip:PickScore"
    NETWORK = _VIT_H

    kind: Literal["pickscore"]
    model: Weights
    """PickScore_v1, or another CLIPModel. Source: docs/scorers.md."""
    processor: Weights
    """Processor of images and texts, from the CLIP model that was tuned. Source: docs/scorers.md."""
    dtype: Dtype
    """Precision of the weights."""
    scale: Literal["logit", "cosine", "logit/26"]
    """Scale of the scores: `logit` (good images: about 22), `cosine` (about 0.22) or `logit/26` (about 0.85). Source:
    docs/scorers.md."""

    @property
    def value_scale(self) -> Scale:
        """Scale of the values."""
        return Scale(f"preference, {self.scale}")


class HPSv2Scorer(ScorerSettings):
    """HPSv2.1: a CLIP ViT-H/14 tuned on preferences, in open_clip's format."""

    SCORER = "chunk_grpo.scorers.hpsv2:HPSv2"
    NETWORK = _VIT_H

    kind: Literal["hpsv2"]
    model: Weights
    """Folder or repository with HPS_v2.1_compressed.pt. Source: docs/scorers.md."""
    tokenizer: Weights
    """Tokenizer of the CLIP model that was tuned, laion/CLIP-ViT-H-14-laion2B-s32B-b79K. Source: the scorers' code."""
    dtype: Dtype
    """Precision of the weights."""
    scale: Literal["cosine", "cosine*100"]
    """Scale of the scores: `cosine` (good images: about 0.3) or, as published, `cosine*100`. Source:
    docs/scorers.md."""

    @property
    def value_scale(self) -> Scale:
        """Scale of the values."""
        return Scale(f"preference, {self.scale}")


class ImageRewardScorer(ScorerSettings):
    """ImageReward: BLIP with a regression head, standardised."""

    SCORER = "chunk_grpo.scorers.imagereward:ImageReward"
    # ImageReward.pt, 1.79 GB of float32: BLIP with ViT-L/16 at 224 pixels (197 patches) and BERT base.
    NETWORK = Network(447_000_000, 2 * (0.304e9 * 197 + 0.14e9 * 35))
    SCALE = Scale("preference, standardised")

    kind: Literal["imagereward"]
    model: Weights
    """Folder or repository with ImageReward.pt and med_config.json. Source: docs/scorers.md."""
    tokenizer: Weights
    """Tokenizer of bert-base-uncased. Source: the scorers' code."""
    dtype: Dtype
    """Precision of the weights."""


class HPSv3Scorer(ScorerSettings):
    """HPSv3: Qwen2-VL-7B with a head that predicts the mean of a preference score at a special token."""

    SCORER = "chunk_grpo.scorers.hpsv3:HPSv3"
    # Qwen2-VL-7B without its output layer (Qwen/Qwen2-VL-7B-Instruct, config.json: 28 layers, 3584 wide, MLP 18944, 4
    # key heads of 128, vocabulary 152064; vision 32 layers, 1280 wide). About 500 tokens: 256 of the image, the rest
    # HPSv3's question; 1024 patches.
    NETWORK = Network(7_746_000_000, 2 * (6.53e9 * 500 + 0.63e9 * 1024))
    SCALE = Scale("preference, unbounded")

    kind: Literal["hpsv3"]
    model: Weights
    """Folder or repository with HPSv3.safetensors. Source: docs/scorers.md."""
    backbone: Weights
    """Configuration, tokenizer and image processor of Qwen2-VL-7B-Instruct; its weights are not read. Source: HPSv3's
    code."""
    dtype: Dtype
    """Precision of the backbone's weights; the head is float32."""


class AestheticScorer(ScorerSettings):
    """LAION's improved aesthetic predictor: a regression head on CLIP's image embeddings; it uses no prompt."""

    SCORER = "chunk_grpo.scorers.aesthetic:Aesthetic"
    # openai/clip-vit-large-patch14; of it the image encoder, 0.304 billion weights, runs on 257 patches.
    NETWORK = Network(428_000_000, 2 * 0.304e9 * 257)
    SCALE = Scale("rating, about 1 to 10")

    kind: Literal["aesthetic"]
    model: Weights
    """Folder or repository with sac+logos+ava1-l14-linearMSE.pth. Source: docs/scorers.md."""
    encoder: Weights
    """CLIPModel that the head was trained on, with its processor: openai/clip-vit-large-patch14. Source: the
    predictor's code: CLIP ViT-L/14."""
    dtype: Dtype
    """Precision of the encoder's weights; the head is float32."""


class GenEvalScorer(ScorerSettings):
    """GenEval's rules on a Mask2Former's detections."""

    SCORER = "chunk_grpo.scorers.geneval.scorer:GenEval"
    NETWORK = None

    kind: Literal["geneval"]
    detector: Weights
    """Mask2FormerForUniversalSegmentation trained on COCO's instances. Source: docs/scorers.md."""
    classifier: Weights
    """CLIP model that classifies colours. Source: GenEval's code: CLIP ViT-L/14."""
    dtype: Dtype
    """Precision of the weights."""
    threshold: Fraction
    """Confidence above which a detection counts. Source: GenEval's code: 0.3."""
    counting_threshold: Fraction
    """Confidence threshold for prompts that demand a number. Source: GenEval's code: 0.9."""
    max_objects: PositiveInt
    """Detections kept per class. Source: GenEval's code: 16."""
    position_threshold: NonNegativeFloat
    """Fraction of the summed side lengths by which offsets between boxes are reduced. Source: GenEval's code: 0.1."""
    reward: Literal["exact", "graded"] = "exact"
    """Value of an image. `exact`: 1 or 0, GenEval's verdict; `graded`: Flow-GRPO's reward, at most 1, by the numbers,
    colours and positions that are right. Source: GenEval."""

    @property
    def value_scale(self) -> Scale:
        """Scale of the values."""
        return RIGHT_OR_NOT if self.reward == "exact" else Scale("graded, at most 1", high=1)


class OcrScorer(ScorerSettings):
    """Rendering of text: edit distance between the text read in an image and the text that it should show."""

    SCORER = "chunk_grpo.scorers.ocr:Ocr"
    EXTRA = "ocr"
    NETWORK = NO_NETWORK
    SCALE = UNIT
    DATA_FIELDS = ("text_field",)

    kind: Literal["ocr"]
    text_field: Text | None = "text"
    """Field of the prompt's metadata with the text to be shown; null: the first text in double quotes in the prompt.
    Source: ours; null: Flow-GRPO's code."""
    recogniser: Weights | None = None
    """Folder or hub id with models for rapidocr, one `*det*.onnx` and one `*rec*.onnx`; null: those in the package."""

    def target(self, prompt: str, metadata: Mapping[str, object]) -> str:
        """Text that an image of the prompt should show; ValueError if there is none."""
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


class PreservedScorer(ScorerSettings):
    """How much of the edited picture is left, without a model."""

    SCORER = "chunk_grpo.scorers.preserved:Preserved"
    NETWORK = NO_NETWORK
    DATA_FIELDS = ("box_field",)

    kind: Literal["preserved"]
    measure: Literal["pixels", "structure"]
    """Measure. `pixels`: 1 less the mean absolute difference; `structure`: SSIM. Source: Wang et al. 2004, of SSIM."""
    box_field: Text | None = None
    """Field of the prompt's metadata with the box in which the edit is, [left, top, right, bottom] as shares of the
    picture's sides: only pixels outside count. null: all count. Source: ours."""

    @property
    def value_scale(self) -> Scale:
        """Scale of the values."""
        return UNIT if self.measure == "pixels" else Scale("SSIM, 1: equal", -1, 1)

    def box(self, prompt: str, metadata: Mapping[str, object]) -> tuple[float, float, float, float] | None:
        """Box of the edit, of a list or its JSON text; None: there is no field. ValueError names field and rule."""
        del prompt
        if self.box_field is None:
            return None
        if self.box_field not in metadata:
            raise ValueError(f"needs the field {self.box_field!r} with the box of the edit (box_field names it)")
        found = metadata[self.box_field]
        try:
            box = _BOX.validate_json(found) if isinstance(found, str) else _BOX.validate_python(found)
        except ValidationError:
            box = None
        if box is None or not (box[0] < box[2] and box[1] < box[3]) or box == (0, 0, 1, 1):
            raise ValueError(
                f"field {self.box_field!r} must be [left, top, right, bottom] in shares of the sides, 0 to 1, left "
                f"< right, top < bottom, and not the whole picture, got {found!r}"
            )
        return box

    def check_data(self, prompt: str, metadata: Mapping[str, object]) -> None:
        """Check that the prompt has the box of its edit."""
        self.box(prompt, metadata)


class ExternalScorer(RefusingScorer):
    """Scorer from outside this package."""

    SCORER = "chunk_grpo.scorers.running.external:External"
    NETWORK = None
    SCALE = Scale("defined by the scorer")
    NON_SCORING_FIELDS = RefusingScorer.NON_SCORING_FIELDS | {
        "files"  # their paths; their content is in the hash of the scorer's code
    }

    kind: Literal["external"]
    source: Text
    """Class or function: `module:attribute`, or an entry point of the group chunk_grpo.scorers."""
    version: PositiveInt
    """Version number; raise it when scores change for a reason that is not in the scorer's code or `files`."""
    options: JsonMapping
    """Keyword arguments of the scorer."""
    files: tuple[Text, ...] = ()
    """Files and folders that the scorer reads; their content is part of its identity, like its code."""


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
    | PreservedScorer
    | VlmJudgeScorer
    | QuestionsScorer
    | ExternalScorer,
    Field(discriminator="kind"),
]


class InProcess(Section):
    """Executor in the process of the stage."""

    kind: Literal["in-process"]
    device: Text | None
    """Device such as `cuda:1`; null: the first GPU (in training that of the process), without a GPU the CPU."""
    timeout_seconds: PositiveFloat | None = 3600.0
    """Time limit for a batch, including the time to load, in seconds; null: no limit, and the scorer runs in the
    stage's own thread."""


class InSubprocess(Section):
    """Executor in a separate process, which may be another Python with other packages."""

    kind: Literal["subprocess"]
    python: Text | None
    """Python interpreter; null: the stage's interpreter."""
    script: Text | None
    """Custom worker script that implements the protocol; null: this package's worker, which must be installed for the
    interpreter."""
    device: Text | None
    """Device such as `cuda:1`; null: the first GPU (in training that of the process), without a GPU the CPU."""
    start_seconds: PositiveFloat
    """Time limit for loading, in seconds."""
    timeout_seconds: PositiveFloat
    """Time limit for a batch, in seconds."""


class OverHttp(Section):
    """Executor at a server, started with `chunk-grpo serve-scorer NAME`."""

    kind: Literal["http"]
    url: Url
    """URL of the server; no user, password, query or fragment, because messages contain it."""
    token_variable: Variable | None
    """Environment variable with the server's token; null: the server needs none."""
    timeout_seconds: PositiveFloat
    """Time limit for a batch, in seconds."""


AnyExecutor = Annotated[InProcess | InSubprocess | OverHttp, Field(discriminator="kind")]
