"""Time, memory, findings: numbers by hand at FLUX.1-dev's size."""

from dataclasses import replace

import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.planning.cost import Seconds, Traffic, computing_seconds, iteration_cost, sweep_bytes, traffic_of
from chunk_grpo.planning.machines import machine
from chunk_grpo.planning.memory import rollout_bytes, training_phases, update_bytes
from chunk_grpo.planning.scorers import scoring
from chunk_grpo.planning.storage import encoded_for_training
from chunk_grpo.planning.tables import summary
from chunk_grpo.progress import duration
from infra.plan import only
from tests.planning.planned import edited, load_own, plan, preset, settings

GIB = 2**30
WEIGHTS = 11_901_408_320
"""Of FLUX.1-dev's transformer."""
FLUX = edited(preset("flux-dev"), train={"micro_batch_size": 1})
LORA = {"rank": 32, "alpha": 32.0, "targets": ("to_q", "to_k", "to_v", "to_out.0")}


def levels(found: object, level: str) -> list[str]:
    return [finding.text for finding in found.findings if finding.level == level]  # type: ignore[attr-defined]


def test_seconds_range_from_full_overlap_to_no_overlap() -> None:
    """400 TFLOP at 100 TFLOP/s and 300 GB at 100 GB/s."""
    one = machine("H100", 8, stop_seconds=600, tflops=100, gbs=100)
    computing = computing_seconds({"rollout": 100e12, "update, backward": 300e12}, one.rates, compiles=True)
    assert Seconds.of(computing, Traffic(100e9, 200e9, 0).seconds(one)) == Seconds(4, 7)


def test_traffic_of_shards() -> None:
    """Per pass: 23.8 GB gathered, twice in an update's pass, and 47.6 GB of float32 gradients; 7/8 of it received."""
    flux = settings(edited(FLUX, train={"micro_batch_size": 1, "rollout_batch_size": 1}), 8)
    found = traffic_of(flux, flux.counts("dance"), heldout=0)
    assert found.gathered == 7 / 8 * 2 * WEIGHTS * (408 + 96 + 2 * 192)
    assert found.reduced == 7 / 8 * 4 * WEIGHTS * 192
    larger = settings(edited(FLUX, train={"micro_batch_size": 12}), 8)
    assert traffic_of(larger, larger.counts("chunk"), heldout=7 / 150).bytes < 4e12


def test_a_sharded_adapter_is_gathered_in_float32() -> None:
    adapter = settings(edited(FLUX, train={"lora": LORA}), 8)
    assert sweep_bytes(adapter) == 2 * WEIGHTS + 4 * adapter.network.trained_weights


def test_traffic_of_replicas_and_of_one_gpu() -> None:
    """LoRA without shards: each of two updates averages its gradients once, 2 * 3/4 of 4 bytes a weight."""
    lora = settings(edited(preset("flux-dev"), train={"lora": LORA, "shard_weights": False}), 4)
    counts = lora.counts("dance")
    found = traffic_of(lora, counts, heldout=0)
    assert found.bytes == found.averaged == 2 * 2 * 3 / 4 * 4 * lora.network.trained_weights
    assert traffic_of(settings(preset("flux-dev"), 1), counts, heldout=1).bytes == 0


def test_traffic_between_machines() -> None:
    """32 GPUs in 4 machines: hybrid sharding averages an eighth of the gradients, 47.6 GB, once in each of two updates.

    Without it a machine receives 3/4 of what is gathered and reduced from others, and each of its 8 GPUs 1/8 of that.
    """
    hybrid = settings(preset("flux-dev"), 32, 4)
    counts, gradients = hybrid.counts("dance"), 4 * WEIGHTS
    found = traffic_of(hybrid, counts, heldout=0)
    assert found.between == found.averaged == 2 * 3 / 4 * 2 * gradients / 8
    assert found.reduced == 7 / 8 * gradients * counts.update.passes
    spread = settings(edited(preset("flux-dev"), train={"hybrid_sharding": False}), 32, 4)
    whole = traffic_of(spread, counts, heldout=0)
    assert whole.reduced == 31 / 32 * gradients * counts.update.passes
    assert whole.between == pytest.approx(3 / 4 * (whole.gathered + whole.reduced) * 32 / 31 / 8)
    lora = settings(edited(FLUX, train={"lora": LORA, "shard_weights": False}), 32, 4)
    assert traffic_of(lora, lora.counts("dance"), heldout=0).between == 2 * 2 * 3 / 4 * 4 * (
        lora.network.trained_weights / 8
    )


