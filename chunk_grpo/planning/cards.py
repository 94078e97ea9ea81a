"""The same run on each kind of GPU that the plan knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chunk_grpo.planning.cost import IterationCost, hours_of, stage_costs
from chunk_grpo.planning.machines import GPUS, Machine
from chunk_grpo.planning.memory import Phase
from chunk_grpo.planning.settings import Settings


@dataclass(frozen=True)
class Card:
    """A kind of GPU, as many in as many machines as the plan has."""

    gpu: str
    """Name in `GPUS`."""
    memory_gb: float
    """Memory as sold."""
    fullest: str
    """Phase that takes most memory."""
    left: float
    """Bytes that this phase leaves; below 0 it does not fit."""
    hours: tuple[float, float]
    """Least and most hours of all stages at the rates of the data sheet."""


def cards_of(settings: Settings, like: Machine, phases: Sequence[Phase], costs: Sequence[IterationCost]) -> list[Card]:
    """All kinds of GPUs, the smallest memory first, with number, machines, disk and network of the plan's machine."""
    fullest = max(phases, key=lambda phase: phase.bytes)
    found = []
    for name, sheet in sorted(GPUS.items(), key=lambda item: (item[1].memory_gb, item[1].peak_tflops)):
        one = replace(like, gpu=name, memory_gb=sheet.memory_gb, rates=sheet.rates, gbs=sheet.gbs)
        hours = hours_of(stage_costs(settings, one, costs))
        found.append(Card(name, sheet.memory_gb, fullest.name, one.memory_bytes - fullest.bytes, hours))
    return found
