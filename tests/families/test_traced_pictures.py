"""What the plan reads off a network whose prompts edit pictures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.families.models.qwen_image_edit import _SHOWN
from chunk_grpo.families.tracing import Traced, network_sizes, pass_sizes
from chunk_grpo.planning.models import read_checkpoint
from tests.families.parity import load, module_of

PICTURE = [np.zeros((32, 64, 3), dtype=np.uint8)]


def drawn_by(name: str, folder: Path, tokens: int) -> Traced:
    """Images of 4 x 4 tokens by the random checkpoint of a family."""
    module_of(name).random_pipeline().save_pretrained(folder)
    return Traced(read_checkpoint(name, str(folder)), "float32", 32, 32, tokens)


def test_a_picture_to_edit_is_further_tokens(tmp_path: Path) -> None:
    """Bytes are those of an encoded prompt; the picture's 4 x 8 tokens are multiplied as the image's are."""
    drawn = drawn_by("flux_kontext", tmp_path, 8)
    edited = replace(drawn, source=(32, 64))
    sizes = network_sizes(edited)
    assert (network_sizes(drawn).text_tokens, sizes.text_tokens) == (8, 8 + 4 * 8)
    tensors = load("flux_kontext", tmp_path).encode(["a red circle"], PICTURE).tensors
    assert sizes.text_bytes == sum(tensor.nbytes for tensor in tensors.values())
    wider = pass_sizes(replace(drawn, width=96), backward=False).forward  # as many tokens in all
    assert pass_sizes(edited, backward=False).forward == wider


def test_a_picture_that_the_text_encoder_sees_is_in_the_text_too(tmp_path: Path) -> None:
    """The negative prompt's tensors are stored with each row, and are as many tokens in a guided pass."""
    drawn = drawn_by("qwen_image_edit", tmp_path, 384)
    with pytest.raises(ConfigError, match=r"model\.family: qwen_image_edit only edits pictures"):
        network_sizes(drawn)
    edited = replace(drawn, source=(32, 64))
    sizes = network_sizes(edited)
    assert sizes.text_tokens == 384 + _SHOWN + 4 * 8
    tensors = load("qwen_image_edit", tmp_path).encode(["a red circle"], PICTURE, "a cross").tensors
    assert sizes.text_bytes == sum(tensor.nbytes for tensor in tensors.values())
    plain, guided = (pass_sizes(replace(edited, cfg_scale=scale), backward=False).forward for scale in (1.0, 4.0))
    assert guided / plain == 2