def test_machines() -> None:
    """Hybrid sharding holds as much on a GPU of four machines as on one of eight GPUs; the network counts apart."""
    hybrid, one = settings(preset("flux-dev"), 32, 4), settings(preset("flux-dev"), 8)
    weights = [training_phases(each, "dance")[2].parts["weights"] for each in (hybrid, one)]
    assert weights[0] == weights[1] == 4 * WEIGHTS / 8
    slow = machine("H100", 8, stop_seconds=600, machines=2, gbs=100, network_gbs=10)
    assert Traffic(0, 0, 300e9, 50e9).seconds(slow) == 8
    assert any(
        "hybrid_sharding" in text
        for text in levels(
            plan(edited(preset("flux-dev"), train={"hybrid_sharding": False}), 32, machines=4, network_gbs=1), "costs"
        )
    )
    with pytest.raises(ConfigError, match="--gpus: must be a multiple of --machines, 3, got 8"):
        machine("H100", 8, stop_seconds=600, machines=3)
    with pytest.raises(ConfigError, match=r"--machines: must divide the 96 images of an update .* got 5"):
        settings(preset("flux-dev"), 40, 5)


@pytest.mark.slow  # test_another_family has guidance by hand in the default tier
def test_guidance_evaluates_twice() -> None:
    """Twice the operations; gathers are twice as many with two passes, and images a pass with one."""
    plain = preset("flux-dev")
    one = edited(plain, sampling={"cfg_scale": 2.0}, generate={"cfg_scale": 2.0})
    two = edited(one, model={"cfg_passes": 2})
    found = {name: plan(params, 8) for name, params in (("plain", plain), ("one", one), ("two", two))}
    costs = {name: each.iterations[0] for name, each in found.items()}
    for name in ("rollout", "update, backward", "held-out"):
        assert costs["one"].flop[name] == costs["two"].flop[name] == 2 * costs["plain"].flop[name]
    assert costs["one"].traffic == costs["plain"].traffic
    assert costs["two"].traffic.bytes == pytest.approx(2 * costs["plain"].traffic.bytes)
    rollout = {name: each.memory[1].parts["activations"] for name, each in found.items()}
    update = {name: each.memory[2].parts["activations"] for name, each in found.items()}
    assert rollout["two"] == pytest.approx(rollout["plain"], rel=0.01)
    assert 1.9 * rollout["plain"] < rollout["one"]
    # The second pass goes backward first, and its gradients of all weights, bfloat16, wait for those of the first.
    assert update["two"] - update["plain"] == pytest.approx(2 * WEIGHTS, rel=0.1)
    assert any("22.2 GiB, wait" in text for text in levels(found["two"], "costs"))
    assert not any("wait for" in text for text in levels(found["one"], "costs"))
    assert update["one"] == pytest.approx(2 * update["plain"], rel=0.02)
    # With a constant for the negative prompt, one pass goes backward, and nothing waits.
    constant = plan(edited(two, train={"guidance_gradient": "conditional"}), 8)
    cost = constant.iterations[0]
    assert cost.flop["rollout"] == 2 * costs["plain"].flop["rollout"]
    assert cost.flop["update, backward"] == costs["plain"].flop["update, backward"]
    assert costs["plain"].traffic.bytes < cost.traffic.bytes < costs["two"].traffic.bytes
    assert constant.memory[2].parts["activations"] == pytest.approx(update["plain"], rel=0.02)
    assert not any("wait for" in text for text in levels(constant, "costs"))
    generate = {name: next(s.flop for s in each.stages if s.name == "generate") for name, each in found.items()}
    assert generate["one"] > 1.9 * generate["plain"]


