"""Trainings at a preset's size on random weights, each in another way: seconds an image, memory, ratios.

    python -m benchmarks.at_size night-24gb --ways eager compiled int8

Network and VAE have the configuration that `chunk-grpo plan` reads, in bfloat16, and random weights; embeddings of the
prompts are random too. The trainer is the pipeline's: rollout, decoding, reward, update, held-out images. Each way
trains a new network for a few iterations; the first iteration has the compiler's time in it. Images and rewards are
noise: what training learns is not measured.

The JSON file has one record a way, with the plan's numbers beside it, and is written after each. A way that does not
fit into memory is a record that says so.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import diffusers
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from benchmarks.flux_gpu import release
from benchmarks.random_flux import random_module
from benchmarks.tables import parser_of, write_found
from chunk_grpo.config import Params, parse_params
from chunk_grpo.core.chunk_sampling import chunk_weights
from chunk_grpo.families.base import Conditioning
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.options import options_of
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.families.quantised import quantise
from chunk_grpo.families.registry import family_class
from chunk_grpo.families.swapping import swap
from chunk_grpo.library.runs import training_data
from chunk_grpo.library.times import times_of
from chunk_grpo.library.training import scorer_of
from chunk_grpo.orchestration.presets import composed, overridden
from chunk_grpo.planning.machines import GPUS, machine
from chunk_grpo.planning.models import read_checkpoint
from chunk_grpo.planning.plan import make_plan
from chunk_grpo.training.method import method_from
from chunk_grpo.training.plans import build_plan
from chunk_grpo.training.run import RunPaths
from chunk_grpo.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
# fmt: off
PROFILE = (
    0.749, 0.772, 0.538, 0.455, 0.408, 0.373, 0.36, 0.344, 0.346, 0.343, 0.345, 0.355, 0.363, 0.369, 0.378, 0.383,
)
# fmt: on
"""Relative L1 distances of the shipped toy's 16 noisy steps."""
_EAGER = ("train.compile=false",)
WAYS: Mapping[str, Sequence[str]] = {
    "eager": _EAGER,
    "compiled": ("train.compile=true",),
    "half recomputed": (*_EAGER, "train.gradient_checkpointing=0.5"),
    "nothing recomputed": (*_EAGER, "train.gradient_checkpointing=false"),
    "wide adapter": (*_EAGER, "train.lora.precision=float32"),
    "int8": (*_EAGER, "model.base_precision=int8"),
    "float8": (*_EAGER, "model.base_precision=float8"),
    "nf4": (*_EAGER, "model.base_precision=nf4"),
    "swapped": (*_EAGER, "model.block_swap=1", "train.gradient_checkpointing=true"),
}
"""Overrides of the preset."""

REWARD = "brightness"
PHASES = ("rollout", "waiting_for_reward", "update")
"""Seconds of an iteration, by the names of the trainer."""


def brightness(images: NDArray[np.uint8], prompts: list[str], metadata: list[Any]) -> NDArray[np.float64]:
    """Mean value of each image."""
    return np.asarray(images.mean(axis=(1, 2, 3), dtype=np.float64) / 255)


def params_of(
    preset: str, overrides: Sequence[str], iterations: int, prompts: int, variant: str | None = None
) -> Params:
    """The preset with a few prompts and iterations, and one variant; None: its first one."""
    raw = composed(ROOT, preset)
    small = {
        "train.iterations": iterations,
        "train.prompts_per_iteration": prompts,
        "train.heldout.every": iterations,
        "train.heldout.num_prompts": 1,
        "train.heldout.images_per_prompt": 1,
        "train.heldout.scorers": "[]",
        "train.shard_weights": "false",
        "trackers": "[]",
    }
    chosen = variant or next(iter(raw["variants"]))
    changed = [*(f"{key}={value}" for key, value in small.items()), *overrides]
    return parse_params(overridden(raw, changed, [chosen], preset), preset)


def make_family(params: Params, device: torch.device) -> DiffusersFamily:
    """The preset's network and VAE with random weights."""
    of, size = family_class(params.model.family), params.model
    configs = json.loads(read_checkpoint(size.family, size.checkpoint).configs)
    network: Any = random_module(lambda: of.network_class.from_config(configs["transformer"]), device)
    vae_class = getattr(diffusers, configs["vae"]["_class_name"])
    vae: Any = random_module(lambda: vae_class.from_config(configs["vae"]), device)
    for part in (network, vae):
        part.requires_grad_(False).eval()
    if size.base_precision is not None:
        quantise(network, size.base_precision, device)
    if size.block_swap:
        swap(network.to("cpu"), size.block_swap, device)
    names = dict.fromkeys(of.pipeline_class._get_signature_keys(of.pipeline_class)[0])
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    parts = {**names, "transformer": network, "vae": vae, "scheduler": scheduler}
    options = options_of(size, params.sampling.cfg_scale, size)
    return of(of.pipeline_class(**parts), replace(options, device=device))


