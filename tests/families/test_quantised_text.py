"""Quantised text encoders: what is quantised, its bytes, and how far the embeddings move."""

import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import chunk_grpo
from chunk_grpo.config.models import BasePrecision
from chunk_grpo.errors import ConfigError
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.quantised import layers_of_blocks, parts
from chunk_grpo.families.registry import load_family
from chunk_grpo.families.tracing import text_bytes
from chunk_grpo.planning.models import read_checkpoint
from chunk_grpo.shapes.prompts import all_prompts
from tests.families.parity import PROMPTS, as_loaded, encoded, load, names_with_slow_ones
from tests.families.small_parts import TINY

PRECISIONS: tuple[BasePrecision, ...] = get_args(BasePrecision)
ROOT = TINY.parents[1]
ERRORS = {"int8": 0.025, "float8": 0.08, "nf4": 0.3}
"""Above the relative errors of all small checkpoints."""


def encoders(family: DiffusersFamily) -> list[nn.Module]:
    return [part for name, part in family._pipeline.components.items() if name.startswith("text_encoder")]


def held(family: DiffusersFamily) -> list[Tensor]:
    """Tensors with the values of the encoders' weights."""
    return [part for each in encoders(family) for weight in each.parameters() for part in parts(weight)]


def apart(found: Tensor, whole: Tensor) -> Tensor:
    """Relative error of each prompt's embedding."""
    return (found - whole).float().flatten(1).norm(dim=1) / whole.float().flatten(1).norm(dim=1)


@pytest.mark.parametrize("name", names_with_slow_ones())
def test_layers_bytes_and_embeddings_of_every_family(name: str, checkpoints: Any) -> None:
    folder = checkpoints(name)["bf16"]
    whole = as_loaded(name, folder, dtype=torch.bfloat16)
    expected, before = encoded(whole, PROMPTS), 0.0
    for precision in PRECISIONS:
        family = load(name, folder, dtype=torch.bfloat16, text_precision=precision)
        layers = {id(layer.weight) for each in encoders(family) for layer in layers_of_blocks(each)}
        assert layers
        for one, other in zip(encoders(family), encoders(whole), strict=True):
            for (own, weight), plain in zip(one.named_parameters(), other.parameters(), strict=True):
                if id(weight) in layers:
                    assert len(list(parts(weight))) > 1, own
                else:
                    assert torch.equal(weight, plain), own
        planned = text_bytes(read_checkpoint(name, str(folder)), "bfloat16", precision)
        assert sum(part.nbytes for part in held(family)) == planned
        for weight, plain in zip(family.transformer.parameters(), whole.transformer.parameters(), strict=True):
            assert torch.equal(weight, plain)
        found = encoded(family, PROMPTS)
        largest = max(
            float(apart(found[key], tensor).max())
            for key, tensor in expected.tensors.items()
            if tensor.is_floating_point()
        )
        assert before < largest < ERRORS[precision], precision
        before = largest
    assert sum(part.nbytes for part in held(whole)) == text_bytes(read_checkpoint(name, str(folder)), "bfloat16", None)


@pytest.mark.parametrize("toy", ["tiny-flux", "tiny-sd3"])
def test_errors_of_the_toys_are_those_of_the_documents(toy: str) -> None:
    """docs/performance.md, "Quantised text encoders"."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    prompts = [spec.prompt for spec in all_prompts()[:: len(all_prompts()) // 32][:32]]

    def loaded(precision: BasePrecision | None) -> Any:
        options = LoadOptions(
            str(ROOT / "assets" / toy), height=32, width=32, max_sequence_length=8, text_precision=precision
        )
        return load_family(toy.removeprefix("tiny-"), options, ("text",))

    whole = loaded(None)
    weights, expected = sum(weight.numel() for weight in held(whole)), whole.encode(prompts)
    for precision in PRECISIONS:
        family = loaded(precision)
        found = family.encode(prompts)
        measured = [sum(part.nbytes for part in held(family)) / weights]
        for key in ("prompt_embeds", "pooled"):
            errors = 100 * apart(found[key], expected[key])
            measured += [float(errors.mean()), float(errors.max())]
        (row,) = re.findall(rf"^\| `{precision}` \| {toy} \| ([0-9.]+ (?:\| [0-9.]+ % ){{4}})\|$", page, re.M)
        written = [float(number) for number in re.findall(r"[0-9.]+", row)]
        assert measured == pytest.approx(written, abs=0.06)  # a half of the last digit, and rounding


def test_the_library_encodes_with_it() -> None:
    def embedded(**settings: Any) -> Tensor:
        model = chunk_grpo.load(str(TINY), height=32, width=32, max_sequence_length=8, **settings)
        found: Tensor = model.encode(["a red circle"]).conditioning.to("cpu")["prompt_embeds"]
        return found

    error = float(apart(embedded(text_precision="int8"), embedded()).max())
    assert 0 < error < ERRORS["int8"]


def test_without_torchao(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    options = LoadOptions(str(TINY), height=32, width=32, max_sequence_length=8, text_precision="int8")
    with pytest.raises(ConfigError, match=r"model\.text_precision: int8 needs torchao.*pip install 'torchao>=0"):
        load_family("flux", options, ("text",))
    assert load_family("flux", options, ("transformer",)).transformer is not None