def test_memory_of_shards() -> None:
    """16 bytes a weight over 8 GPUs: 5.54 GiB of weights and of gradients, 11.08 of AdamW's state."""
    update = training_phases(settings(FLUX, 8), "dance")[2].parts
    shard = 4 * WEIGHTS / 8
    assert (update["weights"], update["gradients"], update["AdamW"]) == (shard, shard, 2 * shard)
    assert update["scorers"] / GIB == pytest.approx(14.4 + 1.7, abs=0.1)  # HPSv3 in bfloat16, ImageReward in float32


@pytest.mark.parametrize(("images", "rollout", "update"), [(1, 2.04, 4.18), (12, 3.66, 18.15)])
def test_memory_of_a_sharded_pass(images: int, rollout: float, update: float) -> None:
    """FSDPMemTracker on the real configuration, 8 fake ranks, bfloat16 gathers: GiB beyond shards and their gradients.

    The tracker ran without autocast. Within 5 % of all that is on the card then: 5.54 GiB of shards, and in the update
    5.54 of gradients.
    """
    flux = settings(edited(FLUX, train={"micro_batch_size": images, "rollout_batch_size": images}), 8)
    flux = replace(flux, traced=replace(flux.traced, wide_norms=False))
    shard = 4 * WEIGHTS / 8 / GIB
    assert shard + sum(rollout_bytes(flux)) / GIB == pytest.approx(shard + rollout, rel=0.05)
    assert 2 * shard + sum(update_bytes(flux)) / GIB == pytest.approx(2 * shard + update, rel=0.05)


def test_a_rollout_of_few_images_is_one_small_pass() -> None:
    """One GPU, two prompts with four images each, LoRA: an H200 had a peak of 28.1 GiB, beside CUDA's context."""
    few = {"prompts_per_iteration": 2, "group_size": 4, "updates_per_iteration": 2, "micro_batch_size": 4}
    few |= {"lora": LORA | {"rank": 32}, "gradient_checkpointing": True, "shard_weights": False}
    few |= {"heldout": FLUX.train.heldout.model_dump() | {"num_prompts": 2, "images_per_prompt": 1}}
    changed = edited(FLUX, train={**few, "rollout_batch_size": 64})
    whole = settings(changed, 1)
    assert whole.rollout_batch == 8
    phases = training_phases(whole, next(iter(changed.variants)))
    elsewhere = ("context", "scorers")
    tensors = [sum(size for name, size in phase.parts.items() if name not in elsewhere) for phase in phases]
    assert max(tensors) / GIB == pytest.approx(28.1, rel=0.01)


@pytest.mark.slow
def test_flux_fits_on_listed_gpus() -> None:
    """Full tuning on 8 GPUs with HPSv3; LoRA on one 80 GB card with HPSv3, on 48 GB without.

    Of full tuning the update takes most; in the rollout 4 images are decoded beside the next pass.
    """
    full = plan(preset("flux-dev"), 8)
    rollout, update = (full.memory[place].bytes / GIB for place in (1, 2))
    assert (rollout, update) == (pytest.approx(44.2, abs=0.05), pytest.approx(49.0, abs=0.05)) and full.fits
    lora = edited(FLUX, train={"lora": LORA, "shard_weights": False})
    assert plan(lora, 1).fits
    elsewhere = edited(
        lora,
        executors={
            name: {"kind": "http", "url": "http://server:1", "token_variable": None, "timeout_seconds": 60.0}
            for name in ("hpsv3", "imagereward")
        },
    )
    assert max(phase.bytes for phase in plan(elsewhere, 1, gpu="L40S").memory[:4]) < 47 * GIB
    assert not plan(preset("flux-dev"), 1).fits


