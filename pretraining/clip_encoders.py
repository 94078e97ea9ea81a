"""Step 1 of the toy SD3: two CLIP encoders with projection; all other parts but the network are the toy FLUX's.

The VAE, the T5 encoder and both tokenizers are copied from the shipped checkpoint, so both toys draw in the same latent
space. `python -m pretraining.clip_encoders`.
"""

from __future__ import annotations

import shutil

import torch
from transformers import CLIPTextModelWithProjection

from pretraining.common import Curve
from pretraining.text_encoders import (
    Learner,
    build_tokenizers,
    caption_lessons,
    captions,
    clip_config,
    learn_attributes,
)
from pretraining.toys import SD3, SHIPPED, Toy, load_toy

COPIED = {"vae": "vae", "text_encoder_2": "text_encoder_3", "tokenizer_2": "tokenizer_3"}
"""Folders of the shipped checkpoint, and their names here."""
CLIPS = {"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"}


def train(toy: Toy) -> None:
    """Copy the parts of the toy FLUX; train both encoders and save them with their tokenizers."""
    for source, target in COPIED.items():
        shutil.copytree(SHIPPED / source, toy.checkpoint / target, dirs_exist_ok=True)
    torch.manual_seed(toy.params["seed"])
    # The toy FLUX's, cut to fewer tokens: the network reads all of CLIP's tokens here, padding too.
    settings = toy.params["text"]
    tokens, _ = build_tokenizers(settings, captions())
    width = settings["clip_hidden_size"]
    models = {name: CLIPTextModelWithProjection(clip_config(settings, width, tokens)).to(toy.device) for name in CLIPS}
    learners = [
        Learner(name, model, tokens, lambda output: output.text_embeds, width) for name, model in models.items()
    ]
    learn_attributes(learners, caption_lessons(), toy, Curve(toy.curve("clip_encoders")))
    for name, model in models.items():
        model.half().save_pretrained(toy.checkpoint / name)
        tokens.save_pretrained(toy.checkpoint / CLIPS[name])


if __name__ == "__main__":
    train(load_toy(SD3))
