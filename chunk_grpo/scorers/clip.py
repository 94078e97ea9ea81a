"""CLIP score and PickScore: similarity of an image and its prompt under a CLIP model.

Both are the cosine of the two embeddings, per image, or the cosine times the model's learnt scale:

    CLIP        Radford et al. 2021, Figure 3; logits_per_image of transformers' CLIPModel, its diagonal
    PickScore   Kirstain et al. 2023, Eq. (1); README of yuvalkirstain/PickScore, before its softmax over candidates

The softmax is omitted: it makes an image's score depend on the other images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from chunk_grpo.config.scorers import ClipScorer, PickScoreScorer
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.clip_model import (
    MODEL_FILES,
    PROCESSOR_FILES,
    ClipEncoder,
    ClipProcessor,
    Resize,
    load_processor,
    take_encoder,
)
from chunk_grpo.scorers.running.configured import ConfiguredScorer, model_name

_PICKSCORE_RANGE = 26.0
"""Divisor that scales PickScore to about [0, 1]: yifan123/flow_grpo, flow_grpo/pickscore_scorer.py."""

ClipSettings = TypeVar("ClipSettings", bound=ClipScorer | PickScoreScorer)


class _Similarity(ConfiguredScorer[ClipSettings]):
    """Cosine of image and prompt times a factor. Scorers with the same encoder share it."""

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """File patterns of the model, and of the image processor and tokenizer, which may be in the same folder."""
        if self.settings.processor is None:
            return {"model": MODEL_FILES + PROCESSOR_FILES}
        return {"model": MODEL_FILES, "processor": PROCESSOR_FILES}

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Score the images of a batch."""
        encoder, processor = self.models
        cosine = encoder.cosines(processor.pixels(batch.images), batch.prompts, processor.tokens)
        factors = {"cosine": 1.0, "logit": encoder.scale, "logit/26": encoder.scale / _PICKSCORE_RANGE}
        return Scores(cosine * factors[self.settings.scale])

    @cached_property
    def models(self) -> tuple[ClipEncoder, ClipProcessor]:
        """Encoder and processor."""
        encoder = take_encoder(self, "model")
        settings, field = self.settings, "model" if self.settings.processor is None else "processor"
        resize: Resize = settings.resize if isinstance(settings, ClipScorer) else "processor"
        return encoder, load_processor(self.where(field), self.folder(field), encoder, resize)


class ClipScore(_Similarity[ClipScorer]):
    """Similarity under a CLIP model. As a cosine it is in [-1, 1], in practice about 0.1 to 0.5."""

    version = 1

    @property
    def name(self) -> str:
        """Kind and model, such as clip/openai/clip-vit-large-patch14; for a local folder its last part."""
        return f"clip/{model_name(self.settings.model)}"


class PickScore(_Similarity[PickScoreScorer]):
    """PickScore, without its softmax over candidates. As a logit, which papers report, it is about 22."""

    version = 1
