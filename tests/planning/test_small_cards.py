"""A quantised base and text encoders are counted, and named where they help; so is recomputing more than is needed."""

from dataclasses import replace
from typing import Any

import pytest

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.families.tracing import PassSizes, pass_sizes, text_bytes
from chunk_grpo.planning.models import read_checkpoint
from infra.plan import only
from tests.families.test_tracing import ALL, UNIT, flux
from tests.planning.planned import ROOT, edited, plan, preset, settings
from tests.planning.test_plan import GIB, LORA, WEIGHTS, levels


def test_a_quantised_base() -> None:
    """Of FLUX.1-dev 11.8 of 11.9 billion weights are in linear layers of blocks: a byte, or half a byte and a scale for
    each 64. A plan that lacks memory names the setting, and it fits with it."""
    night = only(preset("night-24gb-flux"), ["chunk-ws"])
    assert night.model.base_precision == "int8"
    whole = edited(night, model={"base_precision": None})
    texts = levels(plan(whole, 1, gpu="RTX4090"), "cannot")
    assert texts
    assert all("model.base_precision: int8 (up to 11.1 GiB)" in text for text in texts)
    sizes = {
        name: settings(edited(night, model={"base_precision": name})).network.base_bytes / WEIGHTS
        for name in (None, "int8", "float8", "nf4")
    }
    assert sizes == pytest.approx({None: 2, "int8": 1.01, "float8": 1.01, "nf4": 0.53}, abs=0.02)
    assert not any("base_precision" in text for text in levels(plan(night, 1, memory_gb=16), "cannot"))
    bare = plan(edited(night, train={"gradient_checkpointing": False}), 1)
    assert any("base_precision: int8 without train.gradient_checkpointing" in t for t in levels(bare, "costs"))


def test_swapped_blocks() -> None:
    """FLUX.1-dev has 11.837 billion weights in its blocks, 340 million in the largest; half of them leave the GPU for
    the host, but for one block's. A pass copies 11.8 GB at 20 GB/s, twice one with a gradient. The plan names the
    setting where memory lacks, without more recomputation than there is."""
    changes: dict[str, Any] = {"model": {"base_precision": None}, "train": {"compile": False}}
    night = edited(only(preset("night-24gb-flux"), ["chunk-ws"]), **changes)
    half = edited(night, model={"block_swap": 0.5})
    texts = levels(plan(night, 1, gpu="RTX4090"), "cannot")
    assert all("use model.block_swap: 1 (up to 21.4 GiB)" in text for text in texts)
    before, after = plan(night, 1, gpu="RTX4090"), plan(half, 1, gpu="RTX4090")
    assert levels(after, "cannot") == []
    for one, other in zip(before.memory, after.memory, strict=True):
        moved = (one.bytes - other.bytes) / 1e9
        assert moved == pytest.approx({"encode": 0, "loading": 11.84}.get(one.name, 11.84 - 0.68), abs=0.01)
    assert (after.storage.host - before.storage.host) / 1e9 == pytest.approx(11.84, abs=0.01)
    cost, plain = after.iterations[0], before.iterations[0]
    counts = cost.counts
    gradients, heldout = counts.update.passes, cost.heldout * counts.heldout.passes
    without = sum(each.passes for each in (counts.rollout, counts.old_log_probs, counts.ratio, counts.reference))
    assert cost.swapping == pytest.approx((without + heldout + 2 * gradients) * 11.84 / 20, rel=0.001)
    assert cost.seconds.least == plain.seconds.least + cost.swapping
    assert after.total.hours[0] > before.total.hours[0] + cost.swapping * night.train.iterations / 3600
    assert any("block_swap: 0.5 copies 11.0 GiB a pass" in text for text in levels(after, "note"))
    assert not any("recomputes more" in text for text in levels(after, "costs"))
    refused = ("base_precision", "shard_weights")  # beside swapped blocks
    small = levels(plan(half, 1, memory_gb=16), "cannot")
    assert small and not any(name in text for text in small for name in refused)
    assert any("use model.block_swap: 1 (up to 11.0 GiB)" in text for text in small)
    page = (ROOT / "docs" / "one_card.md").read_text(encoding="utf-8")
    for way, found in {
        "`base_precision: int8`": plan(only(preset("night-24gb-flux"), ["chunk-ws"]), 1, gpu="RTX4090"),
        "bfloat16, `block_swap: 0.5`": after,
        "bfloat16, `block_swap: 1`": plan(edited(night, model={"block_swap": 1}), 1, gpu="RTX4090"),
    }.items():
        most = max(phase.bytes for phase in found.memory) / GIB
        assert f"| {way} | {most:.1f} GiB | {found.iterations[0].seconds.least:.0f} s |" in page


