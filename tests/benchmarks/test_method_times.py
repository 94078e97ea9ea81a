"""Time of an image with each method."""

from pathlib import Path

import pytest
from dvc.utils.serialize import dump_yaml

from benchmarks import method_times
from chunk_grpo.artifacts import table_from_rows, write_table
from chunk_grpo.orchestration.presets import composed
from tests.conftest import ROOT

SECONDS = {"dance": (2.0, 1.0, 3.0), "tempflow": (4.0, 2.0, 10.0)}
"""Seconds of drawing, of waiting and of the update in an iteration."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two variants, 2 prompts x 4 images; with branches three times as many."""
    raw = composed(ROOT, "tiny")
    raw["train"] |= {"seeds": [0], "iterations": 3, "prompts_per_iteration": 2, "group_size": 4}
    raw["train"] |= {"updates_per_iteration": 1}
    raw["variants"] = {
        "dance": {"objective": "step", "plan": "step"},
        "tempflow": {
            "objective": "step",
            "plan": "step",
            "fraction": 1.0,
            "branching": {"points": 3, "children": 2},
        },
    }
    dump_yaml(str(tmp_path / "params.yaml"), raw)
    timed(tmp_path, range(1, 4))
    return tmp_path


def timed(checkout: Path, iterations: range) -> None:
    """Timings that grow by the half in each iteration; the first one takes much longer."""
    for variant, seconds in SECONDS.items():
        rows = [
            {
                "variant": variant,
                "train_seed": 0,
                "iteration": iteration,
                "metric": f"seconds_{part}",
                "value": 100.0 if iteration == 1 else value * iteration / 2,
            }
            for iteration in iterations
            for part, value in zip(method_times.PARTS, seconds, strict=True)
        ]
        path = checkout / "artifacts/timings" / variant / "seed-0.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(table_from_rows(rows, "train_metrics"), str(path), "train_metrics")


def test_times_by_hand(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert method_times.main([str(checkout), "--to", "dance"]) == 0
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if "(" in line]
    cells = {line[1].strip(): [cell.strip() for cell in line[2:-1]] for line in lines}
    # Iterations 2 and 3 take 1 and 1.5 times the seconds, for 8 images, or 24 with branches.
    assert cells == {
        "dance": ["312.5", "156.2", "468.8", "937.5", "1.00 (0.80 to 1.20)"],
        "tempflow": ["208.3", "104.2", "520.8", "833.3", "0.89 (0.71 to 1.07)"],
    }


def test_rejects_unknown_method_and_single_iteration(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert method_times.main([str(checkout), "--to", "chunk"]) == 2
    assert "--to: must be one of dance, tempflow, got 'chunk'" in capsys.readouterr().err
    timed(checkout, range(1, 2))
    assert method_times.main([str(checkout), "--to", "dance"]) == 3
    assert "timings/dance: has one iteration" in capsys.readouterr().err
