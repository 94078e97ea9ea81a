"""Sizes of networks and of passes, each computed once in a process."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.families.base import Conditioning
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.quantised import layers_of_blocks, parts, quantise, quantiser
from chunk_grpo.families.sources import needs_pictures
from chunk_grpo.families.tracing.build import (
    fake_tensors,
    faked,
    family_around,
    network_of,
    retyped,
    text_encoders_of,
    vae_of,
)
from chunk_grpo.families.tracing.recorder import Recorder, wide_norms
from chunk_grpo.families.tracing.sizes import (
    Checkpoint,
    Decoding,
    Element,
    NetworkSizes,
    PassSizes,
    TextSizes,
    Traced,
    UnitSizes,
)
from chunk_grpo.families.tracing.units import EqualBlocks, by_kind, extrapolate, keep_three, record_visits
from chunk_grpo.families.tracing.values import Values
from chunk_grpo.image_files import AWAY

_SMALLEST = 4096
"""Values of the smallest matrix whose moments `adamw-8bit` quantises."""


@cache
def network_sizes(what: Traced) -> NetworkSizes:
    """Sizes of the network, as it is trained.

    Raises:
        ConfigError: The image size or the adapter's targets are wrong.
        DataError: A network cannot be built from its configuration.
    """
    with faked():
        family, runs = _prepared(what)
        network = family.transformer
        trained, rows = _trained(network, runs)
        text, edited = _text(family, what), _source(family, what)
    read = sum(tensor.numel() for tensor in edited.values()) // family.latent_shape[1]
    return NetworkSizes(
        latent_shape=family.latent_shape,
        text_tokens=max((tensor.shape[1] for tensor in text.values() if tensor.ndim > 2), default=0) + read,
        text_bytes=sum(tensor.nbytes for tensor in (*text.values(), *edited.values())),
        weights=_weights(network_of(what.checkpoint)),
        base_bytes=_base_bytes(what),
        trained_weights=trained,
        trained_rows=rows,
        buffer_bytes=sum(value.nbytes for value in network.buffers()),
        units={
            kind: UnitSizes(group[0].weights, sum(run.count for run in group)) for kind, group in by_kind(runs).items()
        },
    )


@cache
def pass_sizes(what: Traced, *, backward: bool) -> PassSizes:
    """Operations and activations of a velocity, and of its backward pass.

    Args:
        what: What is traced.
        backward: Whether there is a backward pass; else the forward pass runs without gradients.

    Raises:
        ConfigError: The image size or the adapter's targets are wrong.
        DataError: A network cannot be built from its configuration.
    """
    with faked():
        family, runs = _prepared(what)
        network = family.transformer
        if what.gathers and what.tuning is not None and what.tuning.lora_rank is None:
            retyped(network, getattr(torch, what.element))
        held = [part for weight in network.parameters() for part in parts(weight)] + [*network.buffers()]
        for weight in network.parameters():
            if weight.requires_grad and backward:
                weight.grad = torch.zeros_like(weight)
                held.append(weight.grad)
        with ExitStack() as stack:
            stack.enter_context(Values(fake_tensors()))
            if what.wide_norms:
                stack.enter_context(wide_norms())
            x, t, text = _inputs(family, what)
            recorder = Recorder([*held, x, t, *text.tensors.values(), *(text.negative or {}).values()])
            visits = stack.enter_context(record_visits(runs, recorder))
            stack.enter_context(recorder)
            stack.enter_context(torch.set_grad_enabled(backward))
            output = family.velocity(x, t, text)
            if backward:
                recorder.begin_backward()
                output.float().square().mean().backward()
    names = {run.name: kind for kind, group in by_kind(runs).items() for run in group}
    return extrapolate(recorder, visits, names)


@cache
def decoding(what: Traced) -> Decoding:
    """Decoding of `what.images` images.

    Raises:
        ConfigError: The image size is wrong.
        DataError: The VAE cannot be built from its configuration.
    """
    with faked():
        vae, _ = _copied(vae_of(what.checkpoint))
        retyped(vae, getattr(torch, what.element))
        family = family_around(what, network_of(what.checkpoint), vae)
        latents = torch.zeros(what.images, *family.latent_shape)
        with Recorder([*vae.parameters(), *vae.buffers(), latents]) as recorder:
            family.decode(latents)
    costs = recorder.places[-1, False]
    return Decoding(costs.forward, costs.peak)


@cache
def vae_weights(checkpoint: Checkpoint) -> int:
    """Weights of the VAE; DataError if it cannot be built."""
    return _weights(vae_of(checkpoint))


@cache
def text_sizes(checkpoint: Checkpoint) -> TextSizes:
    """Weights of the text encoders; DataError if one cannot be built."""
    encoders = text_encoders_of(checkpoint)
    tables = {module.weight for encoder in encoders for module in encoder.modules() if isinstance(module, nn.Embedding)}
    return TextSizes(sum(map(_weights, encoders)), sum(table.numel() for table in tables))


@cache
def text_bytes(checkpoint: Checkpoint, element: Element, precision: BasePrecision | None) -> int:
    """Bytes of the text encoders' weights as they are loaded; DataError if an encoder cannot be built."""
    # Equal layers take equal bytes. An encoder has hundreds, which take half a minute one by one.
    counts = Counter[tuple[torch.Size, bool]]()
    for encoder in text_encoders_of(checkpoint):
        layers = () if precision is None else layers_of_blocks(encoder)
        quantised = {id(layer.weight) for layer in layers}
        counts.update((weight.shape, id(weight) in quantised) for weight in encoder.parameters())
    total = 0
    with faked():
        for (shape, is_quantised), count in counts.items():
            held = torch.empty(shape, dtype=getattr(torch, element))
            if precision is not None and is_quantised:
                held = quantiser(precision, "model.text_precision")(held)
            total += count * sum(part.nbytes for part in parts(held))
    return total


