"""Operations, traffic and seconds of an iteration, and of a run stage by stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chunk_grpo.planning.dry_run import IterationCounts
from chunk_grpo.planning.images import heldout_evaluations, saved_policies
from chunk_grpo.planning.machines import Machine, Rates
from chunk_grpo.planning.scorers import scoring
from chunk_grpo.planning.settings import Settings
from chunk_grpo.planning.storage import checkpoint_bytes, encoded_for_training, images_of, policy_bytes, prompts_of

TERA, GIGA = 1e12, 1e9
FLOAT32 = 4

STAGED_GBS = 4.0
"""GB/s at which a GPU's state is copied to host memory, assumed."""

SWAPPED_GBS = 20.0
"""GB/s at which swapped weights come from host memory, assumed: five eighths of PCIe 4.0 with 16 lanes."""

PROMPT_SECONDS = 1.0
"""Most seconds that training waits for the files of a checkpoint; a test compares it with the training's own."""


UPDATES = ("update, forward", "update, backward", "update, recomputed")
"""Purposes of an iteration's operations that belong to passes with gradients."""

NEVER_COMPILED = ("decoding", "scoring")
"""Purposes that are no passes of the trained network."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that one GPU receives in an iteration of training."""

    gathered: float
    """All-gathers of sharded weights."""
    reduced: float
    """Reduce-scatters of gradients, float32."""
    averaged: float
    """All-reduces of gradients, float32: of replicas, or of the shards of machines."""
    between: float = 0.0
    """Part of the sum that comes from other machines, each byte once a machine, divided by its GPUs."""

    @property
    def bytes(self) -> float:
        """Sum."""
        return self.gathered + self.reduced + self.averaged

    def seconds(self, machine: Machine) -> float:
        """Seconds inside a machine and between machines, one after the other."""
        return self.bytes / (machine.gbs * GIGA) + self.between / (machine.network_gbs * GIGA)


def sweeps_of(settings: Settings, counts: IterationCounts, heldout: float) -> float:
    """How often an iteration needs all weights that are not kept: once a pass without gradients, twice one with."""
    evaluated = (counts.rollout, counts.old_log_probs, counts.ratio, counts.reference)
    without = sum(count.passes for count in evaluated) + heldout * counts.heldout.passes
    return settings.passes * (without + counts.update.passes) + settings.backward_passes * counts.update.passes


def swapping_seconds(settings: Settings, sweeps: float) -> float:
    """Seconds in which swapped weights are copied; a layer waits for its own, and the copy for the layer before."""
    return sweeps * settings.swapped_bytes / (SWAPPED_GBS * GIGA)


def sweep_bytes(settings: Settings) -> float:
    """Weights that a pass of the network gathers: the network in the checkpoint's type, an adapter in float32."""
    extra = FLOAT32 * settings.network.trained_weights if settings.adapts else 0
    return float(settings.network.weights * settings.element + extra)


def traffic_of(settings: Settings, counts: IterationCounts, heldout: float) -> Traffic:
    """Traffic of an iteration, with `heldout` held-out evaluations on average.

    n processes on m machines; W bytes of the network's weights, spread over s processes; G bytes of float32 gradients.

    | collective | bytes that a GPU receives | share from other machines |
    |---|---|---|
    | gathers of shards: 1 a pass without gradients, 2 with | W (s - 1) / s | (m - 1) / m of W, unless hybrid |
    | reduced gradients of shards: 1 a pass with gradients | G (s - 1) / s | (m - 1) / m of G, unless hybrid |
    | hybrid sharding: averages of an update | 2 G / s (m - 1) / m | all |
    | replicas: averages of an update, by a ring | 2 G (n - 1) / n | 2 G (m - 1) / m |

    What a machine receives from others is divided by its GPUs, but for hybrid sharding's averages.
    """
    n, m, s = settings.processes, settings.machines, settings.spread
    gradients = float(FLOAT32 * settings.network.trained_weights)
    updates, abroad = settings.params.train.updates_per_iteration, (m - 1) / m
    if not settings.shards:
        averaged = 2 * updates * gradients
        return Traffic(0.0, 0.0, (n - 1) / n * averaged, abroad * averaged / settings.processes_each)
    backward = settings.backward_passes * counts.update.passes
    gathered, reduced = sweeps_of(settings, counts, heldout) * sweep_bytes(settings), backward * gradients
    inside = (s - 1) / s
    if settings.is_hybrid:
        averaged = 2 * abroad * updates * gradients / s
        return Traffic(inside * gathered, inside * reduced, averaged, averaged)
    between = abroad * (gathered + reduced) / settings.processes_each
    return Traffic(inside * gathered, inside * reduced, 0.0, between)


@dataclass(frozen=True)
class Seconds:
    """A range of seconds."""

    least: float
    """Collectives run entirely beside the computation."""
    most: float
    """They run entirely before or after it."""

    @classmethod
    def of(cls, computing: float, receiving: float, fixed: float = 0.0) -> Seconds:
        """Max and sum of the seconds of operations and of collectives, and seconds that overlap with nothing."""
        return cls(max(computing, receiving) + fixed, computing + receiving + fixed)


