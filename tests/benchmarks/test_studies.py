"""Finished analyses: their numbers by hand, their options, and one run of each on the smoke preset."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from dvc.utils.serialize import dump_yaml
from torch import nn

from benchmarks.studies import hybrid_splits, method_times, semantic_stability, trained_profiles
from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.image_files import decode_image
from chunk_grpo.orchestration.presets import compose, composed
from chunk_grpo.reporting.comparisons import interval_text, signed
from chunk_grpo.reporting.statistics import crossed_interval
from chunk_grpo.training.image_statistics import saturation
from tests.conftest import ROOT, SCORER, VARIANT, Workspace

STUDIES = sorted(
    path.stem
    for path in (ROOT / "benchmarks" / "studies").glob("*.py")
    if "__main__" in path.read_text(encoding="utf-8")
)
SECONDS = {"dance": (2.0, 1.0, 3.0), "tempflow": (4.0, 2.0, 10.0)}
"""Seconds of drawing, of waiting and of the update in an iteration."""


@pytest.mark.parametrize("study", STUDIES)
def test_each_says_how_it_is_run(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.studies.{study}").main(["--help"])
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out
    page = (ROOT / "benchmarks" / "studies" / "README.md").read_text(encoding="utf-8")
    assert f"python -m benchmarks.studies.{study}" in page


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


def test_a_world_without_a_detector_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compose(ROOT, "flux-dev", tmp_path / "params.yaml")
    assert semantic_stability.main([str(tmp_path)]) == 2
    assert "prompts.source: must be shapes" in capsys.readouterr().err


def test_a_policy_at_half_strength_has_half_of_the_change() -> None:
    network = nn.Linear(2, 1)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[3.0, -1.0]]))
        network.bias.fill_(0.5)
        base = {"weight": torch.tensor([[1.0, 1.0]]), "bias": torch.tensor([0.5])}
        with hybrid_splits.scaled(network, base, 0.5):
            assert network.weight.tolist() == [[2.0, 0.0]]
        assert network.weight.tolist() == [[3.0, -1.0]]


def test_hybrid_inference_is_compared_with_each_strength() -> None:
    hybrid, half = np.array([[1.0, 2.0, 4.0], [2.0, 2.0, 3.0]]), np.array([[0.0, 1.0, 1.0], [1.0, 2.0, 2.0]])
    cells = {
        (3.0, "", 0): {"s": half[:1]},
        (3.0, "tuned first", 6): {"s": hybrid},
        (3.0, "tuned at strength", 0.5): {"s": half},
    }
    found = crossed_interval(hybrid - half, captions=["a", "b", "c"])
    (row,) = hybrid_splits.beside_strengths(cells, 6, ["a", "b", "c"])
    assert row == ["3", "0.5", f"{signed(found.mean)} ({interval_text(found)})"]
    assert found.mean == pytest.approx(7 / 6)


def timed(checkout: Path, iterations: Sequence[int]) -> None:
    """Timings that grow by the half in each iteration; the first one takes much longer."""
    for variant, seconds in SECONDS.items():
        of_parts = list(zip(method_times.PARTS, seconds, strict=True))
        rows = [
            {
                "variant": variant,
                "train_seed": 0,
                "iteration": iteration,
                "metric": f"seconds_{part}",
                "value": 100.0 if iteration == 1 else value * iteration / 2,
            }
            for iteration in iterations
            for part, value in of_parts
        ]
        path = checkout / "artifacts/timings" / variant / "seed-0.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(table_from_rows(rows, "train_metrics"), str(path), "train_metrics")


def test_times_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two variants, 2 prompts x 4 images; with branches three times as many."""
    raw, step = composed(ROOT, "tiny"), {"objective": "step", "plan": "step"}
    raw["train"] |= {"seeds": [0], "iterations": 3, "prompts_per_iteration": 2, "group_size": 4}
    raw["train"] |= {"updates_per_iteration": 1}
    branches = {"fraction": 1.0, "branching": {"points": 3, "children": 2}}
    raw["variants"] = {"dance": step, "tempflow": step | branches}
    dump_yaml(str(tmp_path / "params.yaml"), raw)
    timed(tmp_path, (1, 2, 3))
    assert method_times.main([str(tmp_path), "--to", "dance"]) == 0
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if "(" in line]
    # Iterations 2 and 3 take 1 and 1.5 times the seconds, for 8 images, or 24 with branches.
    assert {line[1].strip(): [cell.strip() for cell in line[2:-1]] for line in lines} == {
        "dance": ["312.5", "156.2", "468.8", "937.5", "1.00 (0.80 to 1.20)"],
        "tempflow": ["208.3", "104.2", "520.8", "833.3", "0.89 (0.71 to 1.07)"],
    }
    assert method_times.main([str(tmp_path), "--to", "chunk"]) == 2
    assert "--to: must be one of dance, tempflow, got 'chunk'" in capsys.readouterr().err
    timed(tmp_path, (1,))
    assert method_times.main([str(tmp_path), "--to", "dance"]) == 3
    assert "timings/dance: has one iteration" in capsys.readouterr().err


