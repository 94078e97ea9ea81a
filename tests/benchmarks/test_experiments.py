"""Experiments on a finished run: they draw what the stages draw."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import hybrid_splits, reward_spread, semantic_stability, trained_profiles
from chunk_grpo.artifacts import read_table
from chunk_grpo.image_files import decode_image
from chunk_grpo.orchestration.presets import compose
from chunk_grpo.training.image_statistics import saturation
from tests.conftest import ROOT, SCORER, VARIANT, Workspace


def of_stages(workspace: Workspace, policy: str, mode: str) -> float:
    """Mean score that the stages found, of eval prompts."""
    rows = read_table(str(workspace.artifacts / f"scores/{policy}/{SCORER}.parquet"), "scores").to_pylist()
    wanted = [
        row["value"]
        for row in rows
        if row["mode"] == mode and row["metric"] == "score" and row["prompt_id"].startswith("eval")
    ]
    return float(np.mean(wanted))


def pictures(workspace: Workspace, policy: str, mode: str) -> NDArray[np.float32]:
    """Images of eval prompts, [B, 3, H, W] in [0, 1]."""
    rows = read_table(workspace.images(policy), "images").to_pylist()
    wanted = [row for row in rows if row["mode"] == mode and row["prompt_id"].startswith("eval")]
    images = [decode_image(row["image"]["bytes"], row["prompt_id"]) for row in wanted]
    return np.stack(images).transpose(0, 3, 1, 2) / np.float32(255)


@pytest.mark.slow
def test_splits_match_stage_images_and_depend_on_order(finished: Workspace, tmp_path: Path) -> None:
    """The smoke preset takes 10 steps, of which hybrid inference leaves 4 to the base."""
    out, here = tmp_path / "splits.json", Path.cwd()
    options = ["--variant", VARIANT, "--shifts", "3", "1", "--parts", "5", "--json", str(out)]
    assert hybrid_splits.main([str(finished.root), *options]) == 0
    assert Path.cwd() == here
    cells = {
        (cell["shift"], cell["order"], cell["first"]): cell
        for cell in json.loads(out.read_text())["cells"]
        if cell["scorer"] == SCORER
    }
    assert len(cells) == 2 * (5 + 4)
    base = of_stages(finished, "base", "base")
    for first, mode in ((10, "tuned"), (6, "hybrid")):
        cell = cells[3.0, hybrid_splits.TUNED_FIRST, first]
        assert cell["mean"] == pytest.approx(of_stages(finished, VARIANT, mode), abs=1e-6)
        assert cell["difference"] == pytest.approx(cell["mean"] - base, abs=1e-6)
    assert cells[3.0, "tuned first", 6]["mean"] != cells[3.0, "base first", 6]["mean"]
    assert cells[3.0, "tuned first", 6]["mean"] != cells[1.0, "tuned first", 6]["mean"]


@pytest.mark.slow
def test_the_spread_is_of_one_noisy_step(finished: Workspace, tmp_path: Path) -> None:
    found = []
    for name in ("first", "second"):
        out = tmp_path / f"{name}.json"
        options = ["--prompts", "2", "--children", "3", "--json", str(out)]
        assert reward_spread.main([str(finished.root), *options]) == 0
        found.append(json.loads(out.read_text()))
    assert found[0] == found[1]  # the same bytes
    spread = found[0]["spread"]["shapes-vivid"]
    assert len(spread) == len(found[0]["noise"]) == len(found[0]["times"]) - 2
    assert all(value > 0 for value in spread)
    assert spread[0] > spread[-1]  # early noise decides more


def test_training_moves_the_profile(finished: Workspace, tmp_path: Path) -> None:
    out = tmp_path / "profiles.json"
    options = ["--variant", VARIANT, "--prompts", "2", "--json", str(out)]
    assert trained_profiles.main([str(finished.root), *options]) == 0
    record = json.loads(out.read_text())
    assert set(record["base"]) == set(record["tuned"]) == {"sde", "ode"}
    for name in ("sde", "ode"):
        base, tuned = record["base"][name], record["tuned"][name]
        assert base == pytest.approx(tuned, rel=0.2)
        assert base != tuned


def test_a_profile_leads_to_a_plan_and_to_weights() -> None:
    curve = [8.0, 8.0, *[4.0] * 3, *[2.0] * 4, *[1.0] * 7]
    plan, weights = trained_profiles.plan_of(curve)
    assert plan == "[2, 3, 4, 7]"
    mean = sum(curve) / 16
    assert weights == ", ".join(f"{value / mean:.2f}" for value in (8, 4, 2, 1))


def test_agreement_by_hand() -> None:
    first = [("circle", "red"), ("circle", "blue"), ("square", "red")]
    second = [("circle", "red"), ("circle", "red")]
    agreement = semantic_stability.agreement
    assert agreement(first, second) == 1 / 4  # one red circle of four different detections
    assert agreement(first, second, lambda pair: pair[0]) == 2 / 3
    assert agreement([], []) == 1
    assert agreement(first, []) == 0


def test_images_are_compared_with_the_base_and_the_base_with_itself(
    finished: Workspace, tmp_path: Path
) -> None:
    out = tmp_path / "stability.json"
    assert semantic_stability.main([str(finished.root), "--variants", VARIANT, "--json", str(out)]) == 0
    found = {
        (each["variant"], each["mode"], each["measure"]): each
        for each in json.loads(out.read_text())["values"]
    }
    shapes, colours = semantic_stability.AS_BASE
    assert found["base", "base", shapes]["mean"] == found["base", "base", colours]["mean"] == 1
    tuned = pictures(finished, VARIANT, "tuned")
    change = saturation(tuned).mean() - saturation(pictures(finished, "base", "base")).mean()
    assert found[VARIANT, "tuned", "saturation"]["mean"] == pytest.approx(change, abs=1e-6)
    assert found[VARIANT, "tuned", colours]["mean"] < 1  # one of the few images differs


def test_a_world_without_a_detector_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compose(ROOT, "flux-dev", tmp_path / "params.yaml")
    assert semantic_stability.main([str(tmp_path)]) == 2
    assert "prompts.source: must be shapes" in capsys.readouterr().err
