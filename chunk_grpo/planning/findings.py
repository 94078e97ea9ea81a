"""What is off with a configuration on a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from chunk_grpo import environment
from chunk_grpo.config import AdaptivePlan, GuidedPlan
from chunk_grpo.planning.cost import SWAPPED_GBS, IterationCost, Saving, computing_seconds
from chunk_grpo.planning.machines import Machine
from chunk_grpo.planning.memory import Phase, training_phases
from chunk_grpo.planning.scorers import scoring
from chunk_grpo.planning.settings import Settings, shared_starts
from chunk_grpo.planning.storage import Prompts, counts_all

GIB = 2**30

LEAST = 0.05
"""Share of the missing bytes that a setting must save to be named."""

SHARES = (0.25, 0.5, 0.75)
"""Shares of recomputed blocks that are tried."""

NOTICEABLE = 0.1
"""Share of the time that checkpoints may take without a finding."""


@dataclass(frozen=True)
class Finding:
    """One thing that is off."""

    level: Literal["cannot", "costs", "note"]
    """`cannot`: the run fails; `costs`: it wastes time, memory or money; `note`: a limit of the plan."""
    text: str
    """What, by which number, and what to do."""


def findings_of(
    settings: Settings,
    machine: Machine,
    phases: Sequence[Phase],
    costs: Sequence[IterationCost],
    savings: Sequence[Saving],
    prompts: Prompts,
    stop: float,
) -> list[Finding]:
    """All findings, the worst first; `stop` is the seconds in which a training stops."""
    found = [
        *_memory(settings, machine, phases),
        *_recomputing(settings, machine),
        *_stop(machine, stop),
        *_checkpoints(savings, costs),
        *_attention(settings),
        *_waiting(settings),
        *_gpus(settings),
        *_reference(settings),
        *_quantised(settings),
        *_swapping(settings, costs),
        *_traffic(settings, machine, costs),
        *_ratios(settings, costs),
        *_prompts(prompts),
        *_unknown(settings, costs),
    ]
    order = ("cannot", "costs", "note")
    return sorted(found, key=lambda each: order.index(each.level))


def _memory(settings: Settings, machine: Machine, phases: Sequence[Phase]) -> Iterator[Finding]:
    for phase in sorted(phases, key=lambda phase: -phase.bytes):
        missing = phase.bytes - machine.memory_bytes
        if missing > 0:
            largest = max(phase.parts, key=lambda name: phase.parts[name])
            yield Finding(
                "cannot",
                f"{phase.name} does not fit {machine.memory_gb:g} GB: {missing / GIB:.1f} GiB too much, most of it "
                f"{largest} ({phase.parts[largest] / GIB:.1f} GiB); {_remedy(settings, phase, missing)}",
            )


def _remedy(settings: Settings, phase: Phase, missing: float) -> str:
    """What makes a phase smaller, without what is in use already; what saves most is first."""
    ways = {name: size for name, size in _savings(settings, phase) if size > LEAST * missing}
    named = (f"{way} (up to {ways[way] / GIB:.1f} GiB)" for way in sorted(ways, key=lambda way: -ways[way]))
    return f"use {', '.join(named) or 'a GPU with more memory'}"


def _savings(settings: Settings, phase: Phase) -> Iterator[tuple[str, float]]:
    """Settings and the bytes that each can save by itself, at most."""
    params, train = settings.params, settings.params.train
    parts = {"VAE": 0.0, "scorers": 0.0, "trajectories": 0.0} | phase.parts
    passes = parts.get("activations", 0.0) + parts.get("embeddings of a pass", 0.0)
    held = sum(parts.get(name, 0.0) for name in ("weights", "AdamW", "gradients", "weight averages"))
    yield "a scorer at a server", parts["scorers"]
    if phase.name == "generate":
        yield "a smaller generate.batch_size", passes * (1 - 1 / params.generate.batch_size)
    if phase.name == "rollout":
        yield "a smaller train.rollout_batch_size", passes * (1 - 1 / settings.rollout_batch)
    if phase.name == "update":
        yield "a smaller train.micro_batch_size", passes * (1 - 1 / settings.micro_batch)
        yield "train.gradient_checkpointing: true", passes * (1 - float(train.gradient_checkpointing))
    if phase.name not in ("encode", "generate") and not settings.adapts:
        yield "train.lora", held - settings.element * settings.network.weights / settings.spread
    is_plain = settings.adapts and not (params.model.base_precision or settings.shards or train.compile is True)
    if phase.name != "encode" and is_plain and not params.model.block_swap:
        base = settings.network.base_bytes
        yield "model.base_precision: nf4", base - settings.network.weights / 2
        if phase.name != "update" or train.gradient_checkpointing:
            yield "model.base_precision: int8", base - settings.network.weights
    if phase.name != "encode" and is_plain and train.gradient_checkpointing == 1:
        yield "model.block_swap: 1", settings.swapping(1.0).spared_bytes - settings.spared_bytes
    if phase.name == "encode" and not params.model.text_precision:
        whole = settings.text_bytes(None)
        yield "model.text_precision: nf4", float(whole - settings.text_bytes("nf4"))
        yield "model.text_precision: int8", float(whole - settings.text_bytes("int8"))
    if "gradients" in parts:
        left = sorted({"scorers", "vae"} - {*train.offload})
        saved = sum(parts["VAE" if name == "vae" else name] for name in left)
        yield f"train.offload: [{', '.join(left)}]", saved
    if "trajectories" in phase.parts:
        if not (params.model.base_precision or params.model.block_swap):
            yield "more GPUs" if settings.shards else "more GPUs with train.shard_weights", held / 2
        fewer = parts["trajectories"] * (1 - 1 / train.prompts_per_iteration)
        yield "fewer images an iteration (train.prompts_per_iteration)", fewer


def _recomputing(settings: Settings, machine: Machine) -> Iterator[Finding]:
    """A smaller share of recomputed blocks that fits too, with a GiB to spare."""
    used = settings.params.train.gradient_checkpointing
    if settings.swapped_bytes:  # their blocks are all recomputed
        return
    total = settings.update_flop
    for share in (False, *SHARES):
        if share >= used:
            return
        fewer = settings.recomputing(share)
        if _largest_update(fewer) <= machine.memory_bytes - GIB:
            saved = 1 - fewer.update_flop / total
            yield Finding(
                "costs",
                f"train.gradient_checkpointing: {str(used).lower()} recomputes more than the memory needs; "
                f"{str(share).lower()} fits too, and takes {saved:.0%} off an update's operations",
            )
            return


def _largest_update(settings: Settings) -> float:
    phases = [phase for name in settings.params.variants for phase in training_phases(settings, name)]
    return max(phase.bytes for phase in phases if phase.name == "update")


def _stop(machine: Machine, stop: float) -> Iterator[Finding]:
    if stop > machine.stop_seconds:
        yield Finding(
            "cannot",
            f"a stopped training needs about {stop:.0f} s for its pass and checkpoint, and is killed after "
            f"{machine.stop_seconds:.0f} s: set {environment.STOP_SECONDS} and the platform's grace period to more, "
            "or use a faster disk (--disk-gbs); otherwise a stop loses what came after the last checkpoint",
        )


def _checkpoints(savings: Sequence[Saving], costs: Sequence[IterationCost]) -> Iterator[Finding]:
    one, cost = max(zip(savings, costs, strict=True), key=lambda pair: pair[0].share)
    if one.share > NOTICEABLE and one.seconds >= 1:  # a toy's takes milliseconds
        iterating = one.every * cost.seconds.least
        yield Finding(
            "costs",
            f"a checkpoint is written for {one.seconds:.0f} s, {one.every} iterations take {iterating:.0f} s: training "
            f"waits for {one.share:.0%} of its time; use a faster disk (--disk-gbs) or save less often "
            "(train.checkpoint_every, train.checkpoint_minutes)",
        )


def _attention(settings: Settings) -> Iterator[Finding]:
    if settings.params.model.attention_backend == "_native_math":
        scores = settings.rollout.scores * settings.element
        yield Finding(
            "costs",
            f"model.attention_backend: _native_math keeps the scores of all token pairs, {scores / GIB:.1f} GiB a "
            "tensor of them in a pass of the rollout, not counted here; null lets torch take a kernel that keeps "
            "none",
        )


def _waiting(settings: Settings) -> Iterator[Finding]:
    if settings.backward_passes > 1 and not settings.adapts:
        gradients = settings.network.weights * (settings.element if settings.shards else 4)
        yield Finding(
            "costs",
            f"model.cfg_passes: with 2, the gradients of all weights from one pass of an update, {gradients / GIB:.1f} "
            "GiB, wait for those of the other; 1 is a pass of twice as many images",
        )


def _gpus(settings: Settings) -> Iterator[Finding]:
    if settings.processes < settings.gpus:
        share = shared_starts(settings.params)
        yield Finding(
            "costs",
            f"training uses {settings.processes} of {settings.gpus} GPUs: their number must divide the {share} "
            "images of an update (train.prompts_per_iteration / train.updates_per_iteration * train.group_size; "
            "with branches, divided by their children)",
        )


def _reference(settings: Settings) -> Iterator[Finding]:
    names = [name for name in settings.params.variants if settings.variant(name).has_reference]
    if names and not settings.adapts:
        yield Finding(
            "costs",
            f"kl_coef above 0 ({', '.join(names)}) keeps a second copy of all weights; with train.lora it needs none",
        )


def _quantised(settings: Settings) -> Iterator[Finding]:
    model = settings.params.model
    for key, used in (("base_precision", model.base_precision), ("text_precision", model.text_precision)):
        if used is not None:
            text = f"model.{key}: {used} converts the weights in each pass; this time is not counted"
            yield Finding("note", text)
    precision = model.base_precision
    if precision is not None and precision != "nf4" and not settings.params.train.gradient_checkpointing:
        yield Finding(
            "costs",
            f"model.base_precision: {precision} without train.gradient_checkpointing keeps a copy of the layers in "
            f"{settings.params.model.dtype} for the backward pass; set train.gradient_checkpointing: true, or nf4",
        )


def _swapping(settings: Settings, costs: Sequence[IterationCost]) -> Iterator[Finding]:
    for cost in costs if settings.swapped_bytes else ():
        yield Finding(
            "note",
            f"{cost.variant}: model.block_swap: {settings.params.model.block_swap:g} copies "
            f"{settings.swapped_bytes / GIB:.1f} GiB a pass, {cost.swapping:.0f} s of an iteration's "
            f"{cost.seconds.least:.0f} s at an assumed {SWAPPED_GBS:g} GB/s; larger batches have fewer passes",
        )


def _traffic(settings: Settings, machine: Machine, costs: Sequence[IterationCost]) -> Iterator[Finding]:
    is_spread = settings.machines > 1 and settings.shards and not settings.is_hybrid
    remedy = "larger batches (train.micro_batch_size) gather the weights less often"
    if is_spread:
        remedy = "train.hybrid_sharding gathers the weights inside each machine"
    for cost in costs:
        receiving = cost.traffic.seconds(machine)
        computing = computing_seconds(cost.flop, machine.rates, compiles=settings.params.compiles)
        if receiving > computing:
            yield Finding(
                "costs",
                f"{cost.variant}: collectives take {receiving:.0f} s an iteration and computing {computing:.0f} s; "
                f"{remedy}",
            )


def _ratios(settings: Settings, costs: Sequence[IterationCost]) -> Iterator[Finding]:
    for cost in costs:
        if cost.counts.ratio.states:
            largest = max(cost.counts.chunk_sizes)
            yield Finding(
                "costs",
                f"{cost.variant}: chunks of up to {largest} steps do not fit train.micro_batch_size "
                f"{settings.micro_batch}, so their ratios take {cost.counts.ratio.states:.0f} more states an iteration",
            )


def _prompts(prompts: Prompts) -> Iterator[Finding]:
    if prompts.used < prompts.listed:
        yield Finding(
            "costs",
            f"{prompts.used} of {prompts.listed} training prompts (prompts.train_count) are ever drawn: "
            "iterations * prompts_per_iteration, for each seed",
        )


def _unknown(settings: Settings, costs: Sequence[IterationCost]) -> Iterator[Finding]:
    params = settings.params
    for cost in costs:
        own = settings.variant(cost.variant)
        if own.branching is not None or own.window is not None:
            continue
        sizes = sorted(cost.counts.chunk_sizes)
        drawn = max(1, int(len(sizes) * own.fraction))
        plan = params.chunks.plans[own.plan]
        if isinstance(plan, (GuidedPlan, AdaptivePlan)):
            alike = "equal ones" if isinstance(plan, GuidedPlan) else "chunks of a network of one weight"
            yield Finding("note", f"{cost.variant}: its chunks follow from a profile and count as {alike} here")
        elif own.selection != "uniform" and sizes[0] < sizes[-1]:
            items = cost.counts.update.states / (cost.counts.rollout.images - cost.counts.predicted)
            yield Finding(
                "note",
                f"{cost.variant}: chunks are drawn by weight; {items:g} items an image are the mean of equal weights, "
                f"{sum(sizes[:drawn])} to {sum(sizes[-drawn:])} are possible",
            )
    unknown = scoring(params, tuple(params.scorers)).not_counted
    if unknown:
        yield Finding("note", f"memory and operations of these scorers are not counted: {', '.join(unknown)}")
    if not counts_all(params):
        yield Finding("note", "prompts of benchmark files without a count are not counted")