def _trained(network: nn.Module, runs: Sequence[EqualBlocks]) -> tuple[int, dict[int, int]]:
    """Trained weights, and those in matrices by length of a row; a run's first block counts for those left out."""
    number = {id(weight): 1 + run.untraced for run in runs for weight in run.traced[0].parameters()}
    total, rows = 0, Counter[int]()
    for weight in network.parameters():
        if weight.requires_grad:
            values = number.get(id(weight), 1) * weight.numel()
            total += values
            if weight.ndim > 1 and weight.numel() >= _SMALLEST:
                rows[math.prod(weight.shape[1:])] += values
    return total, dict(rows)


def _base_bytes(what: Traced) -> int:
    """Bytes of the weights as they are loaded, without an adapter; a run's first block counts for those left out."""
    if what.precision is None:
        dtype: torch.dtype = getattr(torch, what.element)
        return dtype.itemsize * _weights(network_of(what.checkpoint))
    with faked():
        family, runs = _prepared(replace(what, tuning=None))
        number = {id(weight): 1 + run.untraced for run in runs for weight in run.traced[0].parameters()}
        return sum(
            number.get(id(weight), 1) * part.nbytes
            for weight in family.transformer.parameters()
            for part in parts(weight)
        )


def _weights(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


@cache
def _shortened(checkpoint: Checkpoint, targets: tuple[str, ...]) -> tuple[nn.Module, list[EqualBlocks]]:
    with faked():
        network, _ = _copied(network_of(checkpoint))
    return network, keep_three(network, targets)


@cache
def _quantised(
    checkpoint: Checkpoint, targets: tuple[str, ...], element: Element, precision: BasePrecision
) -> tuple[nn.Module, list[EqualBlocks]]:
    """The shortened network with a quantised base. Its weights are frozen, so that copies may share them."""
    network, runs = _copied(*_shortened(checkpoint, targets))
    with faked():
        retyped(network, getattr(torch, element))
        quantise(network, precision, "cpu")
    return network, runs


def _prepared(what: Traced) -> tuple[DiffusersFamily, list[EqualBlocks]]:
    """The family with a shortened network, as it is trained."""
    targets = () if what.tuning is None else what.tuning.lora_targets
    if what.precision is None:
        network, runs = _copied(*_shortened(what.checkpoint, targets))
        retyped(network, getattr(torch, what.element))
    else:
        network, runs = _copied(*_quantised(what.checkpoint, targets, what.element, what.precision))
    family = family_around(what, network, vae_of(what.checkpoint))
    if what.tuning is not None:
        family.prepare_training(what.tuning, 0)
    return family, runs


def _copied(network: nn.Module, runs: Sequence[EqualBlocks] = ()) -> tuple[nn.Module, list[EqualBlocks]]:
    """A copy with its runs. It shares tensors with the original; `retyped` replaces its weights.

    A fake tensor must not be copied: its storage is none, and its copy corrupts the memory of the process.
    """
    held = (leaf for module in network.modules() for leaf in tree_leaves(vars(module)))
    memo: dict[int, Any] = {id(leaf): leaf for leaf in held if isinstance(leaf, Tensor)}
    return copy.deepcopy((network, list(runs)), memo)


def _inputs(family: DiffusersFamily, what: Traced) -> tuple[Tensor, Tensor, Conditioning]:
    one = _text(family, what)
    all_of_one = {**one, **_source(family, what)}
    tensors = {name: each.repeat(what.images, *(1,) * (each.ndim - 1)) for name, each in all_of_one.items()}
    negative = None if what.cfg_scale == 1 or family.only_edits else dict(one)
    return (torch.zeros(what.images, *family.latent_shape), torch.zeros(what.images), Conditioning(tensors, negative))


def _text(family: DiffusersFamily, what: Traced) -> Mapping[str, Tensor]:
    """Tensors [1, ...] of a prompt, and of the negative prompt if each row has its own."""
    text = family.text_example(what.tokens)
    return {**text, **({AWAY + name: each for name, each in text.items()} if family.only_edits else {})}


def _source(family: DiffusersFamily, what: Traced) -> Mapping[str, Tensor]:
    """Tensors [1, ...] of a picture to edit; none if there is none. ConfigError unless the family takes that."""
    if what.source is None:
        if family.only_edits:
            raise needs_pictures(type(family).__module__)
        return {}
    found = family.source_tensors(torch.zeros(1, 3, *what.source))
    return {name: tensor.to(getattr(torch, what.element)) for name, tensor in found.items()}
