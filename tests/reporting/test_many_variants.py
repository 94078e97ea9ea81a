"""The page of many variants, with every metric that the trainer writes."""

import re

import pytest

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.reporting.content import SECTIONS, Content
from chunk_grpo.reporting.page import grid_pictures, plot_files, render
from chunk_grpo.reporting.panels import panel_figures
from tests.reporting.conftest import Run, write_run

VARIANTS = ("dance", "chunk", "chunk-ws", "a", "b", "c", "d", "e")


def optional_rows(variant: str, seed: int) -> list[dict[str, object]]:
    """Metrics with eight chunks for most variants, sixteen for one, and a recomputed plan for another."""
    rows: list[tuple[int, str, float]] = []
    for iteration in (1, 2, 3):
        values = {"trained_steps": 256.0, "kl": 0.001, "degenerate_groups": 1.0, "fidelity_p99": 2e-5}
        values |= {f"chunk_draws/{chunk}": 4.0 for chunk in range(16 if variant == "dance" else 8)}
        values["chunk_clip_fraction/0"] = 0.25
        if iteration == 3:
            values |= {f"step_{name}/1/{step}": 0.5 for name in ("clip_fraction", "log_ratio") for step in range(16)}
            values["distance_from_base"] = 0.02
        if variant == "chunk":
            values |= {"profile_drift": 0.1, "boundary_shift": 0.5, "chunk_size/0": 9.0, "chunk_size/1": 7.0}
        rows += [(iteration, metric, value) for metric, value in values.items()]
    looks = [f"heldout_images/{name}" for name in ("saturation", "edge_density", "colour_entropy", "diversity")]
    rows += [(at, metric, 0.5) for metric in ("heldout/shapes-exact", *looks) for at in (0, 5)]
    names = ("iteration", "metric", "value")
    return [{"variant": variant, "train_seed": seed, **dict(zip(names, row, strict=True))} for row in rows]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = write_run(tmp_path_factory.mktemp("crowd"), 2, 1, 16, VARIANTS)
    for variant in VARIANTS:
        for seed in (0, 1, 2):
            path = run.root / "train" / variant / f"seed-{seed}" / "metrics.parquet"
            rows = read_table(path, "train_metrics").to_pylist() + optional_rows(variant, seed)
            write_table(table_from_rows(rows, "train_metrics"), path, "train_metrics")
    run.change_params(lambda params: params["train"].update(iterations=40))  # the metrics end at 30
    return run


@pytest.fixture(scope="module")
def content(run: Run) -> Content:
    return run.content()


@pytest.fixture(scope="module")
def html(run: Run) -> str:
    return run.page()


@pytest.fixture(scope="module")
def csvs(content: Content) -> dict[str, list[str]]:
    return {name: text.splitlines() for name, text in plot_files(content).items()}


def test_the_image_grid_comes_in_parts(content: Content, html: str) -> None:
    images = html.partition('id="images"')[2]
    assert images.count("<img") == 2 * 4 * 9  # base, four variants in two modes, four prompts, twice
    names = {"profile.png", *grid_pictures(content), *(f"{name}.png" for name in panel_figures(content))}
    assert {"grid.png", "grid-2.png", "tradeoff.png"} <= names
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", render("report.md.j2", content, SECTIONS))
    assert sorted(pictures) == sorted(names)


def test_pairs_with_first_variant_are_shown_unfolded(html: str, csvs: dict[str, list[str]]) -> None:
    assert html.index("e − dance</th>") < html.index("<details", html.index('id="scores"')) < html.index("e − d</th>")
    pairs = csvs["plots/pairs.csv"]
    assert (pairs[0], len(pairs)) == ("measure,first,second,difference,low,high,p_value", 1 + 4 * 28)


def test_chips_show_the_dash_of_the_seventh_variant_on(html: str) -> None:
    assert '<span class="chip line dash-0" style="--c:var(--variant-5)">c</span>' in html
    assert '<span class="chip line dash-1" style="--c:var(--variant-0)">d</span>' in html
    assert ".chip.dash-1::before" in html


def test_training_in_numbers_and_pictures(content: Content, html: str, csvs: dict[str, list[str]]) -> None:
    assert len(panel_figures(content)["watched"].panels) == 5
    assert "⚠ 20%" in html  # 2e-5 of the clip range 1e-4
    assert "30, 30, 30" in html
    assert "[9, 7]" in html
    draws = csvs["plots/chunk_draws.csv"]
    assert len(draws) == 1 + 16 + 7 * 8
    assert draws[1] == "dance,0,36,0.0625,0.25"  # 4 draws x 3 iterations x 3 seeds
    steps = csvs["plots/step_clipping.csv"]
    assert steps[:2] == ["variant,update,step,clip_fraction,log_ratio", "dance,1,0,0.5,0.5"]
    assert len(steps) == 1 + 16 * 8
    assert "Lines: mean of 3 training seeds." in html and "bands: range" not in html
    assert csvs["plots/how_trained.csv"][0].startswith("variant,images,trained_items,")


def test_variants_that_trained_alike_are_named(small: Run) -> None:
    """Two plans with equal chunks: equal numbers are no mistake."""
    assert "the same scores throughout" not in small.markdown()
    for path in (small.root / "scores" / "chunk").glob("*.parquet"):
        rows = [row | {"policy": "dance"} for row in read_table(path, "scores").to_pylist()]
        write_table(table_from_rows(rows, "scores"), small.root / "scores" / "dance" / path.name, "scores")
    assert "- dance and chunk have the same scores throughout: they trained alike" in small.markdown()
