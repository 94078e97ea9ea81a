"""What training changes in the images besides the score: `python -m benchmarks.studies.semantic_stability CHECKOUT`.

CHECKOUT has a finished run on the shapes world. Every image is compared with the base model's image of the same prompt
and noise: does the detector find the same shapes, and the same shapes in the same colours? Beside it: the agreement of
two images of a prompt, and statistics of the image that drift when a reward is hacked.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.finished_run import parser_of_study
from benchmarks.tables import print_table, write_found
from chunk_grpo.artifacts import read_table
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.config import load_params
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.image_files import decode_image
from chunk_grpo.progress import Meter
from chunk_grpo.reporting.comparisons import interval_text, signed
from chunk_grpo.reporting.statistics import crossed_interval
from chunk_grpo.shapes.detect import MIN_CONFIDENCE, detect
from chunk_grpo.training.image_statistics import colour_entropy, edge_density, group_diversity, saturation

BASE = ("base", "base")
AS_BASE = ("same shapes", "same shapes and colours")
"""Measures against the base's image: 1 for the base itself."""

Policy = tuple[str, str]
"""(variant, mode)."""
Found = list[tuple[str, str]]
"""Shape and colour of each detection."""


def main(options: Sequence[str] | None = None) -> int:
    """Detect, compare, print, write."""
    parser = parser_of_study(__doc__, "semantic_stability")
    parser.add_argument("--variants", nargs="+", help="variants (default: all)")
    arguments = parser.parse_args(options)
    try:
        values, captions = measure(arguments.checkout, arguments.variants)
    except (ConfigError, DataError) as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    rows, record = [], []
    for (variant, mode), measures in values.items():
        is_base, cells = (variant, mode) == BASE, []
        for name, matrix in measures.items():
            absolute = is_base or name in AS_BASE
            found = crossed_interval(matrix if absolute else matrix - values[BASE][name], captions=captions)
            if is_base:
                cells.append(f"{found.mean:.3f}")
            elif absolute:
                cells.append(f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f})")
            else:
                cells.append(f"{signed(found.mean)} ({interval_text(found)})")
            interval = {"mean": found.mean, "low": found.low, "high": found.high}
            record.append({"variant": variant, "mode": mode, "measure": name, **interval})
        rows.append(["base" if is_base else f"{variant}, {mode}", *cells])
    print_table(
        "Images beside the base's: agreement with it, then differences from it, 95 % intervals",
        ("policy", *values[BASE]),
        rows,
    )
    write_found(arguments.json, values=record)
    return 0


def measure(
    checkout: Path, variants: Sequence[str] | None
) -> tuple[dict[Policy, dict[str, NDArray[np.float64]]], list[str]]:
    """Measures [seeds, prompts] of every policy, the base first with one row, and the prompts' captions.

    Of all variants if `variants` is None. The prompts must be of the shapes world.
    """
    params = load_params(checkout / "params.yaml")
    if params.prompts.source != "shapes":
        raise ConfigError(
            f"{checkout / 'params.yaml'}: prompts.source: must be shapes, whose detector needs no model, "
            f"got {params.prompts.source}"
        )
    at = Layout.below(checkout)
    table = read_table(at.prompts, "prompts").to_pylist()
    captions = {row["prompt_id"]: row["prompt"] for row in table if row["split"] == "eval"}
    rows: dict[Policy, dict[str, list[list[float]]]] = {}
    of_base: dict[str, list[Found]] = {}
    policies = (BASE[0], *(params.variants if variants is None else variants))
    with Meter("policies", len(policies)) as meter:
        for variant in policies:
            seeds = (None,) if variant == BASE[0] else params.train.seeds
            paths = [Path(at.drawn(variant, seed)) for seed in seeds]
            for (mode, _seed), images in sorted(_images(paths, captions).items()):
                detected = {name: [_found(image) for image in images[name]] for name in captions}
                of_base = of_base or detected
                each = [_measures(images[name], detected[name], of_base[name]) for name in captions]
                for name in each[0]:
                    of_policy = rows.setdefault((variant, mode), {}).setdefault(name, [])
                    of_policy.append([one[name] for one in each])
            meter.advance()
    found = {policy: {name: np.array(values) for name, values in of.items()} for policy, of in rows.items()}
    return found, list(captions.values())


def agreement(
    first: Found, second: Found, part: Callable[[tuple[str, str]], Any] = lambda pair: pair
) -> float:
    """Number of detections that two images share, divided by the number of those that one or both have.

    Two images without detections have 1. `part` is the part of a detection that must be equal.
    """
    a, b = Counter(map(part, first)), Counter(map(part, second))
    together = (a | b).total()
    return (a & b).total() / together if together else 1.0


def _measures(
    images: Sequence[NDArray[np.uint8]], found: Sequence[Found], base: Sequence[Found]
) -> dict[str, float]:
    """Means over the images of a prompt."""
    floats = np.stack(images).transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    pairs = list(zip(found, base, strict=True))
    values = {
        AS_BASE[0]: np.mean([agreement(a, b, lambda pair: pair[0]) for a, b in pairs]),
        AS_BASE[1]: np.mean([agreement(a, b) for a, b in pairs]),
        "saturation": saturation(floats).mean(),
        "edge density": edge_density(floats).mean(),
        "colour entropy, bits": colour_entropy(floats).mean(),
    }
    if len(images) > 1:
        values["agreement of two images"] = np.mean([agreement(a, b) for a, b in combinations(found, 2)])
        values["diversity"] = group_diversity(floats, len(images))[0]
    return {name: float(value) for name, value in values.items()}


def _found(image: NDArray[np.uint8]) -> Found:
    detections = detect(image.transpose(2, 0, 1) / np.float32(255))
    return [(each.shape, each.colour) for each in detections if each.confidence >= MIN_CONFIDENCE]


def _images(
    folders: Sequence[Path], prompts: Mapping[str, str]
) -> dict[tuple[str, int], dict[str, list[NDArray[np.uint8]]]]:
    """(mode, training seed) to the images of each prompt, in the order of their samples."""
    rows = [
        row for folder in folders for row in read_table(str(folder / "images.parquet"), "images").to_pylist()
    ]
    found: dict[tuple[str, int], dict[str, list[NDArray[np.uint8]]]] = {}
    for row in sorted(rows, key=lambda row: row["sample"]):
        if row["prompt_id"] in prompts:
            image = decode_image(row["image"]["bytes"], row["image"]["path"])
            of_policy = found.setdefault((row["mode"], row["train_seed"]), {})
            of_policy.setdefault(row["prompt_id"], []).append(image)
    return found


if __name__ == "__main__":
    sys.exit(main())
