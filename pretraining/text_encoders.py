"""Step 1: tokenizers and text encoders, trained to predict the demands of a caption.

The attributes (shapes, colours, numbers, relation) are predicted from the pooled outputs of both encoders. Only this
step trains on knowledge phrases ("coloured like a ripe banana").

`python -m pretraining.text_encoders`; `pretraining.clip_encoders` is the step of the toy SD3,
`pretraining.edit_encoders` that of the toy that edits.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

from chunk_grpo.shapes.edits import Instruction
from chunk_grpo.shapes.prompts import RELATIONS, PromptSpec, all_prompts, knowledge_prompts
from chunk_grpo.shapes.scene import COLOURS, SHAPES
from pretraining.common import Curve, captions_by_category, cosine_with_warmup
from pretraining.toys import FLUX, Toy, load_toy

CLIP_MARKS = {"<|startoftext|>": 0, "<|endoftext|>": 1}
HEADS = {"shape": len(SHAPES) + 1, "colour": len(COLOURS) + 1, "count": 5, "relation": len(RELATIONS) + 1}
SLOTS = 2

Text = TypeVar("Text", PromptSpec, Instruction)


def vocabulary(prompts: Iterable[str]) -> list[str]:
    """All words of some texts, sorted."""
    return sorted({word for prompt in prompts for word in prompt.split()})


def captions() -> list[str]:
    """All captions, knowledge phrases included."""
    return [spec.prompt for spec in all_prompts() + knowledge_prompts()]


def byte_pair_merges(words: list[str]) -> list[tuple[str, str]]:
    """Byte-pair merges that make each word a single token; ties are broken alphabetically."""
    pieces = [[*word[:-1], word[-1] + "</w>"] for word in words]
    merges = []
    while any(len(parts) > 1 for parts in pieces):
        counts = Counter(pair for parts in pieces for pair in itertools.pairwise(parts))
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        pieces = [_merge(parts, best) for parts in pieces]
    return merges


def _merge(parts: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for piece in parts:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def build_tokenizers(settings: dict[str, Any], prompts: Iterable[str]) -> tuple[CLIPTokenizer, T5Tokenizer]:
    """Build a CLIP (byte-pair) and a T5 (unigram) tokenizer in which each word of some texts is one token."""
    words = vocabulary(prompts)
    merges = byte_pair_merges(words)
    letters = sorted({piece for word in words for piece in [*word[:-1], word[-1] + "</w>"]})
    tokens = list(dict.fromkeys([*CLIP_MARKS, *letters, *(a + b for a, b in merges)]))
    clip = CLIPTokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=merges,
        model_max_length=settings["clip_max_length"],
    )
    specials = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    t5 = T5Tokenizer(
        vocab=[*specials, *((f"▁{word}", -1.0) for word in words)], extra_ids=0, model_max_length=settings["max_length"]
    )
    return clip, t5


def attributes_of(spec: PromptSpec) -> dict[str, list[int]]:
    """Class indices of each attribute of a caption's demands; 0 means unspecified."""
    slots = [*spec.demands, *[None] * (SLOTS - len(spec.demands))]
    return {
        "shape": [SHAPES.index(d.shape) + 1 if d else 0 for d in slots],
        "colour": [list(COLOURS).index(d.colour) + 1 if d and d.colour else 0 for d in slots],
        "count": [d.count if d else 0 for d in slots],
        "relation": [RELATIONS.index(d.relation) + 1 if d and d.relation else 0 for d in slots],
    }


@dataclass(frozen=True)
class Lessons(Generic[Text]):
    """What the encoders learn to say about texts."""

    pools: list[list[Text]]
    """Texts; the pools are equally frequent."""
    heads: dict[str, int]
    """Number of classes of each attribute."""
    slots: int
    """Values of each attribute."""
    attributes: Callable[[Text], dict[str, list[int]]]
    """Class indices of a text's attributes, `slots` of each."""

    def targets(self, texts: list[Text]) -> dict[str, Tensor]:
        """Class indices [B, slots] of each attribute."""
        rows = [self.attributes(text) for text in texts]
        return {name: torch.tensor([row[name] for row in rows]) for name in self.heads}


def caption_lessons() -> Lessons[PromptSpec]:
    """The demands of captions."""
    pools = [*captions_by_category(), knowledge_prompts()]
    return Lessons(pools, HEADS, SLOTS, attributes_of)


