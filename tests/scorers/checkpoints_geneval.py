"""Small random checkpoints for GenEval, in the file formats of the real ones."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPTextConfig,
    CLIPTokenizer,
    CLIPVisionConfig,
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    Mask2FormerImageProcessorPil,
    SwinConfig,
)

from chunk_grpo.config.scorers import GenEvalScorer, Weights
from chunk_grpo.scorers.clip_model import load_encoder, load_processor
from chunk_grpo.scorers.geneval.colours import ColourClassifier
from chunk_grpo.scorers.geneval.records import COCO_NAMES

START, END = "<|startoftext|>", "<|endoftext|>"
CLIP_SIDE = 32


def make_geneval(folder: Path, seed: int = 0) -> Path:
    """FOLDER/detector (Mask2Former) and FOLDER/classifier (CLIP). The detector is sure of many things at random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        make_detector(folder / "detector")
        make_classifier(folder / "classifier")
    return folder


def make_detector(folder: Path) -> None:
    """With the keys of facebook/mask2former-swin-small-coco-instance, which an older transformers wrote."""
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
        pixels.weight[0], pixels.bias[0] = (
            0,
            10,
        )  # with the next line: 100 less in all masks, which leaves them small
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


def make_classifier(folder: Path) -> None:
    """With openai/clip-vit-large-patch14's layout; its tokenizer knows single bytes and no merges."""
    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, *(letter + "</w>" for letter in letters), START, END]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77).save_pretrained(folder)
    text = CLIPTextConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=77,
        bos_token_id=vocabulary[START],
        eos_token_id=vocabulary[END],
        pad_token_id=vocabulary[END],
    )
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=CLIP_SIDE,
        patch_size=8,
    )
    model = CLIPModel(
        CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=16)
    )
    with torch.no_grad():  # or every picture and every text would look alike
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for part, length in (("text", 77), ("vision", (CLIP_SIDE // 8) ** 2 + 1)):
        weights[f"{part}_model.embeddings.position_ids"] = torch.arange(length)[
            None
        ]  # older versions stored it
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    side = {"height": CLIP_SIDE, "width": CLIP_SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": CLIP_SIDE}, crop_size=side).save_pretrained(folder)


def load_classifier(folder: Path) -> ColourClassifier:
    """The classifier of a folder that `make_geneval` wrote."""
    source = "scorers.geneval.classifier", Weights(checkpoint=str(folder / "classifier"), revision=None)
    encoder = load_encoder(*source, "float32", "cpu")
    return ColourClassifier(encoder, load_processor(*source, encoder, "processor"))


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
