"""Every stage at FLUX.1-dev's sizes on a CPU: `python -m benchmarks.real_size`, about an hour and 15 GB of disk.

The preset `flux-dev` runs by `dvc repro` in a clone of this commit, from 50,400 listed prompts to the report. The
checkpoint has FLUX.1-dev's layout and text encoders, its VAE and its types, random weights and the toy checkpoint's
tokenizers; the transformer has 1 double and 1 single block of 57, and `--heads` of 24 heads, which set its width.
Image size, group, steps, chunks, fraction and optimiser are the preset's. Counts that a CPU cannot pay are reduced, and
all changes are printed. Scorers are the preset's, on small random models.

It prints seconds and peak resident memory of each stage and writes them to the JSON file. Memory is the VmHWM of the
stage's processes, read while they run; "anonymous" is the part that is no mapped file, such as weights read from disk.
`--folder` keeps weights, clone and finished stages, and the next call with it resumes. `--small` runs the toy
checkpoint at its sizes, to check the script.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import torch
from dvc.utils.serialize import dump_yaml, load_yaml
from rich.console import Console

from benchmarks.clones import environment, make_clone
from benchmarks.random_flux import write_random_flux
from benchmarks.tables import machine, print_table
from benchmarks.workloads import TINY
from chunk_grpo.orchestration.presets import composed, edits, overridden
from tests.scorers.random_models import make_models

PRESET, VARIANT = "flux-dev", "chunk-ws"
LISTED, WORDS = 50_400, 20
"""Prompts in the file, and words of each."""

REDUCED = (
    "prompts.eval_count=2",
    "profile.num_prompts=1",
    "profile.num_seeds=1",
    "train.iterations=1",
    "train.prompts_per_iteration=1",
    "train.updates_per_iteration=1",
    "train.rollout_batch_size=4",
    "train.heldout.num_prompts=1",
    "generate.num_steps=10",
    "generate.base_steps=4",
    "report.grid_prompts=2",
)
"""Changes of the preset that a CPU needs: overrides in Hydra's grammar."""

SMALL = (
    *REDUCED,
    "model.dtype=float32",
    "model.max_sequence_length=8",
    *(f"{section}.{side}=32" for section in ("model", "generate") for side in ("height", "width")),
    "prompts.train_count=90",
    "train.group_size=4",
)
"""Changes for the toy checkpoint."""

POLL_SECONDS = 0.1
STDERR = 2
"""Place of DVC's output, so that standard output has the table alone."""


@dataclass
class Peak:
    """What a stage's processes took."""

    stage: str
    """Stage of the DAG."""
    seconds: float = 0.0
    """Wall time, from the start of its first process."""
    peak_mib: float = 0.0
    """Peak resident memory of the largest process."""
    anonymous_mib: float = 0.0
    """Largest part of it that is not a mapped file, as seen every `POLL_SECONDS`."""


def main(options: Sequence[str] | None = None) -> int:
    """Run, print, write; return the exit status of `dvc repro`."""
    arguments = _parser().parse_args(options)
    with _folder(arguments.folder) as folder:
        return run(folder, arguments.heads, arguments.small, arguments.json)


def run(folder: Path, heads: int, small: bool, result: Path) -> int:
    """Run the pipeline in `folder`, where an earlier call may have left its parts."""
    say = Console(stderr=True, highlight=False, soft_wrap=True).print
    about, started = machine(), time.perf_counter()
    write_inputs(folder, heads, small)
    say(f"weights and prompts in {folder} after {time.perf_counter() - started:.0f} s")
    clone = make_clone(folder / "clone")
    changes = configure(clone, folder, small)
    if not small:
        changes.append(f"transformer: 1 double and 1 single block of 19 and 38, {heads} heads of 24")
    for change in changes:
        say(f"changed: {change}", markup=False)
    peaks: dict[str, Peak] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro"], cwd=clone, env=environment(clone), stdout=STDERR
    ) as repro:
        try:
            watch(repro, peaks)
        finally:
            repro.terminate()
            stages = _with_earlier(folder / "peaks.json", peaks)
    found = {"machine": about, "changes": changes, "stages": list(stages.values())}
    result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    rows = (
        [f"`{name}`", *(f"{stage[key]:,.0f}" for key in ("seconds", "peak_mib", "anonymous_mib"))]
        for name, stage in stages.items()
    )
    print_table(
        f"Preset {PRESET}, transformer of 2 layers", ("stage", "seconds", "peak MiB", "anonymous MiB"), rows
    )
    say(", ".join(f"{name} {value}" for name, value in about.items()))
    return repro.returncode


