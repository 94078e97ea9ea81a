"""Rates of one GPU at FLUX.1-dev's size: `make gpu-report`, on random weights, in some minutes.

Pieces, each a few minutes at most and written to the JSON file when it ends:

- rate: TFLOP/s of one large matrix product in bfloat16, which the others are compared with;
- passes: rollout and update passes by batch size; what does not fit is a row that says so;
- ways: the same passes by attention backend and with compiled blocks;
- scorer: images a second of a network of HPSv3's size (Qwen2-VL 7B), without preprocessing.

What the stages take at this size, `chunk-grpo accept --preset random-flux` measures.

A call resumes after the last finished piece, starts no piece after `--minutes`, and returns 75 while pieces are left: a
machine that is lent for ten minutes a command needs three calls. The Markdown table stands beside the JSON file.
`--small` runs all pieces with small networks, on the CPU if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import Qwen2VLConfig

from benchmarks.flux_gpu import (
    FLUX_DEV,
    FORWARD,
    SMALL,
    WORKS,
    flop_count,
    make_family,
    measure,
    one_pass,
    release,
    timed,
)
from benchmarks.random_flux import random_module
from benchmarks.tables import machine, parser_of
from chunk_grpo.artifacts import write_json, write_text
from chunk_grpo.families.compiling import compile_blocks
from chunk_grpo.scorers.hpsv3_model import HPSv3Network

NO_DEVICE, MORE = 2, 75
"""Exit status if there is no GPU and `--small` was not given, and while pieces are left."""

KINDS = ("rate", "passes", "ways", "scorer")
"""Kinds of pieces."""

UPDATE = "LoRA, checkpointing"
NATIVE = "native"
BACKENDS = (NATIVE, "_native_flash", "_native_efficient", "flash", "sage")
COMPILED = "compiled blocks"
WAYS = (*BACKENDS, COMPILED)
"""Attention backends of diffusers, and regional torch.compile; a way that is not installed is a row that says so."""

Piece = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Bench:
    """What is measured, and where."""

    small: bool
    device: torch.device
    batch_sizes: tuple[int, ...]
    """Images per pass."""
    min_run_time: float
    """Least seconds of each measurement."""

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        """Name and call of each piece, in order."""
        yield "rate", self.rate
        for work in WORKS:
            yield f"passes/{work}", lambda work=work: self.passes(work)  # type: ignore[misc]  # work bound early
        for way in WAYS:
            yield f"ways/{way}", lambda way=way: self.way(way)  # type: ignore[misc]  # way bound early
        yield "scorer", self.scorer

    def rate(self) -> dict[str, Any]:
        side = 512 if self.small else 8192
        a, b = (torch.randn(side, side, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        seconds = timed(lambda: a @ b, self.min_run_time).median
        return {"tflops": 2 * side**3 / seconds / 1e12}

    def passes(self, work: str) -> dict[str, Any]:
        found = measure(self._size, work, self.batch_sizes, self.min_run_time, self.device)
        return {"cells": [asdict(cell) for cell in found]}

    def way(self, way: str) -> dict[str, Any]:
        """Forward pass and LoRA update at one batch size, by one way of computing the same."""
        found: dict[str, Any] = {"batch_size": self._batch}
        for work in (FORWARD, UPDATE):
            family = make_family(self._size, work, self.device)
            try:
                # diffusers keeps the last backend for all networks of the process.
                family.transformer.set_attention_backend(NATIVE if way == COMPILED else way)
                if way == COMPILED:
                    compile_blocks(family.transformer)
                call = one_pass(family, self._size, work, self._batch, self.device)
                started = time.perf_counter()
                call()
                first = time.perf_counter() - started  # compiled blocks are compiled in it
                found[work] = {"seconds": timed(call, self.min_run_time).median, "first_seconds": first}
            except Exception as error:  # every backend has errors of its own
                found[work] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
            del family
            release(self.device)
        meta = torch.device("meta")
        family = make_family(self._size, FORWARD, meta)
        family.transformer.set_attention_backend(NATIVE)
        with sdpa_kernel(SDPBackend.MATH):
            found["forward_tflop"] = flop_count(one_pass(family, self._size, FORWARD, self._batch, meta)) / 1e12
        return found

    def scorer(self) -> dict[str, Any]:
        """Passes of a random network of HPSv3's size on 448 x 448 pixels with 300 tokens of instruction."""
        text = {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
        }
        vision = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "hidden_size": 3584}
        if self.small:
            text = {**text, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
            text |= {"num_attention_heads": 4, "num_key_value_heads": 2}
            vision = {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 64}
        rotary = {"rope_type": "default", "mrope_section": [2, 3, 3] if self.small else [16, 24, 24]}
        config = Qwen2VLConfig(text_config={**text, "rope_parameters": rotary}, vision_config=vision)
        network = random_module(lambda: HPSv3Network(config), self.device).eval().requires_grad_(False)
        network.rm_head.float()
        rows, side = self._batch, 4 if self.small else 32  # patches of 14 pixels along a side
        image = torch.full((rows, side * side // 4), config.image_token_id)
        before, after = (torch.full((rows, count), 7) for count in (30, 270))
        ids = torch.cat([before, image, after], dim=1).to(self.device)
        ids[:, 29], ids[:, 30 + image.shape[1]] = config.vision_start_token_id, config.vision_end_token_id
        pixels = torch.randn(rows * side * side, 1176, device=self.device, dtype=torch.bfloat16)
        grid = torch.tensor([[1, side, side]] * rows, device=self.device)
        at = torch.full((rows,), ids.shape[1] - 1, device=self.device)

        @torch.no_grad()
        def call() -> object:
            return network(ids, at, pixels, grid).cpu()

        call()
        seconds = timed(call, self.min_run_time).median
        return {"batch_size": rows, "images_per_second": rows / seconds}

    @property
    def _size(self) -> Any:
        return SMALL if self.small else FLUX_DEV

    @property
    def _batch(self) -> int:
        return self.batch_sizes[-1]


def main(options: Sequence[str] | None = None) -> int:
    """Run the pieces that are left; return the exit status."""
    arguments = _parser().parse_args(options)
    console, has_gpu = Console(highlight=False), torch.cuda.is_available()
    if not has_gpu and not arguments.small:
        console.print("There is no CUDA device here. Networks of FLUX.1-dev's size need one; --small runs small ones.")
        return NO_DEVICE
    device = torch.device("cuda" if has_gpu else "cpu")
    sizes = tuple(arguments.batch_sizes)
    bench = Bench(arguments.small, device, sizes, arguments.min_run_time)
    about = machine() | {"device": torch.cuda.get_device_name() if has_gpu else "CPU", "small": arguments.small}
    found: dict[str, Any] = {"machine": about, "batch_sizes": list(sizes), "pieces": {}}
    if arguments.json.exists():
        found["pieces"] = _kept(json.loads(arguments.json.read_text(encoding="utf-8")), about)
    started = time.monotonic()
    for name, piece in bench.pieces():
        if name in found["pieces"] or name.partition("/")[0] not in arguments.only:
            continue
        if time.monotonic() - started > 60 * arguments.minutes:
            console.print(f"{arguments.minutes:g} minutes are over; run again to go on from {name}.")
            return MORE
        console.print(f"{name} ...")
        before = time.monotonic()
        with suppress(torch.OutOfMemoryError):
            found["pieces"][name] = piece()
        result = found["pieces"].setdefault(name, {"error": "out of memory"})
        result["piece_seconds"] = time.monotonic() - before
        release(device)
        # Each file whole at once, so that a call that is killed leaves the last one.
        write_json(found, str(arguments.json))
        write_text(markdown(found), str(arguments.json.with_suffix(".md")))
    console.print(arguments.json.with_suffix(".md").read_text(encoding="utf-8"))
    return 0


def markdown(found: Mapping[str, Any]) -> str:
    """One table: piece, what was measured, value. Shares are of the measured rate of a matrix product."""
    pieces, about = found["pieces"], found["machine"]
    kind = "small networks" if about["small"] else "FLUX.1-dev's size"
    title = f"{about['device']}, {kind}, random weights, bfloat16, commit {about['commit']}, torch {about['torch']}"
    rate = pieces.get("rate", {}).get("tflops")
    lines = [title, "", "| piece | measured | value |", "| --- | --- | ---: |"]
    for name, result in pieces.items():
        lines += [f"| {name} | {what} | {value} |" for what, value in _rows(name, result, rate)]
    return "\n".join(lines) + "\n"


def _rows(name: str, result: Mapping[str, Any], rate: float | None) -> Iterator[tuple[str, str]]:
    kind = name.partition("/")[0]
    if "error" in result:
        yield "not measured", str(result["error"])
    elif kind == "rate":
        yield "matrix product, TFLOP/s", f"{result['tflops']:.4g}"
    elif kind == "passes":
        for cell in result["cells"]:
            text = "out of memory"
            if cell["seconds"] is not None:
                peak = "" if cell["peak_bytes"] is None else f", {cell['peak_bytes'] / 2**30:.1f} GiB"
                speed = cell["tflop"] / cell["seconds"]
                share = f" ({speed / rate:.0%})" if rate else ""
                text = f"{speed:.4g} TFLOP/s{share}, {cell['seconds']:.4g} s{peak}"
            yield f"{cell['batch_size']} images", text
    elif kind == "ways":
        for work, one in result.items():
            if isinstance(one, Mapping):
                text = one["error"].replace("|", "/") if "error" in one else f"{one['seconds']:.4g} s"
                if work == FORWARD and "seconds" in one:
                    text += f", {result['forward_tflop'] / one['seconds']:.4g} TFLOP/s"
                if "first_seconds" in one:
                    text += f", first call {one['first_seconds']:.3g} s"
                yield f"{work}, {result['batch_size']} images", text
    else:
        yield f"images a second, {result['batch_size']} at a time", f"{result['images_per_second']:.4g}"


def _kept(before: Mapping[str, Any], about: Mapping[str, object]) -> dict[str, Any]:
    """Pieces of an earlier call, if it measured the same on the same device."""
    same = all(before["machine"].get(name) == about[name] for name in ("device", "small", "commit"))
    return dict(before["pieces"]) if same else {}


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__)
    parser.add_argument("--small", action="store_true", help="run small networks, on the CPU if there is no GPU")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no piece after this time")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="kinds of pieces (default: all)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 12])
    parser.add_argument("--min-run-time", type=float, default=3.0, help="least seconds of each measurement")
    parser.add_argument(
        "--json", type=Path, default=Path("gpu-report.json"), help="results; finished pieces in it are not repeated"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
