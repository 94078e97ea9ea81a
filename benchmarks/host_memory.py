"""Peak host memory of each stage by number of prompts: `python -m benchmarks.host_memory --prompts 50 500`.

Every stage runs by its command in dvc.yaml, in a process of its own, on embeddings and images of FLUX.1-dev's size:
512 T5 tokens of width 4,096 in bfloat16 (4.2 MB a prompt), pictures of noise of 720 x 720 pixels (1.5 MB). The networks
are random and as small as those widths allow, so that memory shows what the data take. N train prompts are all drawn in
training, and N eval prompts are drawn and scored; other numbers do not change. `--listed` train prompts are listed in
all, of which training draws N. The largest number takes 12 MB of disk a prompt, in a temporary folder (TMPDIR).
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import FluxTransformer2DModel
from dvc.repo import Repo
from dvc.utils.hydra import compose_and_dump
from dvc.utils.serialize import dump_yaml, load_yaml
from rich.console import Console
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from benchmarks.tables import print_machine, print_table
from chunk_grpo.artifacts import read_parts, write_rows
from chunk_grpo.image_files import encode_png

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "assets" / "tiny-flux"
TOKENS, TEXT_WIDTH, POOLED_WIDTH = 512, 4096, 768
SIDE, PICTURES = 720, 8
"""Pixels of a side, and number of different pictures."""

VARIANT, SCORER = "chunk", "shapes-vivid"
STAGES = (
    "inputs",
    "prepare_prompts",
    "check_scorers",
    "try_scorers",
    "encode_prompts@profile",
    "encode_prompts@evaluation",
    "encode_training@0",
    "profile_l1",
    "chunk_boundaries",
    f"train@{VARIANT}-0",
    "generate_base",
    f"generate@{VARIANT}-0",
    f"score_base@{SCORER}",
    f"score@{VARIANT}-{SCORER}",
    "report",
)
PER_ITERATION = 10
"""Train prompts of an iteration."""

MEASURED = """
import atexit, os, runpy, sys
def tell():
    with open("/proc/self/status") as status, open(os.environ["PEAK_FILE"], "w") as told:
        told.write(next(line.split()[1] for line in status if line.startswith("VmHWM")))
atexit.register(tell)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a module and writes its peak resident memory in KiB. Not ru_maxrss: it starts at the parent's memory."""


def main(options: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--prompts", type=int, nargs="+", default=[50, 500], help="numbers of prompts, rising"
    )
    parser.add_argument("--listed", type=int, default=0, help="number of listed train prompts, at least N")
    arguments = parser.parse_args(options)
    counts = arguments.prompts
    if any(count < PER_ITERATION or count % PER_ITERATION for count in counts):
        parser.error(f"--prompts: must be multiples of {PER_ITERATION}, got {counts}")
    peaks = [stage_peaks(count, max(count, arguments.listed)) for count in counts]
    rows = (
        (stage, *(f"{peak[stage]:,.0f}" for peak in peaks), f"{peaks[-1][stage] - peaks[0][stage]:+,.0f}")
        for stage in STAGES
    )
    print_table(
        "Peak host memory, MiB, by prompts", ("", *(f"{count:,}" for count in counts), "last - first"), rows
    )
    print_machine()


def stage_peaks(count: int, listed: int) -> dict[str, float]:
    """Peak resident MiB of each stage with `count` eval prompts and as many used ones of `listed` train prompts."""
    say = Console(stderr=True, highlight=False).print
    peaks = {}
    with tempfile.TemporaryDirectory(prefix="host-memory-") as scratch:
        folder = Path(scratch)
        commands = prepare(folder, count, listed)
        for stage in STAGES:
            if stage.startswith("score_base"):
                for table in (folder / "artifacts" / "images").rglob("images.parquet"):
                    enlarge(table)
            say(f"{count:,} prompts: {stage} ...")
            peaks[stage] = peak_of(folder, commands[stage])
    return peaks


def peak_of(folder: Path, command: Sequence[str]) -> float:
    """Peak resident MiB of a module, given with its arguments."""
    told = folder / "peak"
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PEAK_FILE": str(told), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} ended with exit code {done.returncode}:\n{done.stderr}")
    return int(told.read_text()) / 1024


