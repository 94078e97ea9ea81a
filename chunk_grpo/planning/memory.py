"""Memory of a GPU by part, in the phases of training and in the stages around it."""

from __future__ import annotations

from dataclasses import dataclass

from chunk_grpo.families.tracing import PassSizes
from chunk_grpo.planning.scorers import in_process, scoring
from chunk_grpo.planning.settings import Settings

FLOAT32 = 4

CONTEXT_BYTES = 2.5 * 2**30
"""Assumed: CUDA's context and kernels, NCCL's and cuBLAS's buffers, and what the allocator cannot use again."""


@dataclass(frozen=True)
class Phase:
    """Memory of one phase."""

    name: str
    parts: dict[str, float]
    """Bytes by part."""

    @property
    def bytes(self) -> float:
        """Sum of the parts."""
        return sum(self.parts.values())


def training_phases(settings: Settings, variant: str) -> list[Phase]:
    """Phases of training a variant: loading, rollout, update, and the optimiser's step.

    Gradients are freed after the optimiser's step, so the rollout has none.
    """
    kept, gradients = _kept(settings, variant), _gradients(settings)
    batch = {"trajectories": trajectory_bytes(settings, variant)}
    sampled, around = rollout_bytes(settings)
    rollout = {
        "predicted images": predicted_bytes(settings, variant),
        "activations": sampled,
        "gathered blocks": around,
        "decoding": float(settings.decoded.bytes),
        "embeddings of a pass": embeddings_of_pass(settings, settings.rollout_batch, backward=False),
    }
    peak, gathered = update_bytes(settings)
    update = {
        "activations": peak,
        "gathered blocks": gathered,
        "embeddings of a pass": embeddings_of_pass(settings, settings.micro_batch, backward=True),
    }
    step = {"optimiser's step": settings.foreach_bytes * settings.network.trained_weights / settings.spread}
    update_kept = kept | _left(settings)
    return [
        Phase("loading", _used(_loading(settings, variant))),
        Phase("rollout", _used(kept | batch | rollout)),
        Phase("update", _used(update_kept | gradients | batch | update)),
        Phase("optimiser's step", _used(update_kept | gradients | batch | step)),
    ]


def stage_phases(settings: Settings) -> list[Phase]:
    """Memory of the stages on one GPU: encoding prompts, and drawing evaluation images, one policy at a time."""
    element, network = settings.element, settings.network
    text = {"text encoders": float(settings.text_bytes(settings.params.model.text_precision))}
    adapter = network.trained_weights * FLOAT32 if settings.adapts else 0
    drawing = {
        "weights": network.base_bytes - settings.swapped_bytes + network.buffer_bytes + adapter,
        "copies of a swapped block": settings.copied_bytes,
        "VAE": float(settings.vae_weights * element),
        "activations": float(settings.drawing.peak),
        "decoding": float(settings.drawn_decoded.bytes),
        "context": CONTEXT_BYTES,
    }
    return [Phase("encode", text | {"context": CONTEXT_BYTES}), Phase("generate", _used(drawing))]


def embeddings_of_pass(settings: Settings, images: int, *, backward: bool) -> float:
    """Most embeddings on the GPU at once: a row for each image of a pass, and the distinct rows that were sent for it.

    In an update those of the pass before are still there. The negative prompt stays. All others are in files.
    """
    return float(((3 if backward else 2) * images + settings.guided - 1) * settings.network.text_bytes)


def rollout_bytes(settings: Settings) -> tuple[float, float]:
    """Activations, and gathered weights, at the peak of a pass without gradients.

    Sharded (FSDP2): within a block its weights and the gathered bytes of the next one are there; between two blocks the
    next one's weights are copied from these, so three blocks are. The weights outside the blocks stay all the time.
    """
    one = settings.rollout
    if not settings.shards:
        return float(one.peak), 0.0
    three = 3.0 * settings.element * max((unit.weights for unit in settings.network.units.values()), default=0)
    return _largest(settings, one, 2 * settings.element, (float(one.between), three))


