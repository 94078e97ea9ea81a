"""A quantised base on the pretended accelerator: it comes there, leaves for a whole transformer, and is back."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.quantised import parts
from tests.pretended.device import DEVICE, PretendedTensor
from tests.training.conftest import OPTIONS


def tensors(family: FluxFamily) -> list[Tensor]:
    """What holds the values of all weights; a pretended tensor has a part itself."""
    weights = list(family.transformer.parameters())
    return [
        part
        for weight in weights
        for part in ((weight,) if isinstance(weight, PretendedTensor) else parts(weight))
    ]


def places(family: FluxFamily) -> set[str]:
    return {part.device.type for part in tensors(family)}


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
    for part, value in zip(tensors(base), tensors(given), strict=True):
        assert torch.equal(part.cpu(), value)
