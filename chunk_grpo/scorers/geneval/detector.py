"""GenEval's detector: transformers' Mask2Former with mmdet's post-processing.

transformers' own post-processing assigns one label per pixel and different scores. GenEval's thresholds were set for
mmdet's detections, which may overlap.

Shape letters: B images, Q queries, C classes, N detections, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from transformers import Mask2FormerForUniversalSegmentation, Mask2FormerImageProcessorPil

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures
from chunk_grpo.scorers.geneval.records import CLASS_NAMES, COCO_NAMES
from chunk_grpo.scorers.geneval.rules import Detections
from chunk_grpo.scorers.running.checkpoints import read_config, readable
from chunk_grpo.weights import KnownDifferences, load_weights

DETECTOR_FILES = ("config.json", "preprocessor_config.json", "model.safetensors|pytorch_model.bin")

_OLDER_FILES = KnownDifferences(
    may_lack=r"pixel_level_module\.encoder\.swin\.layernorm\.",  # unused: the backbone has one norm per stage
    may_have=r"pixel_level_module\.encoder\..*\.relative_position_index$",
)
"""facebook/mask2former-swin-small-coco-instance was written by transformers 4.26."""

MAX_DETECTIONS = 100
"""Number of query-class pairs considered (mmdet 2.28.2, mask2former_r50_lsj_8x2_50e_coco-panoptic.py)."""

_AVOIDS_ZERO = 1e-6


@dataclass(frozen=True)
class Detector:
    """A loaded Mask2Former."""

    model: Any
    """Mask2FormerForUniversalSegmentation with COCO's 80 classes."""
    processor: Any
    """Image processor of the model."""
    device: str
    """Device of the model."""

    @torch.inference_mode()
    def detect(self, images: Pictures, min_score: float) -> list[Detections]:
        """Detect objects.

        Args:
            images: uint8 [B, H, W, 3] of any size; the processor resizes them.
            min_score: Detections with a score at or below it are left out; at least 0.

        Returns:
            Detections of each of the B images.

        Raises:
            DataError: The model's output is not finite.
        """
        inputs = self.processor(images=list(images), input_data_format="channels_last", return_tensors="pt")
        pixels = inputs["pixel_values"].to(self.device, self.model.dtype)
        output = self.model(pixel_values=pixels)
        size = (int(pixels.shape[-2]), int(pixels.shape[-1]))
        height, width = images.shape[1:3]
        return [
            postprocess(classes, masks, size, (height, width), min_score)
            for classes, masks in zip(output.class_queries_logits, output.masks_queries_logits, strict=True)
        ]


def load_detector(key: str, folder: Path, dtype: torch.dtype, device: str) -> Detector:
    """Load a Mask2Former; the thresholds are for float32. DataError if files are damaged or of another model."""
    check_classes(key, folder)
    where = f"{key}: weights in {folder}"
    model = load_weights(where, Mask2FormerForUniversalSegmentation, folder, dtype, known=_OLDER_FILES)
    with readable(f"{key}: {folder} holds no Mask2Former image processor"):
        processor = Mask2FormerImageProcessorPil.from_pretrained(folder, local_files_only=True)
    return Detector(model.to(device), processor, device)


def check_classes(key: str, folder: Path) -> None:
    """Check that a model is a Mask2Former with COCO's 80 classes in their order, by config.json; else DataError."""
    path = folder / "config.json"
    labels = read_config(key, folder, "mask2former").get("id2label")
    if not isinstance(labels, dict):
        raise DataError(f"{key}: {path} has no id2label, the names of the detector's classes")
    if len(labels) != len(COCO_NAMES):
        raise DataError(
            f"{key}: needs a Mask2Former trained on COCO's instances, with 80 classes, but id2label in {path} has "
            f"{len(labels)}; panoptic and semantic models do not fit"
        )
    for index, names in enumerate(zip(COCO_NAMES, CLASS_NAMES, strict=True)):
        if labels.get(str(index)) not in names:
            raise DataError(
                f"{key}: class {index} must be {names[0]!r}, but id2label in {path} says {labels.get(str(index))!r}; "
                "detections are identified by class number, so names and order must match"
            )


def postprocess(
    class_logits: Tensor,
    mask_logits: Tensor,
    input_size: tuple[int, int],
    image_size: tuple[int, int],
    min_score: float,
) -> Detections:
    """Detections of one image, computed as in mmdet.

    Detections are the 100 query-class pairs of highest probability. The score is this probability times the mean
    probability of the pixels inside the mask (logit > 0). The box is the mask's bounding box. Masks are resized
    bilinearly to the model's input, then to the image. One query may give several detections.

    Source: mmdet 2.28.2, MaskFormerHead.simple_test, MaskFormerFusionHead.instance_postprocess, mask2bbox.

    Args:
        class_logits: Class logits [Q, C + 1]; the last class is "no object".
        mask_logits: Mask logits [Q, h, w] at any resolution.
        input_size: Height and width of the model's input.
        image_size: H and W.
        min_score: Detections with a greater score are kept; at least 0, which leaves out empty masks.

    Raises:
        DataError: A logit is not finite.
    """
    if not (class_logits.isfinite().all() and mask_logits.isfinite().all()):
        raise DataError("GenEval's detector gave numbers that are not finite; use float32, and check its weights")
    probabilities = class_logits.float().softmax(dim=-1)[:, :-1]
    scores, pairs = probabilities.flatten().topk(min(MAX_DETECTIONS, probabilities.numel()))
    # The mask factor only lowers scores, so pairs already below the threshold need no resized mask.
    pairs, scores = pairs[scores > min_score], scores[scores > min_score]
    labels = pairs % probabilities.shape[1]
    queries, query = (pairs // probabilities.shape[1]).unique(return_inverse=True)
    masks = mask_logits[queries].float()[:, None]
    for size in (input_size, image_size):
        masks = interpolate(masks, size=size, mode="bilinear", align_corners=False)
    inside = masks[:, 0] > 0
    certainty = (masks[:, 0].sigmoid() * inside).sum(dim=(1, 2)) / (inside.sum(dim=(1, 2)) + _AVOIDS_ZERO)
    scores = scores * certainty[query]
    stays = scores > min_score
    inside = inside[query[stays]]
    return Detections(
        labels[stays].cpu().numpy(), scores[stays].cpu().numpy(), _boxes(inside).cpu().numpy(), inside.cpu().numpy()
    )


def _boxes(masks: Tensor) -> Tensor:
    """Boxes of non-empty masks [N, H, W]: float32 [N, 4], left, top, right, bottom; right and bottom exclusive."""
    columns, rows = masks.any(dim=1).int(), masks.any(dim=2).int()
    sides = (
        columns.argmax(dim=1),  # argmax gives the first maximum
        rows.argmax(dim=1),
        columns.shape[1] - columns.flip(1).argmax(dim=1),
        rows.shape[1] - rows.flip(1).argmax(dim=1),
    )
    return torch.stack(sides, dim=1).float()
