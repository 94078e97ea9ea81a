"""Memory of a GPU by part, in the phases of training and in the stages around it."""

from __future__ import annotations

from dataclasses import dataclass

from chunk_grpo.planning.activations import Pass, Peak, evaluation_peak, training_peak, units_of
from chunk_grpo.planning.passes import has_reference
from chunk_grpo.planning.scorers import in_process, scoring
from chunk_grpo.planning.settings import Settings

FLOAT32 = 4

CONTEXT_BYTES = 2.5 * 2**30
"""Assumed: CUDA's context and kernels, NCCL's and cuBLAS's buffers, and what the allocator cannot use again."""

STREAM_UNITS = 2
"""Units that live between two blocks of a pass without gradients."""


@dataclass(frozen=True)
class Phase:
    """Memory of one phase.

    Attributes:
        name: Name of the phase.
        parts: Bytes by part.
    """

    name: str
    parts: dict[str, float]

    @property
    def bytes(self) -> float:
        """Sum of the parts."""
        return sum(self.parts.values())


def training_phases(settings: Settings, variant: str) -> list[Phase]:
    """Phases of training a variant: loading, rollout, update, and the optimiser's step.

    Gradients are freed after the optimiser's step, so the rollout has none.
    """
    kept, gradients = _kept(settings, variant), _gradients(settings)
    batch = _batch(settings, variant)
    vae = settings.model.vae
    element, images = settings.element, min(settings.rollout_batch, settings.micro_batch)
    height, width = settings.params.model.height, settings.params.model.width
    sampled, around = rollout_bytes(settings)
    rollout = {
        "activations": sampled + _cast_weight(settings),
        "gathered blocks": around,
        "decoding": vae.decode_bytes(images, height, width, element),
    }
    peak, gathered = update_bytes(settings)
    update = {"activations": peak, "gathered blocks": gathered}
    step = {"optimiser's step": settings.foreach_bytes * settings.tuning.trained_weights / settings.spread}
    update_kept = kept | _left(settings)
    return [
        Phase("loading", _used(_loading(settings, variant))),
        Phase("rollout", _used(kept | batch | rollout)),
        Phase("update", _used(update_kept | gradients | batch | update)),
        Phase("optimiser's step", _used(update_kept | gradients | batch | step)),
    ]


def stage_phases(settings: Settings) -> list[Phase]:
    """Memory of the stages on one GPU: encoding prompts, and drawing evaluation images, one policy at a time."""
    model, element, images = settings.model, settings.element, settings.params.generate.batch_size
    rows = images * (1 if settings.params.model.cfg_passes == 2 else settings.guided_drawing)
    height, width = settings.params.generate.height, settings.params.generate.width
    text = {"text encoders": float((model.clip.weights + model.t5.weights) * element)}
    weights = model.transformer.weights * element
    adapter = 0 if settings.tuning.adapter is None else settings.tuning.adapter.weights * FLOAT32
    drawing = {
        "weights": float(weights + adapter),
        "VAE": float(model.vae.weights * element),
        "activations": evaluation_peak(model.transformer, Pass(rows, settings.eval_tokens, element)).bytes,
        "decoding": model.vae.decode_bytes(images, height, width, element),
        "context": CONTEXT_BYTES,
    }
    return [Phase("encode", text | {"context": CONTEXT_BYTES}), Phase("generate", drawing)]


def rollout_bytes(settings: Settings) -> tuple[float, float]:
    """Activations, and gathered weights, at the peak of a pass without gradients.

    Sharded (FSDP2): within a block its weights and the gathered bytes of the next one are there; between two blocks the
    next one's weights are copied from these, so three blocks are, beside the two streams. The weights outside the
    blocks stay all the time.
    """
    network = settings.tuning.network
    rows = settings.rollout_batch * settings.guided // settings.passes
    one = Pass(rows, settings.train_tokens, settings.element)
    peak = evaluation_peak(network, one, units_of(settings.tuning, autocasts=settings.autocasts))
    if not settings.shards:
        return peak.bytes, 0.0
    double, single = (settings.element * size for size in (network.double_weights, network.single_weights))
    places = (
        (STREAM_UNITS * one.unit(network), 3.0 * max(double, single)),
        (peak.at_double, 2.0 * double),
        (peak.at_single, 2.0 * single),
    )
    activations, blocks = max(places, key=sum)
    return activations, blocks + _ends(settings)


def update_bytes(settings: Settings) -> tuple[float, float]:
    """Activations, and gathered weights with their gradients, at the peak of a forward and backward pass.

    Sharded (FSDP2): the backward pass of a block holds its gathered weights and those of the next block. If all weights
    are trained, it also holds its gradients in the gathered type, and the previous block's in float32 until they are
    reduced. The peak is the larger sum of double and single blocks, plus the weights outside the blocks. To compare
    with FSDPMemTracker: its peak of a pass, without shards, their gradients and the optimiser's state, is the sum of
    the two numbers; on a CPU without `autocasts`, since a CPU's autocast leaves norms in bfloat16.
    """
    network = settings.tuning.network
    one = Pass(settings.micro_batch * settings.guided, settings.train_tokens, settings.element)
    peak = training_peak(settings.tuning, one, autocasts=settings.autocasts)
    if settings.casts_weights:
        cast = 2.0 * network.weights
        checkpointed = settings.tuning.checkpointing
        peak = Peak(
            peak.at_double + (2.0 * network.double_weights if checkpointed else cast),
            peak.at_single + (2.0 * network.single_weights if checkpointed else cast),
        )
    if not settings.shards:
        return peak.bytes, 0.0
    each = 2 * settings.element
    if settings.tuning.adapter is None:
        each += settings.element + FLOAT32
    places = (
        (peak.at_double, float(each * network.double_weights)),
        (peak.at_single, float(each * network.single_weights)),
    )
    activations, blocks = max(places, key=sum)
    return activations, blocks + _ends(settings)


