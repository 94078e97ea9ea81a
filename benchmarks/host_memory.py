"""Peak host memory of each stage by number of prompts: `python -m benchmarks.host_memory --prompts 50 500`.

Every stage runs by its command in dvc.yaml, in a process of its own, on embeddings and images of FLUX.1-dev's size:
512 T5 tokens of width 4,096 in bfloat16 (4.2 MB a prompt), pictures of noise of 720 x 720 pixels (1.5 MB). The networks
are random and as small as those widths allow, so that memory shows what the data take. N train prompts are all drawn in
training, and N eval prompts are drawn and scored; other numbers do not change. `--listed` train prompts are listed in
all, of which training draws N. The largest number takes 12 MB of disk a prompt, in a temporary folder (TMPDIR).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import FluxTransformer2DModel
from rich.console import Console
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from benchmarks.tables import parser_of, print_machine, print_table
from benchmarks.workloads import NETWORK, TINY, toy_with
from chunk_grpo.artifacts import read_parts, write_rows
from chunk_grpo.artifacts.manifest import read_manifest
from chunk_grpo.image_files import encode_png
from tests.conftest import ORDER, ROOT, Workspace, any_prompt, new_workspace, prompt_file

TOKENS, TEXT_WIDTH, POOLED_WIDTH = 512, 4096, 768
SIDE, PICTURES = 720, 8
"""Pixels of a side, and number of different pictures."""

VARIANT, SCORER = "chunk", "shapes-vivid"
STAGES = (*ORDER, "report")
PER_ITERATION = 10
"""Train prompts of an iteration."""


def main(options: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
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
        workspace = prepare(folder, count, listed)
        for stage in STAGES:
            if stage == "score_base":
                for table in (folder / "artifacts" / "images").rglob("images.parquet"):
                    enlarge(table)
            say(f"{count:,} prompts: {stage} ...")
            peaks[stage] = peak(folder, *workspace.options(stage))
    return peaks


def peak(folder: Path, module: str, options: Sequence[str]) -> float:
    """Peak resident MiB of a stage that runs as a process in a folder, by its manifest; an error of it is raised."""
    if "--manifest" not in options:
        options = [*options, "--manifest", "inputs.json"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", module, *options]
    done = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(
            f"{module} ended with exit code {done.returncode}:\n{done.stderr.decode()[-2000:]}"
        )
    return read_manifest(folder / options[options.index("--manifest") + 1]).peak_memory_mib


def prepare(folder: Path, count: int, listed: int) -> Workspace:
    """Write checkpoint, prompts and parameters; `count` of the listed train prompts are drawn, each once."""
    write_checkpoint(folder / "model")
    texts = (f"number {number} of the prompts" for number in range(listed + count))
    (folder / "prompts.txt").write_text("".join(f"{text}\n" for text in texts))

    def change(raw: dict[str, Any]) -> None:
        any_prompt(raw)
        raw["model"] |= {"checkpoint": "model", "dtype": "bfloat16", "max_sequence_length": TOKENS}
        raw["prompts"] |= {"source": "file", "train_file": prompt_file("prompts.txt")}
        raw["prompts"] |= {"train_count": listed, "eval_count": count, "wise_count": 0}
        raw["encode"] |= {"batch_size": 8}
        raw["profile"] |= {"num_prompts": 8, "batch_size": 8}
        raw["sampling"] |= {"num_steps": 5}
        raw["train"] |= {
            "iterations": count // PER_ITERATION,
            "prompts_per_iteration": PER_ITERATION,
            "updates_per_iteration": 1,
            "group_size": 2,
            "micro_batch_size": 10,
            "checkpoint_every": count,
        }
        raw["train"]["heldout"] |= {"every": count, "num_prompts": 4, "images_per_prompt": 1, "seed": 0}
        raw["train"]["heldout"] |= {"patience": None, "keep_best": False}
        raw["generate"] |= {"num_steps": 2, "base_steps": 1, "batch_size": 8}
        raw["chunks"] |= {"plans": {"listed": {"kind": "listed", "sizes": [2, 2]}}}
        raw["variants"] = {VARIANT: {"objective": "chunk", "plan": "listed"}}

    new_workspace(folder).edit(change)
    return Workspace(folder, VARIANT, SCORER)


def write_checkpoint(folder: Path) -> None:
    """Copy the shipped checkpoint with random text encoders and a random network of FLUX.1-dev's text widths."""
    torch.manual_seed(0)
    clip = CLIPTextConfig.from_pretrained(TINY / "text_encoder")
    clip.hidden_size, clip.num_hidden_layers = POOLED_WIDTH, 1
    t5 = T5Config.from_pretrained(TINY / "text_encoder_2")
    t5.d_model, t5.num_layers, t5.num_heads = TEXT_WIDTH, 1, 1
    widths = {"joint_attention_dim": TEXT_WIDTH, "pooled_projection_dim": POOLED_WIDTH}
    heads = {"attention_head_dim": 32, "num_attention_heads": 1, "axes_dims_rope": (8, 12, 12)}
    modules = {
        "text_encoder": CLIPTextModel(clip),
        "text_encoder_2": T5EncoderModel(t5),
        "transformer": FluxTransformer2DModel(**NETWORK, num_single_layers=0, **heads, **widths),
    }
    toy_with(folder, {name: module.to(torch.bfloat16) for name, module in modules.items()})


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