def test_memory_error_names_largest_part() -> None:
    """The optimiser's step: 44.34 GiB of weights and as many of gradients, and 88.67 GiB of AdamW, are 177.35 GiB.

    An adapter leaves 22.17 GiB of them; two cards leave each one half.
    """
    found = plan(edited(preset("flux-dev"), train={"prompts_per_iteration": 2}), 1)
    (first, *_) = levels(found, "cannot")
    assert first.startswith("optimiser's step does not fit 80 GB: 161.9 GiB too much, most of it AdamW (88.7 GiB)")
    assert "; use train.lora (up to 155.2 GiB), more GPUs with train.shard_weights (up to 88.7 GiB), " in first
    assert "train.prompts_per_iteration" not in first  # 0.1 GiB
    assert summary(found).startswith(f"1 x H100 of 80 GB: no, {first}. If it did: ")


def test_the_first_sentence_and_the_cards() -> None:
    """FLUX.1-dev in bfloat16: 23.80 GB of transformer, 9.52 and 0.25 of text encoders, 0.17 of VAE, and scorers."""
    found = plan(FLUX, 8, price=2.5)
    assert found.total.money == pytest.approx(tuple(8 * 2.5 * hours for hours in found.total.hours))
    hours = " to ".join(duration(3600 * each) for each in found.total.hours)
    said = summary(found)
    assert said.startswith(f"8 x H100 of 80 GB: yes, {hours} (training: ")
    assert said.endswith(" at 2.5 a GPU and hour.") and " GB of weights to download, " in said
    scorers = scoring(FLUX, tuple(FLUX.scorers)).bytes
    assert found.downloads - scorers == pytest.approx(33.74e9, rel=1e-3)
    toy = plan(load_own(), 1)
    assert toy.downloads == 0
    assert not [finding for finding in toy.findings if "a checkpoint takes" in finding.text]
    assert " s (training: dance " in summary(toy)
    cards = {card.gpu: card for card in found.cards}
    assert next(iter(cards)) == "RTX4090" and cards["RTX4090"].left < 0 < cards["H100"].left
    assert cards["H100"].hours == pytest.approx(found.total.hours)
    fullest = max(found.memory, key=lambda phase: phase.bytes)
    assert (cards["A100"].fullest, cards["A100"].left) == (fullest.name, found.machine.memory_bytes - fullest.bytes)


def test_some_variants() -> None:
    assert list(only(preset("flux-dev"), ["chunk"]).variants) == ["chunk"]
    with pytest.raises(ConfigError, match=r"--variant: must be one of .*, got nothing"):
        only(preset("flux-dev"), ["nothing"])


@pytest.mark.slow
def test_the_remedies_are_not_in_use_already() -> None:
    own = preset("sd35-medium")  # LoRA, checkpointing, one GPU
    assert levels(plan(own, 1, gpu="RTX4090"), "cannot") == []
    (first, *more) = levels(plan(own, 1, memory_gb=20), "cannot")
    assert "rollout does not fit 20 GB" in first and "a smaller train.rollout_batch_size" in first
    assert not any("train.lora" in text or "train.gradient_checkpointing" in text for text in (first, *more))
    bare = edited(FLUX, train={"gradient_checkpointing": False, "offload": ["vae", "scorers"]})
    update = next(text for text in levels(plan(bare, 1), "cannot") if "update" in text)
    assert "train.lora (up to" in update and "train.gradient_checkpointing: true (up to" in update
    assert "train.offload" not in update


def test_a_stop_that_is_too_short() -> None:
    """143 GB written and read at 1 GB/s take 286 s."""
    assert plan(FLUX, 8).stop_seconds == pytest.approx(290, rel=0.02)
    assert not levels(plan(FLUX, 8), "cannot")
    (text,) = levels(plan(FLUX, 8, stop_seconds=60), "cannot")
    assert "killed after 60 s" in text and "CHUNK_GRPO_STOP_SECONDS" in text


