"""Step 1 of the toy that edits: the toy FLUX's text encoders learn instructions; its VAE is copied.

Both tokenizers get the words of instructions. The encoders start from the shipped ones and learn what an instruction
asks for. `python -m pretraining.edit_encoders`.
"""

from __future__ import annotations

import shutil

import torch
from torch import nn
from transformers import CLIPTokenizer, T5Tokenizer

from chunk_grpo.shapes.edits import EDIT_KINDS, Instruction, all_instructions
from chunk_grpo.shapes.scene import COLOURS, SHAPES
from pretraining.common import Curve, instructions_by_kind
from pretraining.text_encoders import (
    Lessons,
    build_encoders,
    build_tokenizers,
    captions,
    learn_attributes,
    learners_of,
    save,
)
from pretraining.toys import KONTEXT, SHIPPED, Toy, load_toy

TARGETS = (None, *COLOURS, *SHAPES)
"""What a thing can become; None: it is removed."""


def edit_lessons() -> Lessons[Instruction]:
    """What is to be done to which thing."""
    heads = {"kind": len(EDIT_KINDS), "shape": len(SHAPES), "colour": len(COLOURS) + 1, "target": len(TARGETS)}
    return Lessons(instructions_by_kind(), heads, 1, _attributes)


def _attributes(instruction: Instruction) -> dict[str, list[int]]:
    return {
        "kind": [EDIT_KINDS.index(instruction.kind)],
        "shape": [SHAPES.index(instruction.shape)],
        "colour": [(None, *COLOURS).index(instruction.colour)],
        "target": [TARGETS.index(instruction.to)],
    }


@torch.no_grad()
def start_from(
    shipped: nn.Module, model: nn.Module, old: CLIPTokenizer | T5Tokenizer, new: CLIPTokenizer | T5Tokenizer
) -> None:
    """Copy an encoder's weights; of the tables of tokens the rows of the tokens that both tokenizers have."""
    both = [(index, old.get_vocab().get(token)) for token, index in new.get_vocab().items()]
    there = torch.tensor([pair for pair in both if pair[1] is not None])
    state = shipped.state_dict()
    for name, value in model.state_dict().items():
        if value.shape == state[name].shape:
            value.copy_(state[name])
        else:
            value[there[:, 0]] = state[name][there[:, 1]]


def train(toy: Toy) -> None:
    """Copy the VAE; train both encoders on instructions and save them, with their tokenizers."""
    shutil.copytree(SHIPPED / "vae", toy.checkpoint / "vae", dirs_exist_ok=True)
    torch.manual_seed(toy.params["seed"])
    settings = toy.params["text"]
    words = [*captions(), *(instruction.prompt for instruction in all_instructions())]
    clip_tokens, t5_tokens = build_tokenizers(settings, words)
    clip, t5 = build_encoders(settings, clip_tokens, t5_tokens)
    for folder, model, new in (("text_encoder", clip, clip_tokens), ("text_encoder_2", t5, t5_tokens)):
        shipped = type(model).from_pretrained(SHIPPED / folder, dtype=torch.float32)
        start_from(
            shipped, model, type(new).from_pretrained(SHIPPED / folder.replace("text_encoder", "tokenizer")), new
        )
    learners = learners_of(clip.to(toy.device), t5.to(toy.device), clip_tokens, t5_tokens)
    learn_attributes(learners, edit_lessons(), toy, Curve(toy.curve("edit_encoders")))
    save(clip.half(), t5.half(), clip_tokens, t5_tokens, toy.checkpoint)


if __name__ == "__main__":
    train(load_toy(KONTEXT))
