"""Scorers whose network is known from their kind: memory on the card, and operations an image.

All others, and the activations of all of them, are not counted; the plan names them.
"""

from __future__ import annotations

from dataclasses import dataclass

from chunk_grpo.config import Params
from chunk_grpo.config.scorers import AnyScorer, InProcess, InSubprocess
from chunk_grpo.planning.settings import ELEMENT


@dataclass(frozen=True)
class Network:
    """A scorer's network."""

    weights: int
    """Number of weights on the card."""
    flop: float
    """Operations an image, about."""


# laion/CLIP-ViT-H-14-laion2B-s32B-b79K: 0.632 billion weights for 257 patches, 0.354 for 77 tokens.
_VIT_H = Network(986_000_000, 2 * (0.632e9 * 257 + 0.354e9 * 77))

NETWORKS = {
    # Qwen2-VL-7B without its output layer (Qwen/Qwen2-VL-7B-Instruct, config.json: 28 layers, 3584 wide, MLP 18944, 4
    # key heads of 128, vocabulary 152064; vision 32 layers, 1280 wide). About 500 tokens: 256 of the image, the rest
    # HPSv3's question; 1024 patches.
    "hpsv3": Network(7_746_000_000, 2 * (6.53e9 * 500 + 0.63e9 * 1024)),
    # ImageReward.pt, 1.79 GB of float32: BLIP with ViT-L/16 at 224 pixels (197 patches) and BERT base.
    "imagereward": Network(447_000_000, 2 * (0.304e9 * 197 + 0.14e9 * 35)),
    "pickscore": _VIT_H,
    "hpsv2": _VIT_H,
    # openai/clip-vit-large-patch14; of it the image encoder, 0.304 billion weights, runs on 257 patches.
    "aesthetic": Network(428_000_000, 2 * 0.304e9 * 257),
}
"""Networks by kind of scorer."""

WITHOUT_NETWORK = ("shapes-exact", "shapes-graded", "shapes-vivid", "wise", "vlm-judge", "questions", "ocr")
"""Kinds that take no GPU: rules, models on the CPU, or a judge elsewhere."""


@dataclass(frozen=True)
class Scoring:
    """Scorers of one use."""

    bytes: float
    """Weights on the training card."""
    flop: float
    """Operations an image of the counted ones."""
    not_counted: tuple[str, ...]
    """Names whose memory or operations are not known."""


def scoring(params: Params, names: tuple[str, ...]) -> Scoring:
    """Memory and operations of these scorers, each in the process of the stage or beside it on its card."""
    found, flop, unknown = 0.0, 0.0, []
    for name in names:
        settings = params.scorers[name]
        if not is_here(params, name) or settings.kind in WITHOUT_NETWORK:
            continue
        network = NETWORKS.get(settings.kind)
        if network is None:
            unknown.append(name)
            continue
        found += network.weights * _element(settings)
        flop += network.flop
    return Scoring(found, flop, tuple(unknown))


def in_process(params: Params, name: str) -> bool:
    """Whether a scorer is in the stage's process."""
    executor = params.executors.get(name)
    return executor is None or isinstance(executor, InProcess)


def is_here(params: Params, name: str) -> bool:
    """Whether a scorer takes memory of the stage's card: in its process, or in one beside it without a device."""
    executor = params.executors.get(name)
    if executor is None:
        return True
    if isinstance(executor, (InProcess, InSubprocess)):
        return executor.device is None
    return False


def _element(settings: AnyScorer) -> int:
    return ELEMENT[getattr(settings, "dtype", "float32")]
