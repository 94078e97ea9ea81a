"""Aesthetic score: LAION's improved aesthetic predictor, a regression head on the image embeddings of CLIP ViT-L/14.

christophschuhmann/improved-aesthetic-predictor at 6934dd8, simple_inference.py. The prompt has no part in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from chunk_grpo.config.scorers import AestheticScorer
from chunk_grpo.scorers import clip_model
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.clip_model import ClipEncoder, ClipProcessor
from chunk_grpo.scorers.regression_head import regression_head
from chunk_grpo.scorers.running.checkpoints import readable
from chunk_grpo.scorers.running.configured import ConfiguredScorer, chosen_device
from chunk_grpo.weights import check_shapes

MODEL_FILES = ("sac+logos+ava1-l14-linearMSE.pth",)
"""The authors' head for CLIP ViT-L/14, trained on SAC, LAION-Logos and AVA."""


def load_head(key: str, folder: Path, width: int, device: str) -> nn.Sequential:
    """Load the regression head of image embeddings of a width, in float32.

    DataError if the file is damaged, or names weights that are missing, surplus or of another shape.
    """
    path = folder / MODEL_FILES[0]
    with readable(f"{key}: {path} cannot be read"):
        tensors: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        found = {name: value.shape for name, value in tensors.items()}
    head = regression_head(width)
    check_shapes(
        f"{key}: weights in {path}",
        {f"layers.{name}": value.shape for name, value in head.state_dict().items()},
        found,
        (),
        "The file is of another model, or `encoder` is another CLIP; the authors' is openai/clip-vit-large-patch14.",
    )
    head.load_state_dict({name.removeprefix("layers."): value.float() for name, value in tensors.items()})
    return head.to(device).eval().requires_grad_(False)


class Aesthetic(ConfiguredScorer[AestheticScorer]):
    """Predicted rating of an image's beauty, unbounded; the ratings that it was trained on are from 1 to 10."""

    version = 1
    needs = frozenset()

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """File patterns of the head, and of the CLIP model with its processor."""
        return {"model": MODEL_FILES, "encoder": clip_model.MODEL_FILES + clip_model.PROCESSOR_FILES}

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Score the images of a batch."""
        head, encoder, processor = self.models
        embeddings = torch.from_numpy(encoder.embed_images(processor.pixels(batch.images))).float()
        with torch.inference_mode():
            ratings = head(embeddings.to(chosen_device(self.device)))[:, 0]
        return Scores(ratings.double().cpu().numpy())

    @cached_property
    def models(self) -> tuple[nn.Sequential, ClipEncoder, ClipProcessor]:
        """Head, encoder and processor."""
        settings, device = self.settings, chosen_device(self.device)
        encoder = clip_model.take_encoder(self, "encoder")
        width = int(encoder.model.config.projection_dim)
        head = self.take_model(
            ("aesthetic", settings, device), lambda: load_head(self.where("model"), self.folder("model"), width, device)
        )
        return (head, encoder, clip_model.load_processor(self.where("encoder"), self.folder("encoder"), encoder))
