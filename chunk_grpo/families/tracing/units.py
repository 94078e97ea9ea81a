"""The blocks of a network: which are equal, a network with few of them, and what the others add.

A block is what `families.sharding` gathers as one unit. Of equal blocks in a row KEPT are traced. The others take as
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

KEPT = 3
"""Traced blocks of a run: the last two begin with what one of them keeps between them."""


@dataclass(frozen=True)
class Run:
    """Equal blocks in a row."""

    name: str
    """Name of the first block."""
    count: int
    """Number of blocks in the whole network."""
    weights: int
    """Weights of one, without an adapter."""
    kept: tuple[nn.Module, ...]
    """Those that are traced."""

    @property
    def more(self) -> int:
        """Number of the blocks that are not traced."""
        return self.count - len(self.kept)


def shorten(network: nn.Module, targets: Sequence[str] = ()) -> list[Run]:
    """Leave KEPT blocks of each run in the network; they keep their names.

    Args:
        network: Velocity network, changed in place.
        targets: Names of layers, or ends of names, that make blocks unequal where they occur.
    """
    runs = []
    for names in _runs(network, targets):
        kept = tuple(network.get_submodule(name) for name in names[:KEPT])
        for name in names[KEPT:]:
            parent, _, child = name.rpartition(".")
            del network.get_submodule(parent)._modules[child]
        weights = sum(weight.numel() for weight in kept[0].parameters())
        runs.append(Run(names[0], len(names), weights, kept))
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


def kinds(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs of equal blocks together, by the name of the first block."""
    names: dict[Any, str] = {}
    found: dict[str, list[Run]] = {}
    for run in runs:
        name = names.setdefault(_kind("", run.kept[0], ()), run.name)
        found.setdefault(name, []).append(run)
    return found


@contextmanager
def watched(runs: Sequence[Run], recorder: Recorder) -> Iterator[list[Run]]:
    """Tell the recorder which block runs.

    Yields:
        The run of each visit of a block, filled as blocks begin.
    """
    visits: list[Run] = []

    def begin(run: Run) -> Any:
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
        for block in run.kept
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

    run: Run
    """Run."""
    first: int
    """Number of its first visit."""
    kept: int = 0
    """Bytes that each block that was left out keeps from its forward pass on."""
    left: int = 0
    """Bytes that it has left when its backward pass is over: the gradients of weights that are used again."""

    @classmethod
    def of(cls, run: Run, first: int, recorder: Recorder) -> _Segment:
        """Measure the second block: the one after it, and the one before it in the backward pass, begin with more."""
        if not run.more:
            return cls(run, first)
        before, middle, after = (recorder.places[first + number, True] for number in range(3))
        kept = after.start - middle.start
        has_backward = bool(middle.back_peak)
        left = kept + before.back_start - middle.back_start if has_backward else kept
        return cls(run, first, kept, left)


def whole(recorder: Recorder, visits: Sequence[Run], names: Mapping[str, str]) -> PassSizes:
    """The pass of the whole network.

    The blocks that were left out are between the first and the second one of their run. What they keep is there at all
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
        first += len(visits[first].kept)
    forward, backward, recomputed = (
        sum(each) for each in zip(*(costs.flop for costs in recorder.places.values()), strict=True)
    )
    outside, between, units = recorder.places[-1, False].peak, 0, dict[str, int]()
    kept, left = 0, sum(each.run.more * each.left for each in segments)
    for segment in segments:
        run, kind = segment.run, names[segment.run.name]
        more_kept, more_left = run.more * segment.kept, run.more * segment.left
        left -= more_left
        for number in range(len(run.kept)):
            inner, outer = (recorder.places[segment.first + number, inside] for inside in (True, False))
            here = kept + (more_kept if number else 0)
            # Of the blocks that were left out, which are like the second, the first or the last runs with most.
            own = (more_left, max(more_kept, more_left), more_kept)[number] if run.more else 0
            back = kept + left + own
            sizes = (units.get(kind, 0), inner.peak + here, inner.back_peak + back if inner.back_peak else 0)
            units[kind] = max(sizes)
            outside = max(outside, outer.peak + here, outer.back_peak + here)
            between = max(between, inner.start + here)
            if number == 1:
                forward += run.more * (inner.forward + outer.forward)
                backward += run.more * (inner.backward + outer.backward)
                recomputed += run.more * (inner.recomputed + outer.recomputed)
        kept += more_kept
    return PassSizes(forward, backward, recomputed, between, outside, units, recorder.scores)
