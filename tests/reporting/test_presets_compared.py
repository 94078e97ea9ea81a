"""The table of an ablation run."""

from chunk_grpo.reporting.comparisons import NO_BREAK
from chunk_grpo.reporting.presets_compared import presets_compared


def value(difference: float, low: float | None = None, high: float | None = None) -> dict[str, float | None]:
    return {"mean": 0.5, "difference": difference, "low": low, "high": high}


def test_a_row_for_each_policy_of_each_preset_with_its_intervals() -> None:
    first = {
        "prompts": 8,
        "base": {"training_reward": 0.4},
        "a": {"tuned": {"training_reward": value(0.0904, 0.046, 0.134), "clip": value(-0.01)}},
    }
    second = {
        "b_c": {
            "tuned": {"training_reward": value(0.2, 0.1, 0.3)},
            "hybrid": {"other": value(0.0, -1.0, 1.0)},
        }
    }
    shown = presets_compared({"tiny": first, "tiny-paper": second})
    assert shown.key == "comparison"
    plain = shown.markdown.replace(NO_BREAK, " ").replace("\N{MINUS SIGN}", "-")
    table = [line for line in plain.splitlines() if line.startswith("|")]
    assert table == [
        "| preset and changes, policy, inference | training reward | clip | other |",
        "|---|---:|---:|---:|",
        "| tiny, a, tuned | +0.090 (+0.046 to +0.134) | -0.010 |  |",
        "| tiny-paper, b_c, tuned | +0.200 (+0.100 to +0.300) |  |  |",
        "| tiny-paper, b_c, hybrid |  |  | 0.000 (-1.000 to +1.000) |",
    ]
