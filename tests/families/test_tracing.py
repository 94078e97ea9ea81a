"""Sizes that are read off the real classes, against numbers by hand, files, and networks traced whole."""

import copy
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException

from chunk_grpo.errors import ConfigError
from chunk_grpo.families.base import LoadOptions, TuningOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.quantised import parts
from chunk_grpo.families.tracing import (
    Checkpoint,
    PassSizes,
    Traced,
    decoding,
    network_sizes,
    pass_sizes,
    text_sizes,
    trace,
    units,
    vae_weights,
)
from chunk_grpo.families.tracing.build import fake_tensors, faked
from chunk_grpo.families.tracing.values import Values
from chunk_grpo.planning.models import read_checkpoint
from tests.conftest import CHECKPOINT
from tests.families.checkpoint_sd3 import random_pipeline

D, L, T = 3072, 2025, 512
"""FLUX.1-dev's width, and the tokens of an image of 720 x 720 and of its prompt."""

UNIT = (L + T) * D * 2
"""Bytes of a bfloat16 tensor of the network's width, for an image."""

ALL = TuningOptions(None, 1.0, (), True, None)
CONSTANT = replace(ALL, guidance_gradient="conditional")
ADAPTER = TuningOptions(32, 32.0, ("to_q", "to_k", "to_v", "to_out.0"), True, None)


def flux(double_blocks: int = 19, single_blocks: int = 38) -> Traced:
    """FLUX.1-dev, or with fewer blocks; its weights are gathered."""
    known = read_checkpoint("flux", "black-forest-labs/FLUX.1-dev")
    return Traced(
        changed(known, num_layers=double_blocks, num_single_layers=single_blocks),
        "bfloat16", 720, 720, T, gathers=True,
    )  # fmt: skip


def changed(checkpoint: Checkpoint, **values: object) -> Checkpoint:
    """The checkpoint with other values of the transformer's configuration."""
    configs = json.loads(checkpoint.configs)
    configs["transformer"] |= values
    return replace(checkpoint, configs=json.dumps(configs))


def toy(family: str = "flux", **values: object) -> Traced:
    found = read_checkpoint("flux", str(CHECKPOINT))
    return Traced(replace(changed(found, **values), family=family), "float32", 32, 32, 8)


@cache
def sd3() -> Traced:
    """Seven blocks: two with dual attention, four without, and the last, which has no text any more."""
    pipeline = random_pipeline()
    configs = {}
    for name in ("transformer", "vae"):
        part = getattr(pipeline, name)
        configs[name] = {**part.config, "_class_name": type(part).__name__}
    configs["transformer"] |= {"num_layers": 7, "dual_attention_layers": [0, 1]}
    for name in ("text_encoder", "text_encoder_2", "text_encoder_3"):
        configs[name] = getattr(pipeline, name).config.to_dict()
    return Traced(Checkpoint("sd3", "random", json.dumps(configs, default=str)), "float32", 32, 32, 8)


@contextmanager
def traced_whole() -> Iterator[None]:
    """Context in which no block is left out."""
    cached = (trace._shortened, trace._quantised, network_sizes, pass_sizes)
    with patch.object(units, "TRACED", 1000):
        for function in cached:
            function.cache_clear()
        try:
            yield
        finally:
            for function in cached:
                function.cache_clear()


def of_flux(double_blocks: int, single_blocks: int) -> tuple[float, float]:
    """Operations of the linear layers and of the attention of a velocity, by hand.

    2 * rows * inputs * outputs; 4 n^2 D a block (queries by keys, scores by values). A stream of a double block has
    four products of D x D, two of an MLP of 4 D and a modulation of 6 D; a single block three, two of 4 D, D, and 3 D.
    """
    n = L + T
    ends = L * 64 * D + T * 4096 * D + (256 + D + 256 + D + 768 + D) * D + 2 * D * D + L * D * 64
    double = n * (4 + 8) * D * D + 2 * 6 * D * D
    single = n * (3 + 4 + 5) * D * D + 3 * D * D
    linear = 2.0 * (ends + double_blocks * double + single_blocks * single)
    return linear, 4.0 * n * n * D * (double_blocks + single_blocks)


def test_the_toy_has_as_many_weights_as_its_files() -> None:
    checkpoint = toy().checkpoint
    parts = {
        "transformer": network_sizes(toy()).weights,
        "vae": vae_weights(checkpoint),
        "text_encoder*": text_sizes(checkpoint).weights,
    }
    for part, weights in parts.items():
        files = list(CHECKPOINT.glob(f"{part}/*.safetensors"))
        assert files and weights == sum(map(in_file, files)), part


def in_file(file: Any) -> int:
    with safe_open(file, "np") as stored:
        return sum(math.prod(stored.get_slice(name).get_shape()) for name in stored.keys())  # noqa: SIM118


