"""Print what a run will take, before it is paid for: operations, hours, traffic, memory, disk, money, and what is off.

chunk-grpo plan [--params FILE | --preset NAME] [--gpus 8] [--gpu H100] ...      (make plan PRESET=flux-dev GPUS=8)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from chunk_grpo.config import Params, parse_params
from chunk_grpo.errors import ConfigError
from chunk_grpo.planning.machines import GPUS, machine
from chunk_grpo.stopping import stop_seconds
from infra.command_line import command_parser, count, positive, raw_params

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Plan and print; return the exit code: 2 for invalid input, or with --strict for a run that cannot work."""
    options = parser().parse_args(argv)
    params = parse_params(*raw_params(ROOT, options.preset, options.params))
    if options.variant:
        params = only(params, options.variant)
    sys.stderr.write(f"tracing passes of {params.model.checkpoint}, which takes ten seconds or more\n")
    from chunk_grpo.planning.plan import make_plan  # here: importing torch and diffusers takes seconds
    from chunk_grpo.planning.tables import show

    plan = make_plan(
        params,
        machine(
            options.gpu,
            options.gpus,
            stop_seconds=stop_seconds(),
            machines=options.machines,
            memory_gb=options.memory,
            tflops=options.tflops,
            gbs=options.gbs,
            network_gbs=options.network_gbs,
            disk_gbs=options.disk_gbs,
            price=options.price,
        ),
    )
    if options.json:
        sys.stdout.write(json.dumps(plan.to_json(), indent=1) + "\n")
    else:
        show(plan, Console(), whole=options.all)
    return ConfigError.exit_code if options.strict and not plan.fits else 0


def only(params: Params, variants: Sequence[str]) -> Params:
    """The parameters with these of their variants."""
    unknown = [name for name in variants if name not in params.variants]
    if unknown:
        raise ConfigError(f"--variant: must be one of {', '.join(params.variants)}, got {unknown[0]}")
    return params.model_copy(update={"variants": {name: params.variants[name] for name in variants}})


def parser() -> argparse.ArgumentParser:
    own = command_parser("plan", __doc__)
    source = own.add_mutually_exclusive_group()
    source.add_argument("--params", type=Path, default=ROOT / "params.yaml", help="parameters to plan")
    source.add_argument("--preset", help="preset of conf/ to plan instead")
    own.add_argument("--variant", action="append", help="variant to plan; repeat it for more (default: all)")
    own.add_argument("--gpus", type=count, default=1, help="GPUs at hand")
    own.add_argument("--machines", type=count, default=1, help="machines that they are in")
    own.add_argument("--gpu", choices=sorted(GPUS), default="H100", help="kind of GPU")
    own.add_argument("--memory", type=positive, help="GB of a GPU, as sold; default: by --gpu")
    own.add_argument("--tflops", type=positive, help="one rate in TFLOP/s for all operations; default: rates by --gpu")
    own.add_argument("--gbs", type=positive, help="GB/s of collectives; default: by --gpu")
    own.add_argument("--network-gbs", type=positive, help="GB/s a GPU between machines; default: 33")
    own.add_argument("--disk-gbs", type=positive, default=1.0, help="GB/s of the disk of weights and checkpoints")
    own.add_argument("--price", type=positive, help="price of a GPU for an hour")
    own.add_argument("--all", action="store_true", help="print operations, stages, memory and files too")
    own.add_argument("--json", action="store_true", help="print the numbers as JSON")
    own.add_argument("--strict", action="store_true", help="exit with 2 if something cannot work")
    return own
