"""Upper bound of the speed-up in the compute-bound configuration: operations per second of network and matrix product.

`python -m benchmarks.rates` times one matrix product (a block's MLP), a forward pass without gradient (rollout), and a
forward and backward pass (update), each with one state, as the reference, and with a micro-batch, as our trainer. The
network cannot be faster than its matrix products, so the ratio of the matrix product's rate to the rate of one state's
passes bounds the possible gain.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.configurations import TEXT_TOKENS, Configuration, configurations, quiet
from benchmarks.machine import machine
from benchmarks.sheets import Sheet, spread
from chunk_grpo.families.base import Conditioning, TuningOptions
from chunk_grpo.families.flux import FluxFamily
from chunk_grpo.progress import Meter

COLUMNS = ("work", "states at once", "ms a state (least to largest)", "GFLOP a state", "GFLOP/s")
CONFIGURATION = "compute-bound"


@dataclass(frozen=True)
class Rate:
    """One measurement.

    Attributes:
        work: Name of the measured work.
        states: Number of states per call.
        seconds: Seconds of each repetition, for all states.
        flop: Operations for all states, by torch's count.
    """

    work: str
    states: int
    seconds: tuple[float, ...]
    flop: int

    def cells(self) -> list[str]:
        """Row of the table."""
        return [
            self.work,
            str(self.states),
            spread([1e3 * seconds / self.states for seconds in self.seconds]),
            f"{self.flop / self.states / 1e9:.2f}",
            f"{self.flop / statistics.median(self.seconds) / 1e9:.0f}",
        ]


def main(options: Sequence[str] | None = None) -> None:
    """Measure and print."""
    arguments = _parser().parse_args(options)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    quiet()
    with configurations() as known:
        rates = measured(known[CONFIGURATION], arguments.repetitions)
    title = f"{CONFIGURATION}: operations a second; medians of {arguments.repetitions}"
    sheet = Sheet(title, COLUMNS, [rate.cells() for rate in rates])
    console = Console()
    console.print(
        sheet.as_markdown() if arguments.markdown else sheet.for_terminal(), markup=False, soft_wrap=True
    )
    console.print(", ".join(f"{name} {value}" for name, value in machine().items()), highlight=False)


def measured(configuration: Configuration, repetitions: int) -> list[Rate]:
    """Measure all rates in rounds, so that drifts of the machine affect all of them."""
    family = configuration.family()
    family.prepare_training(TuningOptions(None, 1.0, (), False, None), 0)
    works = {
        (name, states): work
        for states in (1, configuration.micro_batch)
        for name, work in _works(family, states).items()
    }
    seconds: dict[tuple[str, int], list[float]] = {place: [] for place in works}
    flops = {place: _flop(work) for place, work in works.items()}  # also serves as a warm-up call
    with Meter("rates", repetitions * len(works)) as meter:
        for _ in range(repetitions):
            for place, work in works.items():
                start = time.perf_counter()
                work()
                seconds[place].append(time.perf_counter() - start)
                meter.advance(note=place[0])
    return [Rate(name, states, tuple(seconds[name, states]), flops[name, states]) for name, states in works]


def _works(family: FluxFamily, states: int) -> dict[str, Callable[[], None]]:
    config = family.transformer.config
    width = config.num_attention_heads * config.attention_head_dim
    tokens, channels = family.latent_shape
    stream = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream)

    x, t = draw(states, tokens, channels), torch.full((states,), 0.5)
    text = Conditioning(
        draw(states, TEXT_TOKENS, config.joint_attention_dim), draw(states, config.pooled_projection_dim)
    )
    rows, weight = draw(states * (tokens + TEXT_TOKENS), width), draw(4 * width, width)

    def product() -> None:
        torch.nn.functional.linear(rows, weight)

    @torch.no_grad()
    def forward() -> None:
        family.velocity(x, t, text)

    def both() -> None:
        family.velocity(x, t, text).square().mean().backward()

    return {
        "matrix product of the MLP": product,
        "forward, no gradient": forward,
        "forward and backward": both,
    }


def _flop(work: Callable[[], None]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--threads", type=int, help="number of torch threads (default: torch's)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    return parser


if __name__ == "__main__":
    main()