def computing_seconds(flop: Mapping[str, float], rates: Rates, *, compiles: bool) -> float:
    """Seconds of an iteration's operations by purpose, each at the rate of its kind; `compiles`: `train.compile`."""
    forward = rates.compiled_forward if compiles else rates.forward
    update = rates.compiled_update if compiles else rates.update
    own = dict.fromkeys(UPDATES, update) | dict.fromkeys(NEVER_COMPILED, rates.forward)
    return sum(value / own.get(name, forward) for name, value in flop.items()) / TERA


@dataclass(frozen=True)
class IterationCost:
    """An iteration of training of one variant, for one GPU; held-out evaluations are spread over all iterations."""

    variant: str
    counts: IterationCounts
    """States and passes."""
    heldout: float
    """Held-out evaluations an iteration."""
    flop: dict[str, float]
    """Operations by purpose."""
    traffic: Traffic
    """Bytes received."""
    swapping: float
    """Seconds in which swapped weights are copied, beside no computation."""
    seconds: Seconds

    @property
    def total_flop(self) -> float:
        """Sum of all purposes."""
        return sum(self.flop.values())


def iteration_cost(settings: Settings, variant: str, machine: Machine) -> IterationCost:
    """Cost of an iteration: states of each purpose times the operations of a state."""
    params, update = settings.params, settings.update
    counts = settings.counts(variant)
    heldout = heldout_evaluations(params.train) / params.train.iterations
    forward, items = settings.forward_flop, counts.update.states / settings.micro_batch
    sampled, shown = counts.rollout.images, heldout * counts.heldout.images
    watched = tuple(dict.fromkeys((*params.rewards, *params.train.heldout.scorers)))
    scored = sampled * scoring(params, tuple(params.rewards)).flop + shown * scoring(params, watched).flop
    flop = {
        "rollout": counts.rollout.states * forward,
        "old log-probabilities": counts.old_log_probs.states * forward,
        "ratios of large chunks": counts.ratio.states * forward,
        "update, forward": counts.update.states * forward,
        "update, backward": items * update.backward,
        "update, recomputed": items * update.recomputed,
        "KL reference": counts.reference.states * settings.frozen_flop,
        "held-out": heldout * counts.heldout.states * forward,
        "decoding": (sampled + shown) * settings.decoded.flop / settings.decoded_images,
        "scoring": scored,
    }
    traffic = traffic_of(settings, counts, heldout)
    used = {name: value for name, value in flop.items() if value}
    swapping = swapping_seconds(settings, sweeps_of(settings, counts, heldout))
    computing = computing_seconds(used, machine.rates, compiles=params.compiles)
    seconds = Seconds.of(computing, traffic.seconds(machine), swapping)
    return IterationCost(variant, counts, heldout, used, traffic, swapping, seconds)


@dataclass(frozen=True)
class StageCost:
    """A stage, or the same stage of several policies."""

    name: str
    gpus: int
    """GPUs that it uses."""
    flop: float
    """Operations of all of them."""
    seconds: Seconds
    """Seconds one after the other."""


def stage_costs(settings: Settings, machine: Machine, iterations: Sequence[IterationCost]) -> list[StageCost]:
    """All stages that use a GPU, with the loading of weights and checkpoints.

    Not in it: the start of processes, reading and writing of data.
    """
    params, train = settings.params, settings.params.train
    prompts, generated = prompts_of(params), params.generate
    text, forward, drawn = text_flop(settings), settings.frozen_flop, settings.drawn_flop
    decode = settings.drawn_decoded.flop / generated.batch_size
    profile = params.profile.num_seeds * min(params.profile.num_prompts, prompts.listed)
    runs = len(params.variants) * len(train.seeds) + saved_policies(params)
    rows = prompts.evaluated * generated.images_per_prompt
    base = rows * (generated.num_steps * drawn + decode)
    tuned = rows * ((generated.num_steps + generated.base_steps) * drawn + 2 * decode)
    scores = images_of(params) * scoring(params, tuple(params.scorers)).flop
    encoded = (sum(encoded_for_training(params)) + prompts.evaluated) * text
    loaded = {name: size / (machine.disk_gbs * GIGA) for name, size in loaded_bytes(settings).items()}
    profiled = profile * 2 * params.sampling.num_steps
    velocities = rows * generated.num_steps + runs * rows * (generated.num_steps + generated.base_steps)
    guided = 2 if generated.cfg_scale != 1 and params.model.cfg_passes == 2 else 1
    sweeps = {
        "profile": settings.passes * profiled / params.profile.batch_size,
        "generate": guided * velocities / generated.batch_size,
    }
    waits = {name: swapping_seconds(settings, count) for name, count in sweeps.items()}
    return [
        _shared("encode", encoded, machine, loaded["encode"]),
        _shared("profile", profiled * forward, machine, loaded["profile"], waits["profile"]),
        *(_training(settings, one, machine, loaded["train"]) for one in iterations),
        _shared("generate", base + runs * tuned, machine, loaded["generate"], waits["generate"]),
        _shared("score", scores, machine, loaded["score"]),
    ]


