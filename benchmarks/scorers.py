"""Images per second of our batched scoring and of the originals, which score one image at a time.

`python -m benchmarks.scorers --hpsv3-python PYTHON` measures both ways of PickScore and HPSv3 in turn, in rounds, so
that drifts of the machine affect both; it stops if their scores differ, and prints a table. PickScore's original is the
code of its model card, in plain transformers. HPSv3's original is the unmodified package hpsv3 1.0.0 in its own
interpreter; loading it and sending it images are not counted; without the option it is shown as not measured.
Checkpoints are small, with random weights. The time of ours is split into preprocessing (images to pixels, prompts to
tokens) and the network, by a further call of each part in every round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from benchmarks.configurations import quiet
from benchmarks.hpsv3_package import hpsv3_package
from benchmarks.machine import machine
from benchmarks.sheets import Sheet, spread
from chunk_grpo.config.scorers import PickScoreScorer, Weights
from chunk_grpo.errors import DataError
from chunk_grpo.progress import Meter
from chunk_grpo.scorers.base import FloatArray, ScoreBatch
from chunk_grpo.scorers.clip import PickScore
from tests.scorers import checkpoints_clip, checkpoints_hpsv3
from tests.scorers.hpsv3_cases import pictures
from tests.scorers.hpsv3_cases import scorer as hpsv3_scorer
from tests.scorers.samples import batch_of

CLIP_SIZES = checkpoints_clip.Sizes(width=128, layers=12, heads=2, patch=32, image=224)
"""CLIP ViT-B/32 with a quarter of its widths."""

HPSV3_SIZES = checkpoints_hpsv3.Sizes(width=128, layers=4, heads=4)
PROMPTS = ("a photo of a red circle", "a cat", "two blue squares in the snow, oil on canvas", "the red cat")
RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""Tolerances of the scores, for different orders of summation."""

GROUP = 8
"""Images per prompt. Our PickScore encodes a prompt once for all its images, the original once per image."""

NOT_MEASURED = "not measured"
COLUMNS = (
    "scorer",
    "original, images/s",
    "ours, images/s",
    "ours to original, in a round",
    "preprocessing, ms an image",
    "network, ms an image",
    "share of preprocessing",
)


@dataclass(frozen=True)
class Contest:
    """Our implementation and the original of one scorer.

    Attributes:
        name: Name of the row.
        ours: Function that scores all images.
        original: Function that scores all images one at a time, and returns scores and seconds; None: not available.
        parts: Function that returns the seconds of our preprocessing and of our network.
    """

    name: str
    ours: Callable[[], FloatArray]
    original: Callable[[], tuple[FloatArray, float]] | None
    parts: Callable[[], tuple[float, float]]


@dataclass
class Times:
    """Seconds for all images, one number per round."""

    images: int
    ours: list[float] = field(default_factory=list)
    original: list[float] = field(default_factory=list)
    preprocessing: list[float] = field(default_factory=list)
    network: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        """Row of the table without the name."""
        before, network = (
            1e3 * statistics.median(part) / self.images for part in (self.preprocessing, self.network)
        )
        gains = [theirs / ours for theirs, ours in zip(self.original, self.ours, strict=False)]
        return [
            _if_measured([self.images / each for each in self.original]),
            spread([self.images / each for each in self.ours]),
            _if_measured(gains),
            f"{before:.1f}",
            f"{network:.1f}",
            f"{before / (before + network):.0%}",
        ]


def _if_measured(numbers: Sequence[float]) -> str:
    return spread(numbers) if numbers else NOT_MEASURED


def main(options: Sequence[str] | None = None) -> None:
    """Measure and print."""
    arguments = _parser().parse_args(options)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
        os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # for the package's process
    quiet()
    grouped, apart = (make_batch(arguments.images, arguments.side, group) for group in (GROUP, 1))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        contests = [
            stack.enter_context(contest)
            for contest in (
                pickscore(folder, f"PickScore, {GROUP} images a prompt", grouped),
                pickscore(folder, "PickScore, 1 image a prompt", apart),
                hpsv3(folder, f"HPSv3, {GROUP} images a prompt", grouped, arguments),
            )
        ]
        found = measured(contests, arguments.images, arguments.rounds)
    title = (
        f"Scoring {arguments.images} images of {arguments.side} x {arguments.side} pixels; "
        f"medians of {arguments.rounds} (least to largest)"
    )
    sheet = Sheet(title, COLUMNS, [[name, *times.cells()] for name, times in found.items()])
    console = Console()
    console.print(
        sheet.as_markdown() if arguments.markdown else sheet.for_terminal(), markup=False, soft_wrap=True
    )
    console.print(
        f"\nPickScore: CLIP with {CLIP_SIZES}, all images at once. HPSv3: Qwen2-VL with {HPSV3_SIZES}, "
        f"{arguments.batch_size} images at once. Where both were run, their scores agree to {RELATIVE:g}.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        ", ".join(f"{name} {value}" for name, value in machine().items()), highlight=False, soft_wrap=True
    )