def test_checkpoints_that_take_long() -> None:
    """1428 s of writing beside nine iterations of 136 s, uncompiled."""
    changes = {"checkpoint_every": 9, "checkpoint_minutes": None, "compile": False}
    flux = edited(preset("flux-dev"), train=changes)
    (text,) = (text for text in levels(plan(flux, 8, disk_gbs=0.1), "costs") if "written" in text)
    assert text.startswith("a checkpoint is written for 1428 s, 9 iterations take 1220 s: training waits")
    assert not any("written" in text for text in levels(plan(flux, 8), "costs"))


def test_checkpoints_by_minutes() -> None:
    """150 iterations of 103 s on 8 GPUs: 12 checkpoints of 143 s, of which 4.5 s for a copy of 17.9 GB a GPU, and 1 s.

    Of 26 s on 32: three, and one at the end, which training waits for: 47.6 GB, without moments. A machine is lost in
    the iteration that a write ends in: with 1200 s, the iteration that they end in, and 143 s.
    """
    eight, many = plan(preset("flux-dev"), 8), plan(preset("flux-dev"), 32, machines=4)
    number = next(n for n, cost in enumerate(eight.iterations) if cost.variant == "chunk")
    saving, cost = eight.savings[number], eight.iterations[number]
    assert (saving.every, many.savings[number].every) == (12, 47)
    assert saving.seconds == pytest.approx(142.8, abs=0.1)
    assert saving.waited == pytest.approx(142.8 / 8 / 4 + 1, abs=0.01)
    at_end = 47.6 / 8 / 4 + 47.6
    assert saving.total == pytest.approx(12 * saving.waited + at_end, abs=0.1)
    assert many.savings[number].total == pytest.approx(3 * saving.waited + at_end, abs=0.1)
    assert saving.share == pytest.approx(114.65 / (114.65 + 150 * 103.47), abs=1e-4)
    assert saving.share < 0.02 and many.savings[number].share < 0.02
    kept = plan(edited(preset("flux-dev"), train={"keep_state": True}), 8).savings[number]
    assert kept.total == pytest.approx(13 * saving.waited + saving.seconds - 1)
    assert saving.lost == pytest.approx(1200 + 2 * cost.seconds.most + saving.seconds)
    either = edited(preset("flux-dev"), train={"checkpoint_every": 7})
    assert plan(either, 8).savings[number].every == 7


def test_what_costs_is_named_and_else_not() -> None:
    """96 images an update: 7 GPUs train with 6. Scores: 12 images * 24 heads * 2537^2 pairs * 2 bytes."""
    plain = levels(plan(FLUX, 8), "costs")
    assert any(text.startswith("2400 of 50000 training prompts") for text in plain)
    for costly, words in (
        (plan(FLUX, 7), ("training uses 6 of 7 GPUs",)),
        (plan(FLUX, 8, gbs=20), ("collectives take",)),
        (plan(edited(FLUX, model={"attention_backend": "_native_math"}), 8), ("_native_math", "3.5 GiB")),
    ):
        assert any(all(word in text for word in words) for text in levels(costly, "costs"))
        assert not any(words[0] in text for text in plain)


def test_a_second_copy_for_the_kl_divergence() -> None:
    whole = plan(edited(preset("flux-dev"), train={"kl_coef": 0.04}), 8)
    assert any("second copy" in text for text in levels(whole, "costs"))
    assert whole.memory[2].parts["KL reference"] == 4 * WEIGHTS / 8
    adapter = plan(edited(preset("flux-dev"), train={"kl_coef": 0.04, "lora": LORA}), 8)
    assert not any("second copy" in text for text in levels(adapter, "costs"))


def test_targets_that_name_no_layer() -> None:
    nothing = edited(FLUX, train={"lora": {**LORA, "targets": ("nowhere",)}})
    with pytest.raises(ConfigError, match=r"train\.lora\.targets: must name linear layers .* Available:"):
        plan(nothing, 1)


