"""Time of an image with each method, relative to one of them: `python -m benchmarks.studies.method_times CHECKOUT`.

CHECKOUT has a finished run, such as of the preset `methods`; its trainings ran one after the other. Seconds are medians
over iterations, without the first one, divided by the images that the variant draws in an iteration.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.tables import parser_of, print_table, spread
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.config import Params, load_params
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.reporting.inputs import read_metrics
from chunk_grpo.reporting.variant_summary import images_of

PARTS = ("rollout", "waiting_for_reward", "update")
"""Parts of an iteration; a reward that is scored in the background counts where training waits for it."""


def main(options: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("checkout", type=Path, help="checkout with a finished run")
    parser.add_argument(
        "--to", default="flow-grpo-fixed", help="variant whose time is 1 (default: flow-grpo-fixed)"
    )
    arguments = parser.parse_args(options)
    try:
        params = load_params(arguments.checkout / "params.yaml")
        if arguments.to not in params.variants:
            raise ConfigError(f"--to: must be one of {', '.join(params.variants)}, got {arguments.to!r}")
        found = {name: milliseconds(arguments.checkout, params, name) for name in params.variants}
    except (ConfigError, DataError) as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    one = median(map(sum, found[arguments.to]))
    rows = []
    for name, iterations in found.items():
        parts = [f"{median(each[i] for each in iterations):.1f}" for i in range(len(PARTS))]
        totals = [sum(each) for each in iterations]
        rows.append([name, *parts, f"{median(totals):.1f}", spread([total / one for total in totals])])
    print_table(
        "Milliseconds an image",
        ("variant", "drawing", "waiting for the reward", "update", "all", f"all, relative to {arguments.to}"),
        rows,
    )
    return 0


def milliseconds(checkout: Path, params: Params, variant: str) -> list[list[float]]:
    """Milliseconds an image of each part, for each iteration of each seed but its first.

    A run that is not finished, or has a single iteration, is refused.
    """
    at = Layout.below(checkout)
    found = read_metrics(variant, {seed: at.times(variant, seed) for seed in params.train.seeds})
    rows = found.table.to_pylist()
    values = {(row["train_seed"], row["iteration"], row["metric"]): row["value"] for row in rows}
    places = sorted({(seed, iteration) for seed, iteration, _ in values if iteration > 1})
    if not places:
        raise DataError(
            f"{at.timings}/{variant}: has one iteration, which includes the start; set train.iterations to 2 or more"
        )
    scale = 1000 / images_of(params, variant)
    return [
        [scale * values[seed, iteration, f"seconds_{part}"] for part in PARTS] for seed, iteration in places
    ]


if __name__ == "__main__":
    sys.exit(main())
