"""Manual check on real weights: compare our scores with those that the authors publish or their package computes.

    python -m benchmarks.reference_scores imagereward --model FOLDER --tokenizer FOLDER --images FOLDER
    python -m benchmarks.reference_scores hpsv3 --model FOLDER --backbone FOLDER --images FOLDER --hpsv3-python PYTHON

The first scores the four images of ImageReward's README, which gives their values; the folder is assets/images of
github.com/THUDM/ImageReward. The second scores the two images of HPSv3's README; the folder is assets of
github.com/MizzenAI/HPSv3. Their values are not published, so the unmodified package hpsv3 1.0.0 scores them in its own
interpreter; without --hpsv3-python only our scores are printed. Nothing is downloaded.

Exit code: 0 all differences are small, 1 a difference is too large, 2 a package is missing, 3 a file is missing or
broken.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.tables import parser_of, print_machine, print_table
from chunk_grpo.config.scorers import HPSv3Scorer, ImageRewardScorer, InSubprocess
from chunk_grpo.errors import ChunkGrpoError, DataError
from chunk_grpo.image_files import read_picture
from chunk_grpo.scorers.base import FloatArray, ScoreBatch, Scorer
from chunk_grpo.scorers.running.configured import chosen_device
from chunk_grpo.scorers.running.placing import place_scorer
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.scorers.workers import worker_protocol

IMAGEREWARD_PROMPT = "a painting of an ocean with clouds and birds, day time, low depth field effect"
IMAGEREWARD = {"1.webp": 0.5812, "2.webp": 0.2745, "3.webp": -1.4132, "4.webp": -2.0296}
"""Values in README.md of THUDM/ImageReward, to four digits; according to it the last digits depend on the device."""

HPSV3_PROMPT = "cute chibi anime cartoon fox, smiling wagging tail with a small cartoon heart above sticker"
HPSV3 = ("example1.png", "example2.png")
"""Images in README.md of MizzenAI/HPSv3."""

IMAGEREWARD_TOLERANCE = 0.01
HPSV3_TOLERANCES: Mapping[str, float] = {"bfloat16": 0.1, "float32": 0.01}
"""Tolerance by dtype; HPSv3's scores are about 10, which bfloat16 represents to two digits."""

HPSV3_WORKER = Path(worker_protocol.__file__).parents[1] / "hpsv3_package.py"
"""The package as a worker."""

SECONDS = 3600.0
"""Time limit of the package for loading, and for an image; on a CPU real weights take minutes."""

DIFFERS = 1
"""Exit code for scores that differ; exit codes of errors are in chunk_grpo.errors."""


def main(options: Sequence[str] | None = None) -> int:
    """Score and print; return the exit code."""
    arguments = _parser().parse_args(options)
    try:
        return imagereward(arguments) if arguments.scorer == "imagereward" else hpsv3(arguments)
    except ChunkGrpoError as error:
        Console(stderr=True, soft_wrap=True).print(f"error: {error}", markup=False, highlight=False)
        return error.exit_code


def imagereward(arguments: argparse.Namespace) -> int:
    """Compare our ImageReward with the values of its README."""
    settings = ImageRewardScorer.model_validate(_settings(arguments, "model", "tokenizer"))
    files = find_images(arguments.images, list(IMAGEREWARD), "assets/images of github.com/THUDM/ImageReward")
    ours = scored(make_scorer("imagereward", settings, arguments.device), files, IMAGEREWARD_PROMPT)
    published = np.array(list(IMAGEREWARD.values()))
    return compare("ImageReward", files, ours, "published", published, IMAGEREWARD_TOLERANCE)


def hpsv3(arguments: argparse.Namespace) -> int:
    """Compare our HPSv3 with its package."""
    settings = HPSv3Scorer.model_validate(_settings(arguments, "model", "backbone"))
    files = find_images(arguments.images, HPSV3, "assets of github.com/MizzenAI/HPSv3")
    # Ours runs first and frees its memory before the package starts: 16 GB each.
    ours = scored(make_scorer("hpsv3", settings, arguments.device), files, HPSV3_PROMPT)
    if arguments.hpsv3_python is None:
        rows = [(path.name, f"{value:.4f}") for path, value in zip(files, ours, strict=True)]
        print_table("HPSv3", ("image", "ours"), rows)
        say("HPSv3 has no published values. Set --hpsv3-python to compute them with the package hpsv3 1.0.0.")
        return 0
    package = hpsv3_package(settings, arguments.hpsv3_python, chosen_device(arguments.device))
    theirs = scored(package, files, HPSV3_PROMPT)
    return compare("HPSv3", files, ours, "hpsv3 1.0.0", theirs, HPSV3_TOLERANCES[arguments.dtype])


