"""The blocks of a network: which are equal, a network with few of them, and what the others add.

A block is what `families.sharding` gathers as one unit. Of equal blocks in a row three are traced. The others take as
many operations as one of these, and what they keep for the backward pass is there while a later block runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from chunk_grpo.families.sharding import block_names
from chunk_grpo.families.tracing.recorder import Recorder
from chunk_grpo.families.tracing.sizes import PassSizes

TRACED = 3
"""Traced blocks of several equal ones in a row. Three are needed: memory grows by the same amount from block 2 to 3 as
for every further block."""


@dataclass(frozen=True)
class EqualBlocks:
    """Equal blocks in a row."""

    name: str
    """Name of the first block."""
    count: int
    """Number of blocks in the whole network."""
    weights: int
    """Weights of one, without an adapter."""
    traced: tuple[nn.Module, ...]
    """Blocks that are traced."""

    @property
    def untraced(self) -> int:
        """Number of blocks that are not traced."""
        return self.count - len(self.traced)


def keep_three(network: nn.Module, targets: Sequence[str] = ()) -> list[EqualBlocks]:
    """Leave three blocks of each run in the network; they keep their names.

    Args:
        network: Velocity network, changed in place.
        targets: Names of layers, or ends of names, that make blocks unequal where they occur.
    """
    runs = []
    for names in _runs(network, targets):
        traced = tuple(network.get_submodule(name) for name in names[:TRACED])
        for name in names[TRACED:]:
            parent, _, child = name.rpartition(".")
            del network.get_submodule(parent)._modules[child]
        weights = sum(weight.numel() for weight in traced[0].parameters())
        runs.append(EqualBlocks(names[0], len(names), weights, traced))
    return runs


def _runs(network: nn.Module, targets: Sequence[str]) -> list[list[str]]:
    """Names of the blocks, equal neighbours of a ModuleList together."""
    blocks = _blocks(network)
    found: list[list[str]] = []
    last: object = None
    for name, block in blocks.items():
        parent = name.rpartition(".")[0]
        like = (parent, *_kind(name, block, targets))
        if like == last and isinstance(network.get_submodule(parent), nn.ModuleList):
            found[-1].append(name)
        else:
            found.append([name])
        last = like
    return found


def _blocks(network: nn.Module) -> dict[str, nn.Module]:
    """Outermost blocks by name."""
    kinds, found = block_names(network), dict[str, nn.Module]()
    for name, module in network.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if type(module).__name__ in kinds and not inside:
            found[name] = module
    return found


def _kind(name: str, block: nn.Module, targets: Sequence[str]) -> tuple[Any, ...]:
    """What equal blocks have in common: class, weights, and which layers are adapted."""
    weights = tuple((each, weight.shape) for each, weight in block.named_parameters())
    adapted = tuple(
        each
        for each, _ in block.named_modules()
        if any(f"{name}.{each}" == target or f"{name}.{each}".endswith(f".{target}") for target in targets)
    )
    return type(block), weights, adapted


def by_kind(runs: Sequence[EqualBlocks]) -> dict[str, list[EqualBlocks]]:
    """Runs of equal blocks together, by the name of the first block."""
    names: dict[Any, str] = {}
    found: dict[str, list[EqualBlocks]] = {}
    for run in runs:
        name = names.setdefault(_kind("", run.traced[0], ()), run.name)
        found.setdefault(name, []).append(run)
    return found


@contextmanager
def record_visits(runs: Sequence[EqualBlocks], recorder: Recorder) -> Iterator[list[EqualBlocks]]:
    """Tell the recorder which block runs.

    Yields:
        The run of each visit of a block, filled as blocks begin.
    """
    visits: list[EqualBlocks] = []

    def begin(run: EqualBlocks) -> Any:
        def hook(*_: object) -> None:
            # Checkpointing calls a block again in the backward pass; its place is known by then.
            if not recorder.is_backward:
                visits.append(run)
                recorder.move(len(visits) - 1, is_inside=True)

        return hook

    def end(_: nn.Module, __: object, output: object) -> None:
        if recorder.is_backward:
            return
        visit = len(visits) - 1
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                # A block's backward pass begins with the gradient of an output.
                tensor.register_hook(lambda _: recorder.move(visit, is_inside=True))
        recorder.move(visit, is_inside=False)

    handles = [
        run_hook
        for run in runs
        for block in run.traced
        for run_hook in (block.register_forward_pre_hook(begin(run)), block.register_forward_hook(end))
    ]
    try:
        yield visits
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class _Segment:
    """Visits of one run, one after the other."""

    run: EqualBlocks
    """The run."""
    first: int
    """Number of its first visit."""
    kept: int = 0
    """Bytes that each untraced block keeps from its forward pass on."""
    left: int = 0
    """Bytes that it has left when its backward pass is over: the gradients of weights that are used again."""

    @classmethod
    def of(cls, run: EqualBlocks, first: int, recorder: Recorder) -> _Segment:
        """Measure the second block: the one after it, and the one before it in the backward pass, begin with more."""
        if not run.untraced:
            return cls(run, first)
        before, middle, after = (recorder.places[first + number, True] for number in range(3))
        kept = after.start - middle.start
        has_backward = bool(middle.back_peak)
        left = kept + before.back_start - middle.back_start if has_backward else kept
        return cls(run, first, kept, left)


def extrapolate(recorder: Recorder, visits: Sequence[EqualBlocks], names: Mapping[str, str]) -> PassSizes:
    """The pass of the whole network.

    The untraced blocks are between the first and the second one of their run. What they keep is there at all
    later places of the forward pass and at the same places of the backward pass; what they leave, at earlier places of
    the backward pass.

    Args:
        recorder: Costs of the shortened network.
        visits: Run of each visit.
        names: Kind by name of a run.
    """
    segments, first = list[_Segment](), 0
    while first < len(visits):
        segments.append(_Segment.of(visits[first], first, recorder))
        first += len(visits[first].traced)
    forward, backward, recomputed = (
        sum(each) for each in zip(*(costs.flop for costs in recorder.places.values()), strict=True)
    )
    outside, between, units = recorder.places[-1, False].peak, 0, dict[str, int]()
    kept, left = 0, sum(each.run.untraced * each.left for each in segments)
    for segment in segments:
        run, kind = segment.run, names[segment.run.name]
        more_kept, more_left = run.untraced * segment.kept, run.untraced * segment.left
        left -= more_left
        for number in range(len(run.traced)):
            inner, outer = (recorder.places[segment.first + number, inside] for inside in (True, False))
            here = kept + (more_kept if number else 0)
            # Of the untraced blocks, which are like the second, the first or the last runs with most.
            own = (more_left, max(more_kept, more_left), more_kept)[number] if run.untraced else 0
            back = kept + left + own
            sizes = (units.get(kind, 0), inner.peak + here, inner.back_peak + back if inner.back_peak else 0)
            units[kind] = max(sizes)
            outside = max(outside, outer.peak + here, outer.back_peak + here)
            between = max(between, inner.start + here)
            if number == 1:
                forward += run.untraced * (inner.forward + outer.forward)
                backward += run.untraced * (inner.backward + outer.backward)
                recomputed += run.untraced * (inner.recomputed + outer.recomputed)
        kept += more_kept
    return PassSizes(forward, backward, recomputed, between, outside, units, recorder.scores)
