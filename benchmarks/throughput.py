"""Upper bound of the speed-up in the compute-bound workload: operations per second of network and matrix product.

`python -m benchmarks.throughput` times one matrix product (a block's MLP), a forward pass without gradient (rollout),
and a forward and backward pass (update), each with one state, as the reference, and with a micro-batch, as our trainer.
The network cannot be faster than its matrix products, so the ratio of the matrix product's throughput to that of one
state's passes bounds the possible gain. Operations are torch's count, without the attention of a CPU's fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.utils.benchmark import Measurement, Timer
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.tables import parser_of, print_machine, print_table, spread
from benchmarks.workloads import TEXT_TOKENS, Workload, quiet, random_inputs, workloads
from chunk_grpo.families.base import TuningOptions
from chunk_grpo.families.models.flux import FluxFamily

COLUMNS = ("work", "states at once", "ms a state (least to largest)", "GFLOP a state", "GFLOP/s")
WORKLOAD = "compute-bound"


def main(options: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--min-run-time", type=float, default=2.0, help="least seconds of each measurement")
    arguments = parser.parse_args(options)
    quiet()
    with workloads() as known:
        rows = measured(known[WORKLOAD], arguments.min_run_time)
    print_table(f"{WORKLOAD}: operations a second; medians", COLUMNS, rows)
    print_machine()


def measured(workload: Workload, min_run_time: float) -> list[list[str]]:
    """Rows of the table."""
    family = workload.family()
    family.prepare_training(TuningOptions(None, 1.0, (), False, None), 0)
    rows = []
    for states in (1, workload.micro_batch):
        for name, work in works(family, states).items():
            flop, found = flop_count(work), timed(work, min_run_time)
            milliseconds = spread([1e3 * seconds / states for seconds in found.times])
            rate = f"{flop / found.median / 1e9:.0f}"
            rows.append([name, str(states), milliseconds, f"{flop / states / 1e9:.2f}", rate])
    return rows


def works(family: FluxFamily, states: int) -> dict[str, Callable[[], object]]:
    """The measured calls for a number of states."""
    x, t, text = random_inputs(family, states, TEXT_TOKENS)
    config = family.transformer.config
    width = config.num_attention_heads * config.attention_head_dim
    rows, weight = torch.randn(states * (x.shape[1] + TEXT_TOKENS), width), torch.randn(4 * width, width)
    return {
        "matrix product of the MLP": lambda: torch.nn.functional.linear(rows, weight),
        "forward, no gradient": torch.no_grad()(lambda: family.velocity(x, t, text)),
        "forward and backward": lambda: family.velocity(x, t, text).square().mean().backward(),
    }


def flop_count(call: Callable[[], object]) -> int:
    """Floating-point operations of a call, by torch's count; a multiply-add counts as two."""
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def timed(call: Callable[[], object], min_run_time: float) -> Measurement:
    """Seconds of repeated calls, after a warm-up, with torch's number of threads."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=min_run_time)


if __name__ == "__main__":
    main()
