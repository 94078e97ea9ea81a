"""Small random checkpoints for GenEval, in the file formats of the real ones."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    Mask2FormerImageProcessorPil,
    SwinConfig,
)

from chunk_grpo.config.scorers import GenEvalScorer
from chunk_grpo.scorers.clip_model import load_encoder, load_processor
from chunk_grpo.scorers.geneval.colours import ColourClassifier
from chunk_grpo.scorers.geneval.records import COCO_NAMES
from tests.scorers.checkpoints_clip import MERGES, make_clip, small_vocabulary


def make_geneval(folder: Path, seed: int = 0) -> Path:
    """FOLDER/detector (Mask2Former) and FOLDER/classifier (CLIP). The detector is sure of many things at random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        make_detector(folder / "detector")
    make_classifier(folder / "classifier", seed)
    return folder


def make_detector(folder: Path) -> None:
    """Weights with the keys of facebook/mask2former-swin-small-coco-instance, written by an older transformers."""
    swin = SwinConfig(
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        image_size=64,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = Mask2FormerConfig(
        backbone_config=swin,
        feature_size=32,  # 32 groups are normalised
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=32,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        dim_feedforward=32,
        num_queries=12,
        id2label=dict(enumerate(COCO_NAMES)),
        label2id={name: index for index, name in enumerate(COCO_NAMES)},
    )
    model = Mask2FormerForUniversalSegmentation(config)
    with torch.no_grad():  # sharp probabilities: some above GenEval's thresholds, some between, some below
        model.class_predictor.weight.normal_(std=2.5)
        model.model.transformer_module.queries_features.weight.normal_(std=2)
        pixels = model.model.pixel_level_module.decoder.mask_projection
        queries = model.model.transformer_module.decoder.mask_predictor.mask_embedder
        pixels.weight.normal_(std=8)
        pixels.weight[0], pixels.bias[0] = (0, 10)  # with the next line: 100 less in all masks, which leaves them small
        queries.get_parameter("2.0.bias")[0] = -10
        queries.get_parameter("2.0.weight").normal_(std=0.5)
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if "encoder.swin.layernorm" in name]:
        del weights[name]  # a norm that the backbone does not use
    for name in [name for name in weights if name.endswith("self.relative_position_bias_table")]:
        side = swin.window_size**2
        weights[name.replace("bias_table", "index")] = torch.zeros(side, side, dtype=torch.int64)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    Mask2FormerImageProcessorPil(
        size={"shortest_edge": 64, "longest_edge": 107}, size_divisor=32, ignore_index=255
    ).save_pretrained(folder)


def make_classifier(folder: Path, seed: int) -> None:
    """Checkpoint with the layout of openai/clip-vit-large-patch14; its tokenizer has single bytes and no merges."""
    words, _ = small_vocabulary()
    tokens = [word for word in words if word not in {"".join(pair) for pair in MERGES}]
    make_clip(folder, seed, vocabulary=({token: number for number, token in enumerate(tokens)}, []))


def load_classifier(folder: Path) -> ColourClassifier:
    """The classifier of a folder that `make_geneval` wrote."""
    source = "scorers.geneval.classifier", folder / "classifier"
    encoder = load_encoder(*source, "float32", "cpu")
    return ColourClassifier(encoder, load_processor(*source, encoder))


def geneval_settings(folder: Path, **changes: object) -> GenEvalScorer:
    """A section of params.yaml with both, and the original's thresholds."""
    section: dict[str, object] = {
        "kind": "geneval",
        "splits": ["eval"],
        "batch_size": 4,
        "detector": {"checkpoint": str(folder / "detector"), "revision": None},
        "classifier": {"checkpoint": str(folder / "classifier"), "revision": None},
        "dtype": "float32",
        "threshold": 0.3,
        "counting_threshold": 0.9,
        "max_objects": 16,
        "position_threshold": 0.1,
    }
    return GenEvalScorer.model_validate_json(json.dumps(section | changes))