class AttributeReader(nn.Module):
    """Linear prediction of all attributes from a pooled vector; discarded after this step."""

    def __init__(self, width: int, heads: dict[str, int], slots: int) -> None:
        """Create heads for vectors of `width`; see `Lessons`."""
        super().__init__()
        self._classes, self._slots = heads, slots
        self.heads = nn.ModuleDict({name: nn.Linear(width, slots * classes) for name, classes in heads.items()})

    def forward(self, pooled: Tensor, targets: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy, and per caption whether all attributes are correct [B]."""
        loss = pooled.new_zeros(())
        right = torch.ones(len(pooled), dtype=torch.bool, device=pooled.device)
        for name, classes in self._classes.items():
            logits = self.heads[name](pooled).view(-1, self._slots, classes)
            loss = loss + cross_entropy(logits.flatten(0, 1), targets[name].flatten())
            right &= (logits.argmax(-1) == targets[name]).all(dim=1)
        return loss, right


def clip_config(settings: dict[str, Any], width: int, tokens: CLIPTokenizer) -> CLIPTextConfig:
    """Configuration of a CLIP encoder of this width."""
    return CLIPTextConfig(
        vocab_size=len(tokens), hidden_size=width, intermediate_size=2 * width, projection_dim=width,
        num_hidden_layers=settings["layers"], num_attention_heads=settings["heads"],
        max_position_embeddings=settings["clip_max_length"], bos_token_id=tokens.bos_token_id,
        eos_token_id=tokens.eos_token_id, pad_token_id=tokens.pad_token_id,
    )  # fmt: skip


def build_encoders(
    settings: dict[str, Any], clip_tokens: CLIPTokenizer, t5_tokens: T5Tokenizer
) -> tuple[CLIPTextModel, T5EncoderModel]:
    width, layers, heads = settings["hidden_size"], settings["layers"], settings["heads"]
    clip = CLIPTextModel(clip_config(settings, width, clip_tokens))
    t5 = T5EncoderModel(
        T5Config(
            vocab_size=len(t5_tokens), d_model=width, d_kv=width // heads, d_ff=2 * width, num_layers=layers,
            num_heads=heads, relative_attention_num_buckets=16, relative_attention_max_distance=16, dropout_rate=0.0,
            feed_forward_proj="gated-gelu", tie_word_embeddings=False, is_encoder_decoder=False, use_cache=False,
        )
    )  # fmt: skip
    return clip, t5


@dataclass(frozen=True)
class Learner:
    """A text encoder that learns."""

    name: str
    """Its name in the curve."""
    model: nn.Module
    tokens: CLIPTokenizer | T5Tokenizer
    pooled: Callable[[Any], Tensor]
    """Its vectors [B, W] from the encoder's output."""
    width: int


def learn_attributes(learners: Sequence[Learner], lessons: Lessons[Any], toy: Toy, curve: Curve) -> None:
    """Train all encoders at once."""
    settings, device = toy.params["text"], toy.device
    rng = random.Random(toy.params["seed"])
    readers = nn.ModuleList(AttributeReader(one.width, lessons.heads, lessons.slots) for one in learners).to(device)
    parameters = [p for module in (*(one.model for one in learners), readers) for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, settings["learning_rate"], weight_decay=1e-4)
    schedule = cosine_with_warmup(optimizer, 100, settings["steps"])
    for step in range(1, settings["steps"] + 1):
        specs = [rng.choice(rng.choice(lessons.pools)) for _ in range(settings["batch_size"])]
        targets = {name: values.to(device) for name, values in lessons.targets(specs).items()}
        loss, row = torch.zeros((), device=device), dict[str, float]()
        for one, reader in zip(learners, readers, strict=True):
            texts = one.tokens([spec.prompt for spec in specs], padding="max_length", return_tensors="pt")
            own, right = reader(one.pooled(one.model(texts.input_ids.to(device))), targets)
            loss = loss + own
            row |= {f"{one.name}_loss": own.item(), f"{one.name}_right": right.float().mean().item()}
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0 or step == settings["steps"]:
            curve.add(step, **row, learning_rate=float(schedule.get_last_lr()[0]))


def train(toy: Toy) -> None:
    """Train both encoders and save them, with their tokenizers, into the checkpoint folder."""
    torch.manual_seed(toy.params["seed"])
    settings = toy.params["text"]
    clip_tokens, t5_tokens = build_tokenizers(settings, captions())
    clip, t5 = (model.to(toy.device) for model in build_encoders(settings, clip_tokens, t5_tokens))
    learners = learners_of(clip, t5, clip_tokens, t5_tokens)
    learn_attributes(learners, caption_lessons(), toy, Curve(toy.curve("text_encoders")))
    save(clip.half(), t5.half(), clip_tokens, t5_tokens, toy.checkpoint)


def learners_of(
    clip: CLIPTextModel, t5: T5EncoderModel, clip_tokens: CLIPTokenizer, t5_tokens: T5Tokenizer
) -> tuple[Learner, Learner]:
    """Both encoders of a FluxPipeline; of T5's outputs the mean is read."""
    return (
        Learner("clip", clip, clip_tokens, lambda output: output.pooler_output, clip.config.hidden_size),
        Learner("t5", t5, t5_tokens, lambda output: output.last_hidden_state.mean(dim=1), t5.config.d_model),
    )


def save(
    clip: CLIPTextModel, t5: T5EncoderModel, clip_tokens: CLIPTokenizer, t5_tokens: T5Tokenizer, folder: Path
) -> None:
    """Write the four text components of a FluxPipeline folder, weights in float16."""
    clip.save_pretrained(folder / "text_encoder")
    t5.save_pretrained(folder / "text_encoder_2")
    clip_tokens.save_pretrained(folder / "tokenizer")
    t5_tokens.save_pretrained(folder / "tokenizer_2")


if __name__ == "__main__":
    train(load_toy(FLUX))
