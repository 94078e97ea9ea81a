"""Images per second of our batched scoring and of the originals, which score one image at a time.

`python -m benchmarks.scorers --hpsv3-python PYTHON` measures both ways of PickScore and HPSv3 in turn, in rounds, so
that drifts of the machine affect both; it stops if their scores differ, and prints a table. PickScore's original is the
code of its model card, in plain transformers. HPSv3's original is the unmodified package hpsv3 1.0.0 as a worker in its
own interpreter; without the option it is shown as not measured. Its seconds include the transfer of the images, but not
the start. Checkpoints are small, with random weights. Preprocessing (images to pixels, prompts to tokens) is timed by a
further call in every round; the rest of ours is the network.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer
from transformers.utils import logging

from benchmarks.reference_scores import hpsv3_package
from benchmarks.tables import parser_of, print_machine, print_table, spread
from chunk_grpo.config.scorers import PickScoreScorer
from chunk_grpo.errors import DataError
from chunk_grpo.progress import Meter
from chunk_grpo.scorers.base import FloatArray, ScoreBatch
from chunk_grpo.scorers.clip import PickScore
from tests.scorers import checkpoints_clip, checkpoints_hpsv3
from tests.scorers.hpsv3_cases import pictures
from tests.scorers.hpsv3_cases import scorer as hpsv3_scorer
from tests.scorers.samples import batch_of, weights

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
class Pair:
    """Our implementation and the original of one scorer."""

    name: str
    ours: Callable[[], FloatArray]
    """Function that scores all images."""
    original: Callable[[], FloatArray] | None
    """Function that scores all images one at a time; None: not available."""
    preprocess: Callable[[], object]
    """Our preprocessing alone."""
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "original": [], "preprocessing": []})
    """Measured seconds for all images by "ours", "original" and "preprocessing", one number per round."""

    def run(self) -> None:
        """Measure one round; the scores of both must be the same."""
        values = self._timed("ours", self.ours)
        if self.original is not None:
            check_same(self.name, values, self._timed("original", self.original))
        self._timed("preprocessing", self.preprocess)

    def cells(self, images: int) -> list[str]:
        """Row of the table, without the first round, which is a warm-up."""
        ours, original, before = (seconds[1:] for seconds in self.seconds.values())
        gains = [theirs / mine for theirs, mine in zip(original, ours, strict=False)]
        total, part = (1e3 * statistics.median(seconds) / images for seconds in (ours, before))
        return [
            self.name,
            spread([images / seconds for seconds in original]) if original else NOT_MEASURED,
            spread([images / seconds for seconds in ours]),
            spread(gains) if gains else NOT_MEASURED,
            f"{part:.1f}",
            f"{total - part:.1f}",
            f"{part / total:.0%}",
        ]

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = call()
        self.seconds[name].append(time.perf_counter() - start)
        return found


def main(options: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(options)
    logging.disable_progress_bar()  # it would disturb our own
    images, side, rounds = arguments.images, arguments.side, arguments.rounds
    grouped, apart = (make_batch(images, side, group) for group in (GROUP, 1))
    with TemporaryDirectory() as name, ExitStack() as stack, Meter("scorers", 3 * (rounds + 1)) as meter:
        pairs = (
            pickscore(Path(name), f"PickScore, {GROUP} images a prompt", grouped),
            pickscore(Path(name), "PickScore, 1 image a prompt", apart),
            hpsv3(Path(name), f"HPSv3, {GROUP} images a prompt", grouped, arguments, stack),
        )
        for _ in range(rounds + 1):
            for pair in pairs:
                pair.run()
                meter.advance(note=pair.name)
    title = f"Scoring {images} images of {side} x {side} pixels; medians of {rounds} (least to largest)"
    print_table(title, COLUMNS, [pair.cells(images) for pair in pairs])
    print_machine()


def make_batch(images: int, side: int, group: int) -> ScoreBatch:
    """A batch of images with `group` consecutive images per prompt."""
    numbers = [row // group for row in range(images)]
    return batch_of(pictures(images, side, side), [f"{PROMPTS[number % len(PROMPTS)]}, {number}" for number in numbers])


def check_same(name: str, ours: FloatArray, original: FloatArray) -> None:
    """Check that both implementations compute the same scores."""
    if ours.shape != original.shape or not np.allclose(ours, original, rtol=RELATIVE, atol=ABSOLUTE):
        raise DataError(f"{name}: ours gives {ours.tolist()}, the original {original.tolist()}")


def pickscore(folder: Path, name: str, batch: ScoreBatch) -> Pair:
    """PickScore: ours, and the code of the model card."""
    checkpoint = checkpoints_clip.make_clip(folder / "clip", sizes=CLIP_SIZES)
    settings = PickScoreScorer(
        kind="pickscore",
        splits=("test",),
        batch_size=len(batch),
        model=weights(checkpoint),
        processor=weights(checkpoint),
        dtype="float32",
        scale="logit",
    )
    scorer = PickScore("pickscore", settings, "cpu")
    _, processor = scorer.models

    def preprocess() -> object:
        return processor.pixels(batch.images), processor.tokens(list(dict.fromkeys(batch.prompts)))

    return Pair(name, lambda: scorer.score(batch).values, published_pickscore(str(checkpoint), batch), preprocess)


def published_pickscore(checkpoint: str, batch: ScoreBatch) -> Callable[[], FloatArray]:
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

    return lambda: np.array([score(*row) for row in zip(images, batch.prompts, strict=True)])


def hpsv3(folder: Path, name: str, batch: ScoreBatch, arguments: argparse.Namespace, stack: ExitStack) -> Pair:
    """HPSv3: ours, and the package if its interpreter is given."""
    home = checkpoints_hpsv3.make_hpsv3(folder / "hpsv3", sizes=HPSV3_SIZES)
    scorer = hpsv3_scorer(home, batch_size=arguments.batch_size)
    model = scorer.models
    original = None
    if arguments.hpsv3_python is not None:
        package = hpsv3_package(scorer.settings, arguments.hpsv3_python, "cpu")
        stack.callback(package.close)
        package.check()

        def original() -> FloatArray:
            return package.score(batch).values

    def preprocess() -> None:
        for first in range(0, len(batch), arguments.batch_size):
            rows = batch.rows(range(len(batch))[first : first + arguments.batch_size])
            model.inputs(rows.images, rows.prompts)

    return Pair(name, lambda: scorer.score(batch).values, original, preprocess)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--side", type=int, default=512, help="image side in pixels")
    parser.add_argument(
        "--batch-size", type=int, default=8, help="batch size of HPSv3; PickScore scores all images at once"
    )
    parser.add_argument("--hpsv3-python", type=Path, help="interpreter with hpsv3 1.0.0")
    return parser


if __name__ == "__main__":
    main()