@pytest.mark.parametrize(("precision", "size"), [("int8", 8.79), ("float8", 8.79), ("nf4", 5.56)])
def test_quantised_text_encoders(precision: str, size: float) -> None:
    """Qwen2.5-VL has 8.29 billion weights, 1.09 of them in its table of embeddings and its last layer."""
    own = only(preset("qwen-image"), ["chunk-ws"])
    (text,) = (t for t in levels(plan(own, 1, memory_gb=16), "cannot") if t.startswith("encode "))
    assert "use model.text_precision: nf4 (up to 9.9 GiB), model.text_precision: int8 (up to 6.7 GiB)" in text
    found = plan(edited(own, model={"text_precision": precision}), 1, memory_gb=16)
    (phase,) = (each for each in found.memory if each.name == "encode")
    assert phase.parts["text encoders"] / GIB == pytest.approx(size, abs=0.01)
    assert not any(t.startswith("encode ") for t in levels(found, "cannot"))
    assert any(f"text_precision: {precision} converts the weights" in t for t in levels(found, "note"))


def test_the_sizes_of_text_encoders_in_the_documents() -> None:
    page = (ROOT / "docs" / "one_card.md").read_text(encoding="utf-8")
    for family, owner, name in (
        ("flux", "black-forest-labs", "FLUX.1-dev"),
        ("qwen_image", "Qwen", "Qwen-Image"),
        ("flux2", "black-forest-labs", "FLUX.2-dev"),
    ):
        checkpoint = read_checkpoint(family, f"{owner}/{name}")
        ways: tuple[BasePrecision | None, ...] = (None, "int8", "float8", "nf4")
        whole, eight, other, four = (text_bytes(checkpoint, "bfloat16", way) / GIB for way in ways)
        assert f"| {name} | {whole:.1f} | {eight:.1f} | {four:.1f} |" in page
        assert eight == pytest.approx(other, rel=0.001)


def test_recomputing_more_than_the_memory_needs() -> None:
    """The plan names the smallest share of the blocks that fits. Recomputing takes a quarter of an update or so."""
    own = only(preset("sd35-medium"), ["chunk-ws"])  # train.gradient_checkpointing: true
    saved = {}
    for memory, share in ((32, "0.75"), (80, "false")):
        (text,) = (t for t in levels(plan(own, 1, memory_gb=memory), "costs") if "recomputes more" in t)
        assert f"needs; {share} fits too" in text
        saved[share] = int(text.split("takes ")[1].split("%")[0])
    assert 20 < saved["false"] < 33
    assert saved["0.75"] == pytest.approx(saved["false"] / 4, abs=1)


def test_the_base_that_waits_for_its_comparison() -> None:
    """Of all weights, in float32, a part in each process; a reference policy or an adapter takes its place."""
    flux = preset("flux-dev")
    plain = plan(flux, 8).storage.host
    referenced = plan(edited(flux, train={"kl_coef": 0.01}), 8).storage.host
    assert plain - referenced == pytest.approx(47.6e9, rel=0.01)
    assert plan(edited(flux, train={"lora": LORA}), 8).storage.host < 0.6 * referenced


def test_activations_with_checkpointing_of_a_share() -> None:
    """Between those with and without it, and those of the block that is recomputed."""
    stored = PassSizes(3.0, 6.0, 0.0, 80, 100, {"a": 900, "b": 500}, 7)
    recomputed = PassSizes(3.0, 6.0, 3.0, 20, 60, {"a": 100, "b": 100}, 7)
    mixed = stored.mixed(recomputed, 0.25, 5)  # a block stores (900 - 100) / 4
    assert mixed == PassSizes(3.0, 6.0, 0.75, 65, 90, {"a": 700 + 150, "b": 400 + 150}, 7)
    whole = replace(flux(), images=12, tuning=ALL)
    sizes = [
        pass_sizes(replace(whole, tuning=replace(ALL, gradient_checkpointing=way)), backward=True)
        for way in (False, True)
    ]
    half = sizes[0].mixed(sizes[1], 0.5, 57)
    blocks = 0.5 * (19 * 35.05 + 38 * 30.05)
    assert half.peak == pytest.approx((blocks + 0.5 * 57 + 35 + 22.3) * UNIT * 12, rel=0.05)
