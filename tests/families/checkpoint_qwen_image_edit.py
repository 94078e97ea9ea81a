"""A small random QwenImageEditPlusPipeline in the real layout.

Its processor is another one of transformers around the same processor of images, since Qwen2-VL's needs torchvision.
The pipeline resizes a picture for the VAE to an area of its own; in tests it is the picture's own area.
"""

from contextlib import AbstractContextManager
from unittest.mock import patch

from diffusers import QwenImageEditPlusPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as pipelines
from transformers import PaddleOCRVLProcessor, Qwen2VLImageProcessorPil

from tests.families.case import Case
from tests.families.checkpoint_qwen_image import CASE as DRAWING
from tests.families.checkpoint_qwen_image import random_parts
from tests.families.small_parts import byte_tokenizer


def unresized(height: int, width: int) -> AbstractContextManager[object]:
    """Context in which the pipeline shows the VAE pictures with sides of multiples of 32 as they are."""
    return patch.object(pipelines, "VAE_IMAGE_SIZE", height * width)


CASE = Case(
    DRAWING.scales, DRAWING.keywords, tokens=384, sizes=((32, 64), (64, 32)), sources=((64, 64), (64, 96)),
    given_sources=unresized,
)  # fmt: skip


def random_pipeline() -> QwenImageEditPlusPipeline:
    tokenizer = byte_tokenizer(
        extra_special_tokens={
            "image_token": "<|image_pad|>", "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>", "video_token": "<|video_pad|>",
        },
    )  # fmt: skip
    parts = random_parts(tokenizer, image_token_id=tokenizer.image_token_id)
    processor = PaddleOCRVLProcessor(Qwen2VLImageProcessorPil(), tokenizer)
    return QwenImageEditPlusPipeline(**parts, processor=processor)