def write_inputs(folder: Path, heads: int, small: bool) -> None:
    """Write checkpoint, scorers' models and prompts, unless an earlier call has."""
    done = folder / "written"
    if done.exists():
        return
    for name in ("model", "scorers"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if small:
        shutil.copytree(TINY, folder / "model")
    else:
        network = {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": heads}
        write_random_flux(folder / "model", torch.device("cpu"), network)
    make_models(folder / "scorers")
    tokenizer = json.loads((TINY / "tokenizer_2" / "tokenizer.json").read_text(encoding="utf-8"))
    words = [word[1:] for word, _ in tokenizer["model"]["vocab"] if word.startswith("▁")]
    draw = random.Random(0)
    texts = (" ".join(draw.choices(words, k=WORDS)) for _ in range(100 if small else LISTED))
    (folder / "prompts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    done.touch()


def configure(clone: Path, folder: Path, small: bool) -> list[str]:
    """Write params.yaml from the preset; return what differs from it."""
    models = folder / "scorers"
    places = {
        "model.checkpoint": folder / "model",
        "model.revision": "null",
        "prompts.train_file.path": folder / "prompts.txt",
        "scorers.hpsv3.model.checkpoint": models / "hpsv3" / "model",
        "scorers.hpsv3.backbone.checkpoint": models / "hpsv3" / "backbone",
        "scorers.imagereward.model.checkpoint": models / "imagereward",
        "scorers.imagereward.tokenizer.checkpoint": models / "imagereward" / "bert-base-uncased",
        "scorers.pickscore.model.checkpoint": models / "clip",
        "scorers.pickscore.processor.checkpoint": models / "clip",
    }
    overrides = [*(f"{key}={value}" for key, value in places.items()), *(SMALL if small else REDUCED)]
    params = overridden(composed(clone, PRESET), overrides, [VARIANT], f"preset {PRESET}, changed")
    dump_yaml(str(clone / "params.yaml"), params)
    return [
        str(edit).replace(str(folder), "...")
        for edit in edits(clone, dict(load_yaml(str(clone / "params.yaml"))))
    ]


def watch(repro: subprocess.Popen[Any], peaks: dict[str, Peak]) -> None:
    """Wait for DVC; put the peaks of its stages into `peaks`, in the order of their starts."""
    ended = Event()
    thread = Thread(target=_sample, args=(psutil.Process(repro.pid), peaks, ended))
    thread.start()
    try:
        repro.wait()
    finally:
        ended.set()
        thread.join()


def _with_earlier(kept: Path, peaks: Mapping[str, Peak]) -> dict[str, Any]:
    """Peaks of all calls in this folder, in the order of the stages; the file `kept` has them for the next call."""
    stages: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    stages |= {name: asdict(peak) for name, peak in peaks.items()}
    kept.write_text(json.dumps(stages))
    return stages


def _sample(root: psutil.Process, peaks: dict[str, Peak], ended: Event) -> None:
    """Read the memory of DVC's processes until it ended."""
    while not ended.wait(POLL_SECONDS):
        stages: dict[int, str] = {}  # by process; a process belongs to the stage of its parent
        with suppress(psutil.NoSuchProcess):
            for process in root.children(recursive=True):
                with suppress(psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError, KeyError):
                    stage = _stage(process.cmdline()) or stages[process.ppid()]
                    stages[process.pid] = stage
                    peak = peaks.setdefault(stage, Peak(stage))
                    memory = _memory(process.pid)
                    peak.peak_mib = max(peak.peak_mib, memory["VmHWM"])
                    peak.anonymous_mib = max(peak.anonymous_mib, memory["RssAnon"])
                    peak.seconds = max(peak.seconds, time.time() - process.create_time())


def _stage(command: Sequence[str]) -> str | None:
    """Stage of a process, by its option --manifest, or its module: `python -m stages.NAME ...`."""
    for option in ("--manifest", "-m"):
        if option in command[:-1] and "stages." in " ".join(command[1:3]):
            return Path(command[command.index(option) + 1].removeprefix("stages.")).stem
    return None


def _memory(pid: int) -> Mapping[str, float]:
    """Fields of a process's status that are sizes, in MiB."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {line[0][:-1]: int(line[1]) / 1024 for line in lines if line[-1] == "kB"}


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="real-size-") as scratch:
        yield Path(scratch)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--heads", type=int, default=8, help="attention heads of the transformer, 128 wide each"
    )
    parser.add_argument("--small", action="store_true", help="run the toy checkpoint at its sizes")
    parser.add_argument("--folder", type=Path, help="for weights and clone, kept (default: temporary)")
    parser.add_argument("--json", type=Path, default=Path("real-size.json"), help="result to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