def loaded_bytes(settings: Settings) -> dict[str, float]:
    """Weights that a machine reads from its disk in all stages of a kind, once for all of its processes.

    Text encoders T, network W, VAE V, a tuned policy P, scorers of training R and all scorers S; s training seeds, v
    variants, c compared policies, d of them drawn here.

    encode      T (2 + s)
    profile     W
    train       s (W + V + R), of one variant
    generate    W + V, and W + V + P for each of the s v + d policies
    score       S (1 + v + c)
    """
    params, seeds = settings.params, len(settings.params.train.seeds)
    network = float(settings.element * settings.network.weights)
    pair = network + settings.element * settings.vae_weights
    watched = tuple(dict.fromkeys((*params.rewards, *params.train.heldout.scorers)))
    policies = len(params.variants) * seeds + saved_policies(params)
    sets = 1 + len(params.variants) + len(params.policies)
    return {
        "encode": float(settings.element * settings.text.weights) * (2 + seeds),
        "profile": network,
        "train": seeds * (pair + scoring(params, watched).bytes),
        "generate": pair + policies * (pair + policy_bytes(settings)),
        "score": sets * scoring(params, tuple(params.scorers)).bytes,
    }


def hours_of(stages: Sequence[StageCost]) -> tuple[float, float]:
    """Least and most hours of the stages one after the other."""
    return (sum(stage.seconds.least for stage in stages) / 3600, sum(stage.seconds.most for stage in stages) / 3600)


def text_flop(settings: Settings) -> float:
    """Operations of encoding a prompt: 2 for each weight outside the tables of embeddings, and token.

    An approximation: attention is not in it, and each encoder counts as many tokens. Encoding is a small share.
    """
    return 2.0 * (settings.text.weights - settings.text.embeddings) * settings.params.model.max_sequence_length


def _shared(name: str, flop: float, machine: Machine, loading: float, waiting: float = 0.0) -> StageCost:
    """A stage whose batches all GPUs take in turn, with the seconds that its copies of swapped weights take."""
    computing = flop / machine.gpus / (machine.rates.forward * TERA)
    seconds = Seconds.of(computing, 0.0, loading + waiting / machine.gpus)
    return StageCost(name, machine.gpus, flop, seconds)


def _training(settings: Settings, one: IterationCost, machine: Machine, loading: float) -> StageCost:
    """Training of a variant with all seeds: iterations, and checkpoints during which all GPUs wait."""
    params = settings.params
    train = params.train
    saving = len(train.seeds) * saving_of(settings, one, machine).total
    number = train.iterations * len(train.seeds)
    flop = number * settings.processes * one.total_flop
    computing = number * computing_seconds(one.flop, machine.rates, compiles=params.compiles)
    receiving = number * one.traffic.seconds(machine)
    seconds = Seconds.of(computing, receiving, saving + loading + number * one.swapping)
    return StageCost(f"train {one.variant}", settings.processes, flop, seconds)


def save_seconds(size: float, machine: Machine) -> float:
    """Seconds in which a checkpoint is written; its checksums are computed on the way."""
    return size / (machine.disk_gbs * GIGA)


@dataclass(frozen=True)
class Saving:
    """Checkpoints of one training. It waits until a copy is in host memory, and goes on while files are written."""

    seconds: float
    """Until a checkpoint is written."""
    waited: float
    """Of them training waits for, after each but the last: for the copy, prompt files, and the checkpoint before."""
    every: int
    """Iterations between two."""
    total: float
    """Seconds that training waits for all of them, and for the whole of the last one."""
    share: float
    """Their part of the training, in which collectives run beside the computation."""
    lost: float
    """Seconds of work that a lost machine costs, at most: it is lost in the iteration at whose end a checkpoint, just
    written, would have counted."""


def saving_of(settings: Settings, one: IterationCost, machine: Machine) -> Saving:
    """When a training of a variant saves, and what that takes."""
    train = settings.params.train
    iteration = one.seconds
    every = min(train.iterations, train.checkpoint_every or train.iterations)
    if train.checkpoint_minutes is not None:
        every = min(every, math.ceil(60 * train.checkpoint_minutes / iteration.least))
    size = checkpoint_bytes(settings)
    seconds, staged = save_seconds(size, machine), size / settings.spread / (STAGED_GBS * GIGA)
    waited = staged + min(seconds, PROMPT_SECONDS) + max(0.0, seconds - every * iteration.least)
    last = checkpoint_bytes(settings, is_last=True)
    at_end = last / settings.spread / (STAGED_GBS * GIGA) + save_seconds(last, machine)
    total = (-(-train.iterations // every) - 1) * waited + at_end
    share = total / (total + train.iterations * iteration.least)
    lost = every * iteration.most
    if train.checkpoint_minutes is not None:
        lost = min(lost, 60 * train.checkpoint_minutes + iteration.most)
    return Saving(seconds, waited, every, total, share, lost + seconds + iteration.most)