def test_shares_of_an_iteration() -> None:
    """About 51 PFLOP a GPU and iteration (review), without scoring and decoding."""
    cost = iteration_cost(settings(FLUX, 8), "chunk", machine("H100", 8, stop_seconds=600))
    network = cost.total_flop - cost.flop["scoring"] - cost.flop["decoding"] - cost.flop["held-out"]
    assert network == pytest.approx(51.0e15, rel=0.01)


def test_another_family() -> None:
    """SD3.5-medium with Flow-GRPO's guidance: each GPU holds its table of positions, 384^2 x 1536, and an eighth else.

    Conditioning is 77 tokens of CLIP and 256 of T5, 4096 wide, and 2048 pooled values.
    """
    model = {"family": "sd3", "checkpoint": "stabilityai/stable-diffusion-3.5-medium", "revision": None}
    params = only(preset("flux-dev"), ["chunk"])
    params = edited(params, model={**model, "max_sequence_length": 256}, sampling={"cfg_scale": 4.5})
    found = plan(params, 8)
    assert found.weights == 2_243_171_520 and found.fits
    assert found.memory[2].parts["weights"] == 4 * (found.weights / 8 + 384**2 * 1536)
    prompts = sum(encoded_for_training(params)) * 2 * (333 * 4096 + 2048)
    assert found.storage.training_embeddings == prompts
    # Two evaluations. Image tokens: 16 products of D x D in 13 blocks with dual attention, 12 in 11; text: 12 in 23.
    D, L, T = 1536, 2025, 333
    linear = 2 * D * D * ((16 * 13 + 12 * 11) * L + 12 * 23 * T)
    attention = 4 * D * (24 * (L + T) ** 2 + 13 * L**2)
    assert found.passes.train_flop == pytest.approx(2 * (linear + attention), rel=0.01)


def test_optimizers() -> None:
    """adamw-fused makes no copy of the shards; 8-bit moments take 2 * (1 + 4 / 256) bytes in place of 8.

    Rows of all matrices of FLUX.1-dev are whole blocks but those of x_embedder, 64 long; biases and norms keep float32.
    """
    shard = WEIGHTS / 8
    steps = {
        name: training_phases(settings(edited(FLUX, train={"optimizer": name}), 8), "dance")[3].parts
        for name in ("adamw", "adamw-fused", "adamw-8bit")
    }
    assert [parts.get("optimiser's step", 0) for parts in steps.values()] == [4 * shard, 0, 0]
    assert steps["adamw-fused"]["AdamW"] == 8 * shard
    assert steps["adamw-8bit"]["AdamW"] == pytest.approx(2 * (1 + 4 / 256) * shard, rel=2e-3)
    lora = settings(edited(FLUX, train={"lora": LORA, "optimizer": "adamw-8bit"}), 1)
    assert lora.optimizer_bytes == pytest.approx((2 * (1 + 4 / 256) + 8) / 2, rel=1e-9)  # half its rows are 32 long


def test_offloaded_parts() -> None:
    """They leave the updates, of which HPSv3 in this process is most, and take memory of the machine instead.

    A scorer in a process of its own stays. Without HPSv3 on the card, full tuning on 8 GPUs takes below 34 GiB.
    """
    flux = preset("flux-dev")
    plain, away = plan(flux, 8), plan(edited(flux, train={"offload": ("vae", "scorers")}), 8)
    saved = plain.memory[2].bytes - away.memory[2].bytes
    assert saved / GIB == pytest.approx(14.4 + 1.7 + 0.2, abs=0.1)
    assert saved == plain.memory[3].bytes - away.memory[3].bytes
    assert plain.memory[1] == away.memory[1]
    assert away.storage.host - plain.storage.host == pytest.approx(8 * saved)
    elsewhere = {"hpsv3": {"kind": "http", "url": "http://server:1", "token_variable": None, "timeout_seconds": 60.0}}
    served = plan(edited(flux, train={"offload": ("scorers",)}, executors=elsewhere), 8)
    assert max(phase.bytes for phase in served.memory[:4]) < 34 * GIB