def random_prompts(family: DiffusersFamily, count: int, tokens: int, *, guided: bool) -> PromptSet:
    """Prompts whose embeddings are random numbers of the shapes and types that the encoders give."""
    stream = torch.Generator().manual_seed(0)

    def drawn(like: Tensor, rows: int) -> Tensor:
        if not like.is_floating_point():
            return like.expand(rows, *like.shape[1:]).clone()
        return torch.randn(rows, *like.shape[1:], generator=stream).to(like.dtype)

    example = family.text_example(tokens)
    negative = {name: drawn(value, 1) for name, value in example.items()} if guided else None
    found = Conditioning({name: drawn(value, count) for name, value in example.items()}, negative)
    names = [f"p{number}" for number in range(count)]
    return PromptSet(names, names, [{} for _ in names], found)


def trained(params: Params, device: torch.device, folder: Path) -> dict[str, Any]:
    (name, own), train = next(iter(params.variants.items())), params.train
    family = make_family(params, device)
    guided = params.sampling.cfg_scale != 1
    prompts = random_prompts(family, train.prompts_per_iteration + 1, params.model.max_sequence_length, guided=guided)
    profile = PROFILE[: params.sampling.num_sde_steps]
    plan = build_plan(params.chunks.plans[own.plan], profile)
    times = times_of(params.sampling.num_steps, params.sampling.shift, lambda: family)
    method = method_from(params, name, plan, chunk_weights(profile, plan), times)
    scorers = {REWARD: scorer_of(REWARD, brightness, train.micro_batch_size)}
    learnt, held = prompts.rows(range(train.prompts_per_iteration)), prompts.rows([len(prompts) - 1])
    data = training_data(learnt, held, scorers, {REWARD: 1.0}, train)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    rows = Trainer(family, data, method, train, 0, RunPaths(folder, "at size", folder / "logs", "run")).run(
        lambda: False
    )
    by_name: dict[str, list[float]] = {}
    for _, metric, value in rows:
        by_name.setdefault(metric, []).append(value)
    images = train.prompts_per_iteration * train.group_size
    seconds = [sum(each) for each in zip(*(by_name[f"seconds_{phase}"] for phase in PHASES), strict=True)]
    return {
        "variant": name,
        "images": images,
        "trained_steps": by_name["trained_steps"],
        "seconds_an_image": [each / images for each in seconds],
        **{f"seconds_{phase}": by_name[f"seconds_{phase}"] for phase in PHASES},
        "fidelity_p99": by_name.get("fidelity_p99"),
        "fidelity_later_p99": by_name.get("fidelity_later_p99"),
        "ratio_mean": by_name["ratio_mean"],
        "ratio_max": by_name["ratio_max"],
        "grad_norm": by_name["grad_norm"],
        "clip_range": list(method.variant.limits),
        "peak_gib": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
    }


def planned(params: Params, gpu: str) -> dict[str, Any]:
    """The plan's seconds of an iteration and GiB of tensors by phase."""
    made = make_plan(params, machine(gpu, 1, stop_seconds=math.inf))
    return {
        "planned_seconds_an_image": made.iterations[0].seconds.most
        / (params.train.prompts_per_iteration * params.train.group_size),
        "planned_gib": {phase.name: (phase.bytes - phase.parts.get("context", 0)) / 2**30 for phase in made.memory},
    }


def main(options: Sequence[str] | None = None) -> None:
    """Train in each way, print a line for each, write the JSON file."""
    parser = parser_of(__doc__)
    parser.add_argument("preset")
    parser.add_argument("overrides", nargs="*", help="changes of the preset, such as train.group_size=4")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["eager", "compiled"])
    parser.add_argument("--variant", help="of the preset (default: its first one)")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=2, help="prompts of an iteration")
    parser.add_argument("--gpu", choices=GPUS, default="H200", help="whose plan stands beside the numbers")
    parser.add_argument("--json", type=Path, default=Path("at-size.json"))
    arguments = parser.parse_args(options)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    console = Console(highlight=False, soft_wrap=True)
    found: dict[str, dict[str, Any]] = {}
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    for way in arguments.ways:
        changes = [*arguments.overrides, *WAYS[way]]
        params = params_of(arguments.preset, changes, arguments.iterations, arguments.prompts, arguments.variant)
        started = time.perf_counter()
        record = _measured(params, device, arguments.gpu)
        found[way] = {"overrides": changes, **record, "all_seconds": time.perf_counter() - started}
        console.print(f"{way}: {json.dumps(found[way])}")
        write_found(arguments.json, device=name, preset=arguments.preset, ways=found)
        release(device)


def _measured(params: Params, device: torch.device, gpu: str) -> dict[str, Any]:
    try:
        with TemporaryDirectory(prefix="at-size-") as folder:
            return {**trained(params, device, Path(folder)), **planned(params, gpu)}
    except torch.OutOfMemoryError:
        return {"error": "out of memory"}


if __name__ == "__main__":
    main()