def update_bytes(settings: Settings) -> tuple[float, float]:
    """Activations, and gathered weights with their gradients, at the peak of a forward and backward pass.

    Sharded (FSDP2): the backward pass of a block holds its gathered weights and those of the next block. If all weights
    are trained, it also holds its gradients in the gathered type, and the previous block's in float32 until they are
    reduced. The peak is the largest sum of all kinds of blocks, plus the weights outside the blocks. To compare with
    FSDPMemTracker: its peak of a pass, without shards, their gradients and the optimiser's state, is the sum of the two
    numbers; on a CPU without `wide_norms`, since a CPU's autocast leaves norms in bfloat16.
    """
    one = settings.update
    if not settings.shards:
        return float(one.peak), 0.0
    each = 2 * settings.element
    if not settings.adapts:
        each += settings.element + FLOAT32
    return _largest(settings, one, each, (0.0, 0.0))


def _largest(settings: Settings, one: PassSizes, each: int, other: tuple[float, float]) -> tuple[float, float]:
    """Activations and gathered bytes of the place with the largest sum: a kind of block, outside, or the `other` one.

    `each` is the gathered bytes for each weight of the block at work.
    """
    units = settings.network.units
    places = [(float(size), float(each * units[kind].weights)) for kind, size in one.units.items()]
    activations, blocks = max((other, (float(one.outside), 0.0), *places), key=sum)
    return activations, blocks + float(settings.element * settings.network.outer_weights)


def _kept(settings: Settings, variant: str) -> dict[str, float]:
    """What lives through all of training."""
    trained = settings.network.trained_weights / settings.spread
    return {
        "weights": held_weights(settings) / settings.spread + settings.network.buffer_bytes,
        "copies of a swapped block": settings.copied_bytes,
        "AdamW": settings.optimizer_bytes * trained,
        "weight averages": FLOAT32 * trained * averages_of(settings, variant),
        "KL reference": _reference(settings, variant) / settings.spread,
        **_beside(settings),
    }


def averages_of(settings: Settings, variant: str) -> int:
    """Number of averages of the trained weights that a training keeps."""
    own = settings.params.variants[variant]
    return (settings.params.train.ema_decay is not None) + (own.sampling_average is not None)


def _gradients(settings: Settings) -> dict[str, float]:
    """Gradients, float32; DDP has a second copy in its buckets."""
    trained = FLOAT32 * settings.network.trained_weights / settings.spread
    replicas = settings.processes > 1 and not settings.shards
    return {"gradients": trained, "gradients in DDP's buckets": trained if replicas else 0.0}


def held_weights(settings: Settings) -> float:
    """Bytes of the network's weights: float32 if all are trained, else as they are loaded, and a float32 adapter.

    Swapped ones are left out.
    """
    network = settings.network
    if not settings.adapts:
        return float(FLOAT32 * network.weights)
    return network.base_bytes - settings.swapped_bytes + FLOAT32 * network.trained_weights


def _reference(settings: Settings, variant: str) -> float:
    """A frozen float32 copy, if there is a KL divergence and no adapter that could be switched off."""
    if settings.adapts or not settings.variant(variant).has_reference:
        return 0.0
    return float(FLOAT32 * settings.network.weights)


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
        "VAE": float(settings.vae_weights * settings.element),
        "scorers": scoring(params, names).bytes,
        "context": CONTEXT_BYTES,
    }


def _loading(settings: Settings, variant: str) -> dict[str, float]:
    """The whole network in its own type on each card, then its shards beside it; unsharded weights are cast one by one.

    Scorers are loaded later, when they are first asked.
    """
    whole = settings.network.base_bytes - settings.swapped_bytes
    held = held_weights(settings)
    network = {"whole network": whole, "weights": whole / settings.spread}
    if not settings.shards:
        network = {"weights": max(whole, held)}
    reference = {"KL reference": _reference(settings, variant) / settings.spread}
    return {**network, **reference, **_beside(settings), "scorers": 0.0}


def trajectory_bytes(settings: Settings, variant: str) -> float:
    """Trajectories of one process's images, float32."""
    return float(settings.counts(variant).latents * settings.latent_bytes)


def predicted_bytes(settings: Settings, variant: str) -> float:
    """Latents of the images that the rollouts of one process predict for the gains of chunks, float32."""
    return float(settings.counts(variant).predicted * settings.latent_bytes)


def _used(parts: dict[str, float]) -> dict[str, float]:
    return {name: size for name, size in parts.items() if size}