def make_batch(images: int, side: int, group: int) -> ScoreBatch:
    """A batch of images with `group` consecutive images per prompt."""
    numbers = [row // group for row in range(images)]
    return batch_of(
        pictures(images, side, side), [f"{PROMPTS[number % len(PROMPTS)]}, {number}" for number in numbers]
    )


def measured(contests: Sequence[Contest], images: int, rounds: int) -> dict[str, Times]:
    """Measure both implementations of every scorer in turn, in rounds; the first round is a warm-up.

    Raises:
        DataError: The scores of both differ.
    """
    found = {contest.name: Times(images) for contest in contests}
    with Meter("scorers", (rounds + 1) * len(contests)) as meter:
        for number in range(rounds + 1):
            for contest in contests:
                times = found[contest.name] if number else Times(images)
                start = time.perf_counter()
                values = contest.ours()
                times.ours.append(time.perf_counter() - start)
                if contest.original is not None:
                    expected, seconds = contest.original()
                    times.original.append(seconds)
                    check_same(contest.name, values, expected)
                before, network = contest.parts()
                times.preprocessing.append(before)
                times.network.append(network)
                meter.advance(note=contest.name)
    return found


def check_same(name: str, ours: FloatArray, original: FloatArray) -> None:
    """Check that both implementations compute the same scores.

    Raises:
        DataError: The scores differ.
    """
    if ours.shape != original.shape or not np.allclose(ours, original, rtol=RELATIVE, atol=ABSOLUTE):
        raise DataError(f"{name}: ours gives {ours.tolist()}, the original {original.tolist()}")


@contextmanager
def pickscore(folder: Path, name: str, batch: ScoreBatch) -> Iterator[Contest]:
    """PickScore: ours, and the code of the model card."""
    checkpoint = str(checkpoints_clip.make_clip(folder / "clip", sizes=CLIP_SIZES))
    weights = Weights(checkpoint=checkpoint, revision=None)
    settings = PickScoreScorer(
        kind="pickscore",
        splits=("test",),
        batch_size=len(batch),
        model=weights,
        processor=weights,
        dtype="float32",
        scale="logit",
    )
    scorer = PickScore("pickscore", settings, "cpu")
    encoder, processor = scorer._load()

    def parts() -> tuple[float, float]:
        start = time.perf_counter()
        pixels = processor.pixels(batch.images)
        tokens = processor.tokens(list(dict.fromkeys(batch.prompts)))
        between = time.perf_counter()
        encoder.embed_images(pixels)
        encoder.embed_texts(*tokens)
        return between - start, time.perf_counter() - between

    yield Contest(name, lambda: scorer.score(batch).values, published_pickscore(checkpoint, batch), parts)
    scorer.close()


def published_pickscore(checkpoint: str, batch: ScoreBatch) -> Callable[[], tuple[FloatArray, float]]:
    """Function that scores one image at a time like the model card of yuvalkirstain/PickScore_v1."""
    model = CLIPModel.from_pretrained(checkpoint).eval()
    processor = CLIPImageProcessorPil.from_pretrained(checkpoint)
    tokenizer = CLIPTokenizer.from_pretrained(checkpoint)
    images = [Image.fromarray(image) for image in batch.images]

    @torch.no_grad()
    def score(image: Image.Image, prompt: str) -> float:
        pixels = processor(images=image, return_tensors="pt")
        tokens = tokenizer(prompt, padding=True, truncation=True, max_length=77, return_tensors="pt")
        of_image = model.get_image_features(**pixels).pooler_output
        of_text = model.get_text_features(**tokens).pooler_output
        of_image, of_text = (each / each.norm(dim=-1, keepdim=True) for each in (of_image, of_text))
        return float(model.logit_scale.exp() * (of_text @ of_image.T)[0, 0])

    def run() -> tuple[FloatArray, float]:
        start = time.perf_counter()
        values = np.array([score(*row) for row in zip(images, batch.prompts, strict=True)])
        return values, time.perf_counter() - start

    return run


@contextmanager
def hpsv3(folder: Path, name: str, batch: ScoreBatch, arguments: argparse.Namespace) -> Iterator[Contest]:
    """HPSv3: ours, and the package if its interpreter is given."""
    python, batch_size = arguments.hpsv3_python, arguments.batch_size
    home = checkpoints_hpsv3.make_hpsv3(folder / "hpsv3", sizes=HPSV3_SIZES)
    scorer = hpsv3_scorer(home, batch_size=batch_size)
    model = scorer._load()

    def parts() -> tuple[float, float]:
        before = network = 0.0
        for first in range(0, len(batch), batch_size):
            rows = batch.rows(range(len(batch))[first : first + batch_size])
            start = time.perf_counter()
            inputs = model.inputs(rows.images, rows.prompts)
            between = time.perf_counter()
            with torch.inference_mode():
                model.network(**inputs)
            before, network = before + between - start, network + time.perf_counter() - between
        return before, network

    with ExitStack() as stack:
        original = None
        if python is not None:
            files = [folder / f"{row:04d}.png" for row in range(len(batch))]
            for path, image in zip(files, batch.images, strict=True):
                Image.fromarray(image).save(path)
            package = stack.enter_context(
                hpsv3_package(
                    python,
                    home / "model",
                    home / "backbone",
                    files,
                    batch.prompts,
                    dtype="float32",
                    device="cpu",
                )
            )

            def original() -> tuple[FloatArray, float]:
                scored = package.score()
                return scored.values, scored.seconds

        yield Contest(name, lambda: scorer.score(batch).values, original, parts)
    scorer.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--side", type=int, default=512, help="image side in pixels")
    parser.add_argument(
        "--batch-size", type=int, default=8, help="batch size of HPSv3; PickScore scores all images at once"
    )
    parser.add_argument("--threads", type=int, help="number of torch threads (default: torch's)")
    parser.add_argument("--hpsv3-python", type=Path, help="interpreter with hpsv3 1.0.0")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    return parser


if __name__ == "__main__":
    main()
