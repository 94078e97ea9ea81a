"""What the plan reads off a network whose prompts edit pictures."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from chunk_grpo.families.tracing import Traced, network_sizes, pass_sizes
from chunk_grpo.planning.models import read_checkpoint
from tests.families.checkpoint_flux_kontext import random_pipeline
from tests.families.parity import load


def test_a_picture_to_edit_is_further_tokens(tmp_path: Path) -> None:
    """Bytes are those of an encoded prompt; the picture's 4 x 8 tokens are multiplied as the image's are."""
    random_pipeline().save_pretrained(tmp_path)
    drawn = Traced(read_checkpoint("flux_kontext", str(tmp_path)), "float32", 32, 32, 8)
    edited = replace(drawn, source=(32, 64))
    sizes = network_sizes(edited)
    assert (network_sizes(drawn).text_tokens, sizes.text_tokens) == (8, 8 + 4 * 8)
    picture = [np.zeros((32, 64, 3), dtype=np.uint8)]
    tensors = load("flux_kontext", tmp_path).encode(["a red circle"], picture).tensors
    assert sizes.text_bytes == sum(tensor.nbytes for tensor in tensors.values())
    wider = pass_sizes(replace(drawn, width=96), backward=False).forward  # as many tokens in all
    assert pass_sizes(edited, backward=False).forward == wider