def _ends(settings: Settings) -> float:
    """Gathered weights outside the blocks."""
    return float(settings.element * settings.tuning.network.outer_weights)


def _kept(settings: Settings, variant: str) -> dict[str, float]:
    """What lives through all of training."""
    tuning, spread = settings.tuning, settings.spread
    trained = tuning.trained_weights / spread
    average = settings.params.train.ema_decay is not None
    return {
        "weights": held_weights(settings) / spread,
        "AdamW": settings.optimizer_bytes * trained,
        "weight average": FLOAT32 * trained if average else 0.0,
        "KL reference": _reference(settings, variant) / spread,
        **_beside(settings),
    }


def _gradients(settings: Settings) -> dict[str, float]:
    """Gradients, float32; DDP has a second copy in its buckets."""
    trained = FLOAT32 * settings.tuning.trained_weights / settings.spread
    replicas = settings.processes > 1 and not settings.shards
    return {"gradients": trained, "gradients in DDP's buckets": trained if replicas else 0.0}


def held_weights(settings: Settings) -> float:
    """Bytes of the network's weights: float32 if all are trained, else the checkpoint's type and a float32 adapter."""
    tuning = settings.tuning
    if tuning.adapter is None:
        return float(FLOAT32 * tuning.network.weights)
    return float(settings.element * tuning.network.weights + FLOAT32 * tuning.adapter.weights)


def _reference(settings: Settings, variant: str) -> float:
    """A frozen float32 copy, if there is a KL divergence and no adapter that could be switched off."""
    if settings.tuning.adapter is not None or not has_reference(settings, variant):
        return 0.0
    return float(FLOAT32 * settings.tuning.network.weights)


def offloaded_bytes(settings: Settings) -> float:
    """What `train.offload` takes off the GPU in the updates, and keeps in the memory of the process."""
    beside, left = _beside(settings), _left(settings)
    return sum(beside[name] - size for name, size in left.items())


def _left(settings: Settings) -> dict[str, float]:
    """What offloaded parts leave on the GPU in the updates."""
    params = settings.params
    left = {"VAE": 0.0} if "vae" in params.train.offload else {}
    if "scorers" in params.train.offload:
        names = dict.fromkeys((*params.rewards, *params.train.heldout.scorers))
        left["scorers"] = scoring(params, tuple(name for name in names if not in_process(params, name))).bytes
    return left


def _beside(settings: Settings) -> dict[str, float]:
    params = settings.params
    names = tuple(dict.fromkeys((*params.rewards, *params.train.heldout.scorers)))
    return {
        "VAE": float(settings.model.vae.weights * settings.element),
        "scorers": scoring(params, names).bytes,
        "context": CONTEXT_BYTES,
    }


def _loading(settings: Settings, variant: str) -> dict[str, float]:
    """The whole network in its own type on each card, then its shards beside it; unsharded weights are cast one by one.

    Scorers are loaded when they are first asked, so they are there from the second seed on.
    """
    whole = float(settings.element * settings.tuning.network.weights)
    held = held_weights(settings)
    network = {"whole network": whole, "weights": whole / settings.spread}
    if not settings.shards:
        network = {"weights": max(whole, held)}
    beside = _beside(settings)
    if len(settings.params.train.seeds) == 1:
        beside["scorers"] = 0.0
    return {**network, "KL reference": _reference(settings, variant) / settings.spread, **beside}


def _batch(settings: Settings, variant: str) -> dict[str, float]:
    """Embeddings of this process's images, and their trajectories, float32.

    A trajectory has S + 1 states (2 with branches), the final latent, and the means of a normalised ratio.
    """
    params, own = settings.params, settings.params.variants[variant]
    train, S = params.train, params.sampling.num_steps
    points = 1 if own.branching is None else own.branching.points
    rows = train.prompts_per_iteration * train.group_size * points / settings.processes
    states = 2 if own.branching is not None else S + 1
    means = 0 if own.ratio_norm == "none" else states - 1
    latent = settings.train_tokens.image * settings.model.transformer.in_channels * FLOAT32
    return {
        "embeddings of the batch": float(rows * settings.row_bytes),
        "trajectories": float(rows * (states + 1 + means) * latent),
    }


def _cast_weight(settings: Settings) -> float:
    """The weight that autocast has cast for its product."""
    return 2.0 * settings.model.transformer.largest_weight if settings.casts_weights else 0.0


def _used(parts: dict[str, float]) -> dict[str, float]:
    return {name: size for name, size in parts.items() if size}
