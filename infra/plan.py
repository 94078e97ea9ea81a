"""Print what a run will take, before it is paid for: operations, hours, traffic, memory, disk, money, and what is off.

chunk-grpo plan [--params FILE | --preset NAME] [--gpus 8] [--gpu H100] ...      (make plan PRESET=flux-dev GPUS=8)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from chunk_grpo.config import Params, load_params, parse_params
from chunk_grpo.errors import ConfigError
from chunk_grpo.planning.machines import GPUS, machine
from chunk_grpo.stopping import stop_seconds
from infra.command_line import command_parser

ROOT = Path(__file__).resolve().parents[1]
T = TypeVar("T", int, float)


def main(argv: Sequence[str] | None = None) -> int:
    """Plan and print; return the exit code: 2 for invalid input, or with --strict for a run that cannot work."""
    options = parser().parse_args(argv)
    params = _params(options)
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


def _params(options: argparse.Namespace) -> Params:
    if options.preset is None:
        return load_params(options.params)
    from chunk_grpo.orchestration.presets import composed  # here: importing DVC takes half a second

    return parse_params(composed(ROOT, options.preset), f"conf/preset/{options.preset}.yaml")


def only(params: Params, variants: Sequence[str]) -> Params:
    """The parameters with these of their variants."""
    unknown = [name for name in variants if name not in params.variants]
    if unknown:
        raise ConfigError(f"--variant: must be one of {', '.join(params.variants)}, got {unknown[0]}")
    return params.model_copy(update={"variants": {name: params.variants[name] for name in variants}})


def _positive(text: str) -> float:
    value = _number(text, float, "a number")
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def _number(text: str, kind: Callable[[str], T], what: str) -> T:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}") from None


def _count(text: str) -> int:
    value = _number(text, int, "a whole number")
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def parser() -> argparse.ArgumentParser:
    own = command_parser("plan", __doc__)
    source = own.add_mutually_exclusive_group()
    source.add_argument("--params", type=Path, default=ROOT / "params.yaml", help="parameters to plan")
    source.add_argument("--preset", help="preset of conf/ to plan instead")
    own.add_argument("--variant", action="append", help="variant to plan; repeat it for more (default: all)")
    own.add_argument("--gpus", type=_count, default=1, help="GPUs at hand")
    own.add_argument("--machines", type=_count, default=1, help="machines that they are in")
    own.add_argument("--gpu", choices=sorted(GPUS), default="H100", help="kind of GPU")
    own.add_argument("--memory", type=_positive, help="GB of a GPU, as sold; default: by --gpu")
    own.add_argument("--tflops", type=_positive, help="TFLOP/s that a GPU reaches; default: by --gpu")
    own.add_argument("--gbs", type=_positive, help="GB/s of collectives; default: by --gpu")
    own.add_argument("--network-gbs", type=_positive, help="GB/s a GPU between machines; default: 33")
    own.add_argument("--disk-gbs", type=_positive, default=1.0, help="GB/s of the disk of weights and checkpoints")
    own.add_argument("--price", type=_positive, help="price of a GPU for an hour")
    own.add_argument("--all", action="store_true", help="print operations, stages, memory and files too")
    own.add_argument("--json", action="store_true", help="print the numbers as JSON")
    own.add_argument("--strict", action="store_true", help="exit with 2 if something cannot work")
    return own