def prepare(folder: Path, count: int, listed: int) -> dict[str, list[str]]:
    """Write checkpoint, prompts and parameters; return the module and arguments of each stage."""
    write_checkpoint(folder / "model")
    texts = (f"number {number} of the prompts" for number in range(listed + count))
    (folder / "prompts.txt").write_text("".join(f"{text}\n" for text in texts))
    config = str(ROOT / "conf")
    compose_and_dump(folder / "params.yaml", config, None, "config", str(ROOT), ["preset=smoke"])
    params = dict(load_yaml(str(folder / "params.yaml")))
    for name, value in settings(count, listed).items():
        params[name] = {**params[name], **value} if name not in ("scorers", "variants", "rewards") else value
    dump_yaml(str(folder / "params.yaml"), params)
    shutil.copy(ROOT / "dvc.yaml", folder)
    with Repo.init(str(folder), no_scm=True) as repo:
        # exec python -m MODULE ARGUMENTS
        return {stage.name: shlex.split(stage.cmd)[3:] for stage in repo.index.stages}


def settings(count: int, listed: int) -> dict[str, dict[str, Any]]:
    """Changes of the preset `smoke`, by section; `count` of the listed train prompts are drawn, each once."""
    prompts = dict.fromkeys(("hub_file", "revision", "prompt_field", "category_field", "limit"))
    heldout = {"every": count, "num_prompts": 4, "images_per_prompt": 1, "seed": 0, "scorers": []}
    return {
        "model": {"checkpoint": "model", "dtype": "bfloat16", "max_sequence_length": TOKENS},
        "prompts": {
            "source": "file",
            "train_file": {"path": "prompts.txt", **prompts},
            "train_count": listed,
            "eval_count": count,
            "wise_count": 0,
        },
        "encode": {"batch_size": 8},
        "profile": {"num_prompts": 8, "batch_size": 8},
        "sampling": {"num_steps": 5},
        "train": {
            "iterations": count // PER_ITERATION,
            "prompts_per_iteration": PER_ITERATION,
            "updates_per_iteration": 1,
            "group_size": 2,
            "micro_batch_size": 10,
            "checkpoint_every": count,
            "heldout": {**heldout, "patience": None, "keep_best": False},
        },
        "generate": {"num_steps": 2, "base_steps": 1, "batch_size": 8},
        "chunks": {"plans": {"listed": {"kind": "listed", "sizes": [2, 2]}}},
        "variants": {VARIANT: {"objective": "chunk", "plan": "listed"}},
        "rewards": {SCORER: 1.0},
        "scorers": {SCORER: {"kind": SCORER, "splits": ["eval"], "batch_size": 8}},
    }


def write_checkpoint(folder: Path) -> None:
    """Copy the shipped checkpoint with random text encoders and a random network of FLUX.1-dev's text widths."""
    shutil.copytree(TINY, folder)
    torch.manual_seed(0)
    clip = CLIPTextConfig.from_pretrained(TINY / "text_encoder")
    clip.hidden_size, clip.num_hidden_layers = POOLED_WIDTH, 1
    t5 = T5Config.from_pretrained(TINY / "text_encoder_2")
    t5.d_model, t5.num_layers, t5.num_heads = TEXT_WIDTH, 1, 1
    network = FluxTransformer2DModel(
        in_channels=32,
        num_layers=1,
        num_single_layers=0,
        attention_head_dim=32,
        num_attention_heads=1,
        joint_attention_dim=TEXT_WIDTH,
        pooled_projection_dim=POOLED_WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(8, 12, 12),
    )
    for name, module in (
        ("text_encoder", CLIPTextModel(clip)),
        ("text_encoder_2", T5EncoderModel(t5)),
        ("transformer", network),
    ):
        shutil.rmtree(folder / name)
        module.to(torch.bfloat16).save_pretrained(folder / name)


def enlarge(table: Path) -> None:
    """Replace the pictures of a table by noise of `SIDE` x `SIDE` pixels."""
    noise = np.random.default_rng(0).integers(0, 256, (PICTURES, SIDE, SIDE, 3), dtype=np.uint8)
    pictures = [encode_png(picture) for picture in noise]

    def rows() -> Iterator[Mapping[str, Any]]:
        for part in read_parts(table, "images"):
            for number, row in enumerate(part.to_pylist()):
                yield {**row, "image": {**row["image"], "bytes": pictures[number % PICTURES]}}

    write_rows(rows(), table.with_suffix(".large"), "images")
    table.with_suffix(".large").replace(table)


if __name__ == "__main__":
    main()
