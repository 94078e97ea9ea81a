"""Memory of a pass against the allocations of torch's operations on fake tensors, within 5 %."""

import pytest

from chunk_grpo.planning.activations import AUTOCAST, Pass, evaluation_peak, training_peak
from chunk_grpo.planning.models import read_model
from chunk_grpo.planning.transformer import Sequence2D
from tests.planning.fake_network import Trained, allocated, small, tuning_of

TOKENS = Sequence2D(2025, 512)


@pytest.mark.parametrize("images", [1, 12])
def test_a_pass_without_gradients(images: int) -> None:
    sizes = small(2, 3)
    peak = allocated(sizes, TOKENS, images=images)
    assert evaluation_peak(sizes, Pass(images, TOKENS, 2)).bytes == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize("images", [1, 12])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("trained", ["all", "adapter"])
def test_a_forward_and_backward_pass(trained: Trained, checkpointing: bool, images: int) -> None:
    """Several depths, so that what a block adds is compared, not a constant."""
    for double_blocks, single_blocks in ((2, 4), (4, 2)):
        sizes = small(double_blocks, single_blocks)
        peak = allocated(sizes, TOKENS, images=images, trained=trained, checkpointing=checkpointing)
        planned = training_peak(tuning_of(sizes, trained, checkpointing), Pass(images, TOKENS, 2)).bytes
        assert planned == pytest.approx(peak, rel=0.05), (double_blocks, single_blocks)


def test_decoding() -> None:
    """Three tensors of 256 channels at 720 x 720 pixels, bfloat16: 0.74 GiB (torch's allocations on fake tensors)."""
    vae = read_model("black-forest-labs/FLUX.1-dev").vae
    assert vae.decode_bytes(1, 720, 720, 2) == 3 * 256 * 720 * 720 * 2


@pytest.mark.parametrize("images", [1, 12])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_passes_under_autocast(checkpointing: bool, images: int) -> None:
    """With norms in float32, as on a GPU; weights that are cast for a product are not in it."""
    one = Pass(images, TOKENS, 2)
    for double_blocks, single_blocks in ((2, 4), (4, 2)):
        sizes = small(double_blocks, single_blocks)
        options = {"images": images, "trained": "all", "checkpointing": checkpointing, "autocasts": True}
        planned = training_peak(tuning_of(sizes, "all", checkpointing), one, autocasts=True).bytes
        assert planned == pytest.approx(allocated(sizes, TOKENS, **options), rel=0.05)
        peak = allocated(sizes, TOKENS, images=images, autocasts=True)
        assert evaluation_peak(sizes, one, AUTOCAST).bytes == pytest.approx(peak, rel=0.05)