def test_sizes_of_flux_1_dev() -> None:
    """Its weights, T5-XXL's encoder's 4,762,310,656 with CLIP's 123,060,480, and the embeddings of both."""
    sizes, text = network_sizes(flux()), text_sizes(flux().checkpoint)
    assert (sizes.weights, sizes.trained_weights) == (11_901_408_320, 0)
    assert {name: unit.count for name, unit in sizes.units.items()} == {
        "transformer_blocks.0": 19, "single_transformer_blocks.0": 38,
    }  # fmt: skip
    assert 0 < sizes.outer_weights < 0.01 * sizes.weights
    assert text.weights == 4_762_310_656 + 123_060_480
    assert text.embeddings == 32128 * 4096 + 32 * 64 + (49408 + 77) * 768
    assert vae_weights(flux().checkpoint) == 83_819_683
    assert sizes.latent_shape == (L, 64) and sizes.text_tokens == T
    assert sizes.text_bytes == 2 * (T * 4096 + 768)
    assert network_sizes(replace(flux(), height=1024, width=1024)).latent_shape == (4096, 64)


@pytest.mark.parametrize(
    ("name", "weights", "positions"), [("medium", 2_243_171_520, 384), ("large", 8_056_627_520, 192)]
)
def test_sizes_of_stable_diffusion_3_5(name: str, weights: int, positions: int) -> None:
    """2.24 and 8.06 billion weights; with the table of positions, the medium one's file has 4.94 GB in bfloat16.

    694,659,840 weights of OpenCLIP's bigG-14 text tower with its projection, 123,650,304 of CLIP's.
    """
    checkpoint = read_checkpoint("sd3", f"stabilityai/stable-diffusion-3.5-{name}")
    sizes = network_sizes(Traced(checkpoint, "bfloat16", 1024, 1024, 256))
    width = 1536 if name == "medium" else 2432
    assert sizes.weights == weights and sizes.buffer_bytes == 2 * positions**2 * width
    assert sum(unit.count for unit in sizes.units.values()) == (24 if name == "medium" else 38)
    assert sizes.latent_shape == (4096, 64) and sizes.text_tokens == 77 + 256
    assert text_sizes(checkpoint).weights == 4_762_310_656 + 694_659_840 + 123_650_304


@pytest.mark.parametrize("precision", [None, "int8", "float8", "nf4"])
def test_bytes_of_a_quantised_base_are_those_of_the_loaded_one(precision: Any) -> None:
    what, settings = toy(), LoadOptions(str(CHECKPOINT), height=32, width=32, base_precision=precision)
    network = FluxFamily.load(settings, ("transformer",)).transformer
    held = sum(part.nbytes for weight in network.parameters() for part in parts(weight))
    for tuning in (None, ADAPTER):
        assert network_sizes(replace(what, tuning=tuning, precision=precision)).base_bytes == held


def test_a_quantised_base_without_checkpointing() -> None:
    """A copy of each layer's weights, 2 bytes, waits for the backward pass where the layer's input has a gradient.

    Those of modulations have none, nor those of q, k and v of both streams in the first block: there 18 D^2 are left,
    24 D^2 in other double blocks, 12 D^2 in single ones. `nf4` converts the weights again.
    """
    small = replace(flux(2, 4), gathers=False, tuning=replace(ADAPTER, gradient_checkpointing=False))
    peak = {name: pass_sizes(replace(small, precision=name), backward=True).peak for name in (None, "int8", "nf4")}
    copies = 2 * (18 + 24 + 4 * 12) * D * D
    assert peak["int8"] - peak[None] == pytest.approx(copies, rel=0.02)
    assert peak["nf4"] - peak[None] < 0.5 * copies


def test_trained_weights_and_their_rows() -> None:
    """Rank 32: (D + D) * 32 a layer; 4 image layers in 19 double blocks, 3 in 38 single ones (they have no to_out)."""
    adapter = network_sizes(replace(flux(), tuning=ADAPTER))
    trained = 32 * 2 * D * (19 * 4 + 38 * 3)
    assert adapter.trained_weights == trained and adapter.trained_rows == {D: trained / 2, 32: trained / 2}
    assert adapter.weights == 11_901_408_320
    every = network_sizes(replace(flux(), tuning=ALL))
    assert every.trained_weights == 11_901_408_320
    assert every.trained_rows[64] == 64 * D  # x_embedder
    assert 0.999 * every.trained_weights < sum(every.trained_rows.values()) < every.trained_weights


def test_a_target_may_name_one_layer_of_two_blocks() -> None:
    one = replace(ADAPTER, lora_targets=("single_transformer_blocks.30.attn.to_q",))
    sizes = network_sizes(replace(flux(), tuning=one))
    assert sizes.trained_weights == 32 * 2 * D
    assert sum(unit.count for unit in sizes.units.values()) == 57
    with pytest.raises(ConfigError, match=r"train\.lora\.targets: must name linear layers"):
        network_sizes(replace(flux(), tuning=replace(ADAPTER, lora_targets=("nowhere",))))