def hpsv3_package(settings: HPSv3Scorer, python: Path, device: str) -> Scorer:
    """The unmodified package hpsv3 1.0.0 in its own interpreter, one image at a time; not started yet."""
    executor = InSubprocess(
        kind="subprocess",
        python=str(python),
        script=str(HPSV3_WORKER),
        device=device,
        start_seconds=SECONDS,
        timeout_seconds=SECONDS,
    )
    return place_scorer("hpsv3", settings.model_copy(update={"batch_size": 1}), executor)


def find_images(folder: Path, names: Sequence[str], source: str) -> list[Path]:
    """Paths of the images; the error for missing ones lists them and their source."""
    files = [folder / name for name in names]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise DataError(f"--images: no {', '.join(missing)} in {folder}. Take the folder {source}.")
    return files


def scored(scorer: Scorer, files: Sequence[Path], prompt: str) -> FloatArray:
    """Score images one at a time, since their sizes may differ, and close the scorer."""
    scorer.check()
    values = [scorer.score(ScoreBatch(read_picture(path)[None], [prompt], [{}], [0])).values for path in files]
    scorer.close()
    return np.concatenate(values)


def compare(
    name: str, files: Sequence[Path], ours: FloatArray, source: str, expected: FloatArray, tolerance: float
) -> int:
    """Print a table of our values and the expected ones of `source`, and the verdict; return 0 or DIFFERS."""
    rows = [
        (path.name, f"{theirs:.4f}", f"{value:.4f}", f"{value - theirs:+.4f}")
        for path, theirs, value in zip(files, expected, ours, strict=True)
    ]
    print_table(name, ("image", source, "ours", "difference"), rows)
    print_machine()
    worst = int(np.abs(ours - expected).argmax())
    difference = abs(ours[worst] - expected[worst])
    if difference > tolerance:
        say(
            f"{name} differs: {files[worst].name} is {difference:.4f} off the value {source}, over {tolerance:g}. "
            "Check that weights and images are the originals."
        )
        return DIFFERS
    say(f"{name} agrees: no difference is larger than {tolerance:g}.")
    return 0


def say(text: str) -> None:
    Console(soft_wrap=True, highlight=False).print(text, markup=False)


def _settings(arguments: argparse.Namespace, *parts: str) -> dict[str, object]:
    """Settings of a scorer, one image at a time, with the folders of the options named in `parts`."""
    folders = {part: {"checkpoint": str(getattr(arguments, part)), "revision": None} for part in parts}
    fixed = {"kind": arguments.scorer, "splits": ("check",), "batch_size": 1, "dtype": arguments.dtype}
    return fixed | folders


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__)
    kinds = parser.add_subparsers(dest="scorer", required=True)
    first = kinds.add_parser("imagereward", help="compare with the values of its README")
    first.add_argument("--model", type=Path, required=True, help="folder with ImageReward.pt and med_config.json")
    first.add_argument("--tokenizer", type=Path, required=True, help="folder of bert-base-uncased")
    second = kinds.add_parser("hpsv3", help="compare with the package hpsv3 1.0.0")
    second.add_argument("--model", type=Path, required=True, help="folder with HPSv3.safetensors")
    second.add_argument("--backbone", type=Path, required=True, help="folder of Qwen2-VL-7B-Instruct")
    second.add_argument(
        "--hpsv3-python", type=Path, help="interpreter with the package hpsv3 1.0.0, which needs a GPU for bfloat16"
    )
    for part, dtype in ((first, "float32"), (second, "bfloat16")):
        part.add_argument("--images", type=Path, required=True, help="folder with the README's images")
        part.add_argument("--dtype", choices=("float32", "bfloat16"), default=dtype)
        part.add_argument("--device", help="such as cuda:0; by default the first GPU, else the CPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())
