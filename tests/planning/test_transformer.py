"""Weights and operations against the real checkpoints' sizes and torch's FlopCounterMode."""

import math

import pytest
from safetensors import safe_open

from chunk_grpo.planning.models import read_model
from chunk_grpo.planning.transformer import Sequence2D
from tests.conftest import CHECKPOINT
from tests.planning.fake_network import FLUX_1_DEV, Trained, counted, small, tuning_of

TOKENS = Sequence2D(2025, 512)


def test_the_toy_checkpoint_has_as_many_weights_as_its_files() -> None:
    model = read_model(str(CHECKPOINT))
    expected = {
        "transformer": model.transformer.weights,
        "vae": model.vae.weights,
        "text_encoder": model.clip.weights,
        "text_encoder_2": model.t5.weights,
    }
    for part, weights in expected.items():
        (file,) = (CHECKPOINT / part).glob("*.safetensors")
        with safe_open(file, "np") as stored:
            assert weights == sum(
                math.prod(stored.get_slice(name).get_shape())
                for name in stored.keys()  # noqa: SIM118
            )


def test_flux_1_dev_is_the_table_s() -> None:
    """11,901,408,320 weights, 4,762,310,656 of T5-XXL's encoder, 123,060,480 of CLIP's text tower."""
    model = read_model("black-forest-labs/FLUX.1-dev")
    assert model.transformer == FLUX_1_DEV
    assert (model.transformer.weights, model.t5.weights) == (11_901_408_320, 4_762_310_656)
    assert (model.clip.weights, model.vae.weights) == (123_060_480, 83_819_683)
    assert model.vae.tokens(720, 720) == 2025 and model.vae.tokens(1024, 1024) == 4096
    assert 0 < FLUX_1_DEV.outer_weights < 0.01 * FLUX_1_DEV.weights


def test_a_forward_pass_of_flux_1_dev() -> None:
    """37.3 TFLOP, by torch's count, at 720 x 720 pixels."""
    found = counted(FLUX_1_DEV, TOKENS)
    assert FLUX_1_DEV.forward_flop(TOKENS) == pytest.approx(found, rel=1e-6)
    assert found == pytest.approx(37.3e12, rel=2e-3)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("trained", ["all", "adapter"])
def test_forward_and_backward_of_real_blocks(trained: Trained, checkpointing: bool) -> None:
    """The formula ignores that the network's inputs need no gradient, and that checkpointing leaves out the ends."""
    sizes = small(3, 6)
    tuning = tuning_of(sizes, trained, checkpointing)
    found = counted(sizes, TOKENS, trained=trained, checkpointing=checkpointing)
    planned = tuning.forward_flop(TOKENS) + tuning.backward_flop(TOKENS) + tuning.recomputed_flop(TOKENS)
    assert planned == pytest.approx(found, rel=0.03)


@pytest.mark.parametrize("trained", ["nothing", "all"])
def test_the_toy_network(trained: Trained) -> None:
    sizes, tokens = read_model(str(CHECKPOINT)).transformer, Sequence2D(16, 8)
    tuning = tuning_of(sizes, trained, False)
    planned = tuning.forward_flop(tokens)
    planned += 0 if trained == "nothing" else tuning.backward_flop(tokens)
    found = counted(sizes, tokens, images=4, trained=trained)
    assert 4 * planned == pytest.approx(found, rel=0.03)


def test_an_adapter_s_weights_and_targets() -> None:
    """Rank 32: (D + D) * 32 a layer; 4 image layers in 19 double blocks, 3 in 38 single ones (they have no to_out)."""
    tuning = tuning_of(FLUX_1_DEV, "adapter", True)
    assert tuning.trained_weights == 32 * 2 * 3072 * (19 * 4 + 38 * 3)
