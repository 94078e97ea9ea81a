"""The page of many variants, with every metric that the trainer writes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from stages import report
from stages._stage import run_stage

VARIANTS = ("dance", "chunk", "chunk-ws", "a", "b", "c", "d", "e")


class Run(Protocol):
    root: Path

    @property
    def options(self) -> list[str]: ...


def optional_rows(variant: str, seed: int) -> list[dict[str, object]]:
    """Metrics with eight chunks for most variants, sixteen for one, and a recomputed plan for another."""
    rows: list[tuple[int, str, float]] = []
    for iteration in (1, 2, 3):
        values = {"trained_steps": 256.0, "kl": 0.001, "degenerate_groups": 1.0, "fidelity_p99": 2e-5}
        values |= {f"chunk_draws/{chunk}": 4.0 for chunk in range(16 if variant == "dance" else 8)}
        values["chunk_clip_fraction/0"] = 0.25
        if variant == "chunk":
            values |= {"profile_drift": 0.1, "boundary_shift": 0.5, "chunk_size/0": 9.0, "chunk_size/1": 7.0}
        rows += [(iteration, metric, value) for metric, value in values.items()]
    looks = [
        f"heldout_images/{name}" for name in ("saturation", "edge_density", "colour_entropy", "diversity")
    ]
    rows += [(at, metric, 0.5) for metric in ("heldout/shapes-exact", *looks) for at in (0, 5)]
    names = ("iteration", "metric", "value")
    return [{"variant": variant, "train_seed": seed, **dict(zip(names, row, strict=True))} for row in rows]


@pytest.fixture(scope="module")
def files(crowd: Callable[[tuple[str, ...]], Run]) -> dict[str, bytes]:
    run = crowd(VARIANTS)
    for variant in VARIANTS:
        path = run.root / "train" / variant / "metrics.parquet"
        rows = read_table(path, "train_metrics").to_pylist()
        rows += [row for seed in (0, 1, 2) for row in optional_rows(variant, seed)]
        write_table(table_from_rows(rows, "train_metrics"), path, "train_metrics")
    params = json.loads((run.root / "params.yaml").read_text())
    params["train"]["iterations"] = 40  # the metrics end at 30
    (run.root / "params.yaml").write_text(json.dumps(params))
    assert run_stage(report.main, report.Arguments, run.options) == 0
    folder = run.root / "report"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_image_grid_comes_in_parts(files: dict[str, bytes]) -> None:
    html, markdown = files["index.html"].decode(), files["report.md"].decode()
    assert html.count("<img") == 2 * 4 * 9  # base and four variants in two modes, four prompts, twice
    assert "<summary>b, c, d, e</summary>" in html
    assert {"grid.png", "grid-2.png"} <= set(files)
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", markdown)
    assert sorted(pictures) == sorted(name for name in files if name.endswith(".png"))


def test_pairs_with_the_first_variant_stand_outside(files: dict[str, bytes]) -> None:
    html = files["index.html"].decode()
    outside, inside = html.split("<summary>All 28 pairs of variants</summary>")
    assert outside.count(" − dance</th>") == 7
    assert "e − d</th>" not in outside
    assert "e − d</th>" in inside
    assert len(files["plots/pairs.csv"].decode().splitlines()) == 1 + 28


def test_chips_show_the_dash_of_the_seventh_variant_on(files: dict[str, bytes]) -> None:
    html = files["index.html"].decode()
    assert '<li class="chip line dash-0" style="--c:var(--variant-5)">c</li>' in html
    assert '<li class="chip line dash-1" style="--c:var(--variant-0)">d</li>' in html
    assert ".chip.dash-1::before" in html


def test_training_in_numbers_and_pictures(files: dict[str, bytes]) -> None:
    html = files["index.html"].decode()
    titles = re.findall(r"<h3>([^<]+)</h3>", html)
    assert titles[:5] == [
        "Is the reward being hacked?",
        "Where training ended",
        "How they trained",
        "Chunks drawn and clipped",
        "Plans recomputed during training",
    ]
    assert html.count('aria-label="Line chart by iteration, held-out images') == 5
    assert "⚠ 20%" in html  # 2e-5 of the clip range 1e-4
    assert "30, 30, 30" in html
    assert "[9, 7]" in html
    draws = files["plots/chunk_draws.csv"].decode().splitlines()
    assert len(draws) == 1 + 16 + 7 * 8
    assert draws[1] == "dance,0,36,0.0625,0.25"  # 4 draws x 3 iterations x 3 seeds
    assert files["plots/how_trained.csv"].decode().startswith("variant,images,trained_items,")
