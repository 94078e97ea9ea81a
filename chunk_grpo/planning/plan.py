"""The whole plan of a run, as values that are printed or written as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from chunk_grpo.config import Params
from chunk_grpo.planning.cards import Card, cards_of
from chunk_grpo.planning.cost import (
    GIGA,
    IterationCost,
    Saving,
    StageCost,
    computing_seconds,
    hours_of,
    iteration_cost,
    save_seconds,
    saving_of,
    stage_costs,
)
from chunk_grpo.planning.findings import Finding, findings_of
from chunk_grpo.planning.machines import Machine
from chunk_grpo.planning.memory import Phase, stage_phases, training_phases
from chunk_grpo.planning.models import read_checkpoint
from chunk_grpo.planning.settings import Settings, settings_of
from chunk_grpo.planning.storage import (
    Prompts,
    Storage,
    checkpoint_bytes,
    download_bytes,
    prompts_of,
    storage_of,
    unfinished_bytes,
)


@dataclass(frozen=True)
class PassCost:
    """Operations of one image."""

    train_tokens: int
    """Tokens of a training image and its prompt."""
    eval_tokens: int
    """Tokens of an evaluation image and its prompt."""
    train_flop: float
    """A velocity at the training size; with classifier-free guidance two evaluations of the network."""
    eval_flop: float
    """A velocity at the evaluation size."""
    update_flop: float
    """Velocity and backward pass of an item, with recomputation."""


@dataclass(frozen=True)
class Total:
    """The whole run, one stage after the other."""

    hours: tuple[float, float]
    """Least and most hours."""
    gpu_hours: tuple[float, float]
    """Hours of the GPUs that each stage uses, least and most."""
    money: tuple[float, float] | None
    """At the price of all GPUs for all hours, least and most; None without a price."""


@dataclass(frozen=True)
class Plan:
    """Everything that is known before a run."""

    machine: Machine
    """Assumptions."""
    compiles: bool
    """Whether training has the rates of compiled blocks: `auto` counts as compiled on every card."""
    weights: int
    """Weights of the transformer."""
    trained_weights: int
    """Trained ones."""
    passes: PassCost
    """Operations of one image."""
    iterations: list[IterationCost]
    """Cost of an iteration of each variant."""
    savings: list[Saving]
    """Checkpoints of each variant's training."""
    stages: list[StageCost]
    total: Total
    """Hours and money."""
    memory: list[Phase]
    """Memory of a GPU by phase; training of the variant that takes most."""
    prompts: Prompts
    storage: Storage
    """Files and host memory."""
    downloads: float
    """Bytes of weights from a hub: of the checkpoint, if it is no local folder, and of the counted scorers."""
    cards: list[Card]
    """The same run on each kind of GPU."""
    stop_seconds: float
    """Seconds in which a stopped training has saved."""
    findings: list[Finding]
    """What is off."""

    @property
    def fits(self) -> bool:
        """Whether nothing is known to fail."""
        return all(finding.level != "cannot" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """All numbers, with those that follow from others."""
        content = asdict(self)
        for record, cost in zip(content["iterations"], self.iterations, strict=True):
            record |= {"total_flop": cost.total_flop, "bytes_received": cost.traffic.bytes}
        for record, phase in zip(content["memory"], self.memory, strict=True):
            record["bytes"] = phase.bytes
        content["storage"] |= {"outputs": self.storage.outputs, "disk": self.storage.disk}
        return content | {"fits": self.fits}


def make_plan(params: Params, machine: Machine) -> Plan:
    """Plan a run with assumptions on GPUs, links, disk and stop time."""
    model = read_checkpoint(params.model.family, params.model.checkpoint)
    settings = settings_of(params, model, machine.gpus, machine.machines)
    costs = [iteration_cost(settings, variant, machine) for variant in params.variants]
    savings = [saving_of(settings, cost, machine) for cost in costs]
    stages = stage_costs(settings, machine, costs)
    training = [training_phases(settings, variant) for variant in params.variants]
    phases = max(training, key=lambda each: max(phase.bytes for phase in each)) + stage_phases(settings)
    prompts, stop = prompts_of(params), stop_time(settings, machine)
    network = settings.network
    return Plan(
        machine=machine,
        compiles=params.compiles,
        weights=network.weights,
        trained_weights=network.trained_weights,
        passes=PassCost(
            train_tokens=network.latent_shape[0] + network.text_tokens,
            eval_tokens=settings.drawn_tokens,
            train_flop=settings.forward_flop,
            eval_flop=settings.drawn_flop,
            update_flop=settings.update_flop / settings.micro_batch,
        ),
        iterations=costs,
        savings=savings,
        stages=stages,
        total=total_of(stages, machine),
        memory=phases,
        prompts=prompts,
        storage=storage_of(settings),
        downloads=download_bytes(settings),
        cards=cards_of(settings, machine, phases, costs),
        stop_seconds=stop,
        findings=findings_of(settings, machine, phases, costs, savings, prompts, stop),
    )


def stop_time(settings: Settings, machine: Machine) -> float:
    """Seconds from a stop request to a saved checkpoint.

    The longest pass, then what is left of the checkpoint that is being written, at most all, and one with the
    unfinished iteration's trajectories.
    """
    passes = ({"update, forward": settings.update_flop}, {"rollout": settings.rollout.forward})
    compiles = settings.params.compiles
    longest = max(computing_seconds(flop, machine.rates, compiles=compiles) for flop in passes)
    sweeps = 3 * settings.passes if settings.shards else 0
    gathers = sweeps * settings.element * settings.network.weights / (machine.gbs * GIGA)
    unfinished = max(unfinished_bytes(settings, variant) for variant in settings.params.variants)
    size = 2 * checkpoint_bytes(settings) + unfinished
    return longest + gathers + save_seconds(size, machine)


def total_of(stages: list[StageCost], machine: Machine) -> Total:
    """Sums over the stages."""
    least, most = hours_of(stages)
    used = (
        sum(stage.gpus * stage.seconds.least for stage in stages) / 3600,
        sum(stage.gpus * stage.seconds.most for stage in stages) / 3600,
    )
    price = machine.price
    money = None if price is None else (machine.gpus * price * least, machine.gpus * price * most)
    return Total((least, most), used, money)