def test_a_forward_pass_of_flux_1_dev() -> None:
    """37.3 TFLOP an image of 720 x 720; the scores that a fused attention does not keep have 24 * 2537^2 elements."""
    found = pass_sizes(replace(flux(), images=2), backward=False)
    assert found.forward == 2 * sum(of_flux(19, 38)) == pytest.approx(2 * 37.3e12, rel=2e-3)
    assert (found.backward, found.recomputed) == (0, 0)
    assert found.scores == 2 * 24 * (L + T) ** 2


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_backward_pass(checkpointing: bool) -> None:
    """Twice the linear layers, once if frozen, and 2.5 times the attention, whose scores are computed again.

    Less the gradients of the network's inputs, which nobody asks for, and of the first norms' modulation.
    """
    linear, attention = of_flux(19, 38)
    whole, adapter = (
        pass_sizes(replace(flux(), tuning=replace(way, gradient_checkpointing=checkpointing)), backward=True)
        for way in (ALL, ADAPTER)
    )
    extra = 2 * 32 * 2 * D * (19 * 4 * L + 38 * 3 * (L + T))
    assert whole.forward == linear + attention and adapter.forward == linear + attention + extra
    assert whole.backward == pytest.approx(2 * linear + 2.5 * attention, rel=0.01)
    assert adapter.backward == pytest.approx(linear + 2 * extra + 2.5 * attention, rel=0.01)
    for found in (whole, adapter):
        assert found.recomputed == pytest.approx(found.forward if checkpointing else 0, rel=0.01)


@pytest.mark.parametrize("images", [pytest.param(1, marks=pytest.mark.slow), 12])
def test_activations_of_flux_1_dev(images: int) -> None:
    """Units that were read off torch's allocations with fake tensors before, within 5 %: of the block at work, and one
    that each block before it keeps."""
    what = replace(flux(), images=images)
    expected = {
        "frozen": (what, False, 12.9, 17.35),
        "all, a CPU's autocast": (replace(what, tuning=ALL, wide_norms=False), True, 19 + 31.4, 57 + 31.4),
        "all, a GPU's autocast": (replace(what, tuning=ALL), True, 19 + 41.0, 57 + 52.4),
        # A layer with an adapter keeps its input in float32, and the product with A: 2 * (D + rank) / D units.
        "adapter": (
            replace(what, tuning=ADAPTER), True,
            19 + 20.0 + 4 * 2 * L / (L + T) * (1 + 32 / D), 57 + 27.35 + 3 * 2 * (1 + 32 / D),
        ),
    }  # fmt: skip
    for name, (case, backward, double, single) in expected.items():
        found = pass_sizes(case, backward=backward)
        gradient = 6 * D * D * 2 if name == "all, a CPU's autocast" else 0  # of one weight
        assert found.peak == pytest.approx(single * UNIT * images + gradient, rel=0.05), name
        if images > 1:
            assert found.units["transformer_blocks.0"] == pytest.approx(double * UNIT * images + gradient, rel=0.05), (
                name
            )


def test_activations_without_checkpointing() -> None:
    """29.05 units of a double block, 25.05 of a single one, 6.8 besides; 35.05, 30.05, 22.3 under a GPU's autocast."""
    way = replace(ALL, gradient_checkpointing=False)
    what = replace(flux(), images=12, tuning=way)
    plain = pass_sizes(replace(what, wide_norms=False), backward=True).peak
    wide = pass_sizes(what, backward=True).peak
    assert plain == pytest.approx((19 * 29.05 + 38 * 25.05 + 6.8) * UNIT * 12, rel=0.05)
    assert wide == pytest.approx((19 * 35.05 + 38 * 30.05 + 22.3) * UNIT * 12, rel=0.05)


def test_weights_that_autocast_casts_are_activations() -> None:
    """All weights of a single block, or of all blocks without checkpointing, beside those that are gathered."""
    small = replace(flux(2, 4), tuning=ALL)
    held, gathered = (pass_sizes(replace(small, gathers=way), backward=True) for way in (False, True))
    (block,) = (u.weights for name, u in network_sizes(small).units.items() if "single" in name)
    kind = "single_transformer_blocks.0"
    assert held.units[kind] - gathered.units[kind] == pytest.approx(2 * block, rel=0.1)


def test_decoding() -> None:
    """Three tensors of 256 channels at 720 x 720 pixels, bfloat16, an image."""
    found = decoding(replace(flux(), images=2))
    assert found.bytes == pytest.approx(2 * 3 * 256 * 720 * 720 * 2, rel=0.05)
    assert found.flop == 2 * decoding(flux()).flop


