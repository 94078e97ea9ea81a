"""The lines that end a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.reporting.answer import answer_lines
from chunk_grpo.reporting.content import ONLY_TRAINED
from tests.reporting.conftest import Run

SUMMARY: dict[str, Any] = {
    "prompts": 144,
    "captions": 140,
    "train_seeds": 3,
    "answer": {
        "text": "Yes: the reward exact rises.",
        "measure": "reward exact",
        "flips": {"scorer": "exact", "variant": "ws", "prompts": 144, "became_right": 31, "became_wrong": 20},
        "caution": None,
    },
    "base": {"training_reward": 0.552083, "exact": 0.552083},
    "ws": {
        "tuned": {
            "training_reward": {
                "mean": 0.621528, "difference": 0.069444, "low": 0.0138, "high": 0.1251, "size": 0.1394,
            }
        },
        "hybrid": {
            "training_reward": {
                "mean": 0.55246, "difference": 0.00038, "low": 0.0003, "high": 0.00046, "size": None,
            }
        },
    },
}  # fmt: skip


def test_base_tuned_and_hybrid_with_their_intervals() -> None:
    assert answer_lines(SUMMARY) == [
        "Does it help? Yes: the reward exact rises.",
        "reward exact, 144 held-out prompts, 3 training seeds, difference from the base with its 95 % interval:",
        "  base        0.552",
        "  ws, tuned   0.622  +0.069 (+0.014 to +0.125), 0.14 of the base's spread",
        "  ws, hybrid  0.552  +0.0004 (+0.0003 to +0.0005)",
        "exact, first image of each of 144 prompts, ws tuned: 31 became right, 20 became wrong",
    ]


@pytest.mark.parametrize(
    ("low", "size", "end"),
    [
        (0.01, 0.3, "+0.090), 0.30 of the base's spread"),
        (0.01, 0.04, "+0.090), 0.04 of the base's spread (too small to see)"),
        (-0.01, 0.3, "(-0.010 to +0.090)"),
    ],
)
def test_the_size_of_a_shown_difference_is_given(low: float, size: float, end: str) -> None:
    tuned = {"training_reward": {"mean": 0.6, "difference": 0.05, "low": low, "high": 0.09, "size": size}}
    assert answer_lines(SUMMARY | {"ws": {"tuned": tuned}})[3].endswith(end)


def test_few_prompts_have_no_interval_and_graded_scores_no_flips() -> None:
    tuned = {"training_reward": {"mean": 0.6, "difference": 0.1, "low": None, "high": None, "size": 0.2}}
    answer = SUMMARY["answer"] | {"flips": None}
    lines = answer_lines(SUMMARY | {"train_seeds": 1, "answer": answer, "ws": {"tuned": tuned}})
    assert "1 training seed," in lines[1]
    assert lines[-1] == "  ws, tuned  0.600  +0.100 (no interval: too few prompts)"


def test_a_reward_that_was_measured_alone_ends_with_a_caution() -> None:
    answer = SUMMARY["answer"] | {"caution": ONLY_TRAINED}
    assert answer_lines(SUMMARY | {"answer": answer})[-1].startswith("Only the trained reward was measured")


def test_of_many_policies_the_first_have_a_line() -> None:
    lines = answer_lines(SUMMARY | {f"v{number}": SUMMARY["ws"] for number in range(7)})
    assert len([line for line in lines if "tuned " in line]) == 6
    assert "  and 2 more in the report" in lines


def test_the_lines_are_read_from_the_report(finished: Run, tmp_path: Path) -> None:
    summary = finished.root / "report" / "summary.json"
    lines, found = answer_lines(summary), json.loads(summary.read_text())
    assert lines[0] == f"Does it help? {found['answer']['text']}"
    assert [line.split()[0] for line in lines[2:5]] == ["base", "dance,", "dance,"]
    with pytest.raises(DataError, match="summary"):
        answer_lines(tmp_path / "summary.json")