def found_by(study: str, workspace: Workspace, out: Path, *options: str) -> dict[str, object]:
    """The JSON of a study of the run in a workspace."""
    main = importlib.import_module(f"benchmarks.studies.{study}").main
    assert main([str(workspace.root), "--json", str(out), *options]) == 0
    found: dict[str, object] = json.loads(out.read_text())
    return found


def mean_of_stages(workspace: Workspace, policy: str, mode: str) -> float:
    """Mean score that the stages found, of eval prompts."""
    path = str(workspace.artifacts / f"scores/{policy}/{SCORER}.parquet")
    rows = [row for row in read_table(path, "scores").to_pylist() if row["prompt_id"].startswith("eval")]
    return float(np.mean([row["value"] for row in rows if (row["mode"], row["metric"]) == (mode, "score")]))


def saturation_of_stages(workspace: Workspace, policy: str, mode: str) -> float:
    """Mean saturation of the stages' images of eval prompts."""
    rows = [row for row in read_table(workspace.images(policy), "images").to_pylist() if row["mode"] == mode]
    kept = [row for row in rows if row["prompt_id"].startswith("eval")]
    images = np.stack([decode_image(row["image"]["bytes"], row["prompt_id"]) for row in kept])
    return float(saturation(images.transpose(0, 3, 1, 2) / np.float32(255)).mean())


@pytest.mark.slow
def test_each_draws_what_the_stages_draw(finished: Workspace, tmp_path: Path) -> None:
    """The smoke preset takes 10 steps, of which hybrid inference leaves 4 to the base."""
    found = found_by("hybrid_splits", finished, tmp_path / "a", "--variant", VARIANT, "--shifts", "3", "1")
    cells = {(c["shift"], c["order"], c["first"], c["scorer"]): c for c in found["cells"]}  # type: ignore[attr-defined]
    assert len({cell[:3] for cell in cells}) == 2 * (5 + 4 + 4)
    assert (
        cells[3.0, "tuned at strength", 1.0, SCORER]["mean"] == cells[3.0, "tuned first", 10, SCORER]["mean"]
    )
    base = mean_of_stages(finished, "base", "base")
    for first, mode in ((10, "tuned"), (6, "hybrid")):
        cell = cells[3.0, "tuned first", first, SCORER]
        assert cell["mean"] == pytest.approx(mean_of_stages(finished, VARIANT, mode), abs=1e-6)
        assert cell["difference"] == pytest.approx(cell["mean"] - base, abs=1e-6)
    others = {
        cells[s, o, 6, SCORER]["mean"] for s, o in ((3, "tuned first"), (3, "base first"), (1, "tuned first"))
    }
    assert len(others) == 3

    found = found_by("semantic_stability", finished, tmp_path / "b", "--variants", VARIANT)
    values = {(v["variant"], v["mode"], v["measure"]): v["mean"] for v in found["values"]}  # type: ignore[attr-defined]
    assert {values["base", "base", measure] for measure in semantic_stability.AS_BASE} == {1}
    change = saturation_of_stages(finished, VARIANT, "tuned") - saturation_of_stages(finished, "base", "base")
    assert values[VARIANT, "tuned", "saturation"] == pytest.approx(change, abs=1e-6)
    assert values[VARIANT, "tuned", semantic_stability.AS_BASE[1]] < 1  # one of the few images differs

    few = ("--prompts", "2", "--children", "3")
    found = found_by("reward_spread", finished, tmp_path / "c", *few)
    assert found == found_by("reward_spread", finished, tmp_path / "d", *few)
    spread = found["spread"]["shapes-vivid"]  # type: ignore[index]
    assert len(spread) == len(found["noise"]) == len(found["times"]) - 2  # type: ignore[arg-type]
    assert min(spread) > 0 and spread[0] > spread[-1]  # early noise decides more

    found = found_by("trained_profiles", finished, tmp_path / "e", "--variant", VARIANT, "--prompts", "2")
    profile = read_table(str(finished.artifacts / "profile/l1_profile.parquet"), "l1_profile")
    assert len(found["base"]["sde"]) == max(profile["step"].to_pylist()) + 1  # type: ignore[index]
    for sampler in trained_profiles.SAMPLERS:
        before, after = (found[policy][sampler] for policy in ("base", "tuned"))  # type: ignore[index]
        assert before == pytest.approx(after, rel=0.2) and before != after
