"""A quantised base on the pretended accelerator: it comes there, leaves for a whole transformer, and is back."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.quantised import parts
from tests.pretended.device import DEVICE, PretendedTensor
from tests.training.conftest import OPTIONS


def tensors(network: nn.Module) -> list[Tensor]:
    """What holds the values of all weights; a pretended tensor has a part itself."""
    return [
        part
        for weight in network.parameters()
        for part in ((weight,) if isinstance(weight, PretendedTensor) else parts(weight))
    ]


def places(family: FluxFamily) -> set[str]:
    return {part.device.type for part in tensors(family.transformer)}


@pytest.mark.parametrize("precision", get_args(BasePrecision))
def test_text_encoders_come_there(precision: BasePrecision) -> None:
    options = replace(OPTIONS, text_precision=precision)
    there, here = (FluxFamily.load(each, ("text",)) for each in (replace(options, device=DEVICE), options))
    held = tensors(there._pipeline.text_encoder_2)
    assert {part.device.type for part in held} == {"pretend"}
    for part, value in zip(held, tensors(here._pipeline.text_encoder_2), strict=True):
        assert torch.equal(part.cpu(), value)
    found, given = (family.encode(["a red circle"]).to("cpu") for family in (there, here))
    for name, tensor in given.tensors.items():
        torch.testing.assert_close(found[name], tensor)


@pytest.mark.parametrize("precision", get_args(BasePrecision))
def test_a_whole_transformer_takes_its_place(precision: BasePrecision, tmp_path: Path) -> None:
    FluxFamily.load(OPTIONS, ("transformer",)).transformer.save_pretrained(tmp_path)
    options = replace(OPTIONS, base_precision=precision, device=DEVICE)
    base = FluxFamily.load(options, ("transformer",))
    given = FluxFamily.load(replace(OPTIONS, base_precision=precision), ("transformer",))
    with torch.no_grad():
        assert places(base) == {"pretend"}
        with base.replaced_by(tmp_path) as other:
            assert places(base) == {"cpu"}
            assert places(other) == {"pretend"}
        assert places(base) == {"pretend"}
    for part, value in zip(tensors(base.transformer), tensors(given.transformer), strict=True):
        assert torch.equal(part.cpu(), value)