CASES: Mapping[str, tuple[TuningOptions | None, dict[str, Any]]] = {
    "frozen": (None, {}),
    "all": (replace(ALL, gradient_checkpointing=False), {}),
    "all, checkpointing, bfloat16": (ALL, {"element": "bfloat16", "gathers": True}),
    "adapter": (ADAPTER, {}),
    "adapter, int8": (ADAPTER, {"precision": "int8"}),
    "adapter, float8": (ADAPTER, {"precision": "float8"}),
    "adapter, nf4": (ADAPTER, {"precision": "nf4"}),
    # The gradients of all weights wait for those of the first pass.
    "guided in two passes": (ALL, {"cfg_scale": 2.0, "cfg_passes": 2}),
    "guided by a constant": (CONSTANT, {"cfg_scale": 2.0, "cfg_passes": 2}),
}


DEFAULT = {("flux", "frozen"), ("flux", "all, checkpointing, bfloat16"), ("sd3", "frozen"), ("sd3", "adapter")}


@pytest.mark.parametrize(
    ("family", "case"),
    [
        pytest.param(family, case, marks=() if (family, case) in DEFAULT else pytest.mark.slow)
        for family in ("flux", "sd3")
        for case in CASES
    ],
)
def test_blocks_that_are_left_out_are_counted_exactly(family: str, case: str) -> None:
    """Against the same network with all its blocks."""
    tuning, options = CASES[case]
    base = toy(num_layers=5, num_single_layers=5) if family == "flux" else sd3()
    what = replace(base, images=2, tuning=tuning, **options)

    def found() -> tuple[PassSizes, object]:
        return pass_sizes(what, backward=tuning is not None), network_sizes(what)

    assert found() == _whole(found)


def _whole(found: Any) -> Any:
    with traced_whole():
        return found()


def test_kinds_of_sd3_blocks() -> None:
    sizes = network_sizes(sd3())
    assert {name: unit.count for name, unit in sizes.units.items()} == {
        "transformer_blocks.0": 2, "transformer_blocks.2": 4, "transformer_blocks.6": 1,
    }  # fmt: skip
    assert sizes.weights == sum(u.count * u.weights for u in sizes.units.values()) + sizes.outer_weights
    assert sizes.buffer_bytes == 4 * 24 * 24 * 32  # its table of positions
    assert sizes.text_tokens == 77 + 8


def test_a_family_from_outside_whose_network_reads_its_mask() -> None:
    """The dummy's conditioning has a mask of a byte a token; its network asks whether all tokens are there."""
    dummy, plain = toy("tests.families.dummy"), toy()
    assert network_sizes(dummy).text_bytes == network_sizes(plain).text_bytes + 8
    assert pass_sizes(dummy, backward=False) == pass_sizes(plain, backward=False)


def test_a_copy_of_a_fake_tensor_keeps_its_mode() -> None:
    with faked():
        table = torch.zeros(4)
        assert copy.deepcopy(table).fake_mode is table.fake_mode is fake_tensors()


def test_a_network_without_named_blocks_is_traced_whole() -> None:
    with patch("chunk_grpo.families.tracing.units.block_names", lambda network: []), traced_whole():
        found, sizes = pass_sizes(toy(), backward=False), network_sizes(toy())
    assert found.units == {} and found.peak == found.outside > 0 and sizes.outer_weights == sizes.weights
    assert found.forward == pass_sizes(toy(), backward=False).forward


def test_values_of_masks_and_lengths() -> None:
    """What follows from integers and booleans has values; floating-point tensors have none."""
    with faked(), Values(fake_tensors()):
        mask = torch.ones(2, 5, dtype=torch.bool)
        mask[1, 3:] = False
        x = torch.zeros(2, 5, 4)
        assert mask.sum(1).tolist() == [5, 3] and int(mask.sum()) == 8
        assert not bool(mask.all()) and x[mask].shape == (8, 4)
        assert x[1, : int(mask[1].sum())].shape == (3, 4)
        assert nn.functional.pad(x[mask], (0, 0, 0, 1)).shape == (9, 4)
        assert mask.nonzero().shape == (8, 2)
        assert mask[1].repeat_interleave(1 + mask[1]).sum() == 6
        with pytest.raises(DataDependentOutputException):
            float(x.sum())


def test_a_copied_network_shares_its_tables():
    """Copying a fake tensor that is no parameter corrupted memory: plans of several families ended in SIGABRT."""

    class Rotating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.tables = nn.Linear(2, 2), [torch.zeros(4)]

    with faked():
        network = Rotating()
        copied, _ = trace._copied(network)
    assert copied.tables is not network.tables
    assert copied.tables[0] is network.tables[0]
    assert copied.linear is not network.linear
    assert copied.linear.weight is network.linear.weight
