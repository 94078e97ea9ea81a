"""Settings of a run against their base models, and against each other, paired by prompt and training seed."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.reporting.comparisons import NO_BREAK
from chunk_grpo.reporting.settings_compared import against_base, comparison, setting_of, settings_compared
from chunk_grpo.reporting.tables import to_markdown

from . import conftest
from .conftest import Run, write_run


@pytest.fixture(scope="module")
def finished_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Run]:
    """Function that gives the finished run of a number of training seeds; read only."""

    @cache
    def write(seeds: int) -> Run:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conftest, "SEEDS", tuple(range(seeds)))
            return write_run(tmp_path_factory.mktemp("finished"), 2, 1, 16, ("dance", "chunk"))

    return write


@pytest.fixture
def workspace(tmp_path: Path, finished_with: Callable[[int], Run]) -> Callable[..., Path]:
    """Function that writes a finished workspace.

    `change` is added to half of each score of `chunk`, tuned, on shapes-graded.
    """

    def write(name: str, change: Callable[[int], float] = lambda _: 0.0, seeds: int = 6) -> Path:
        (tmp_path / name).mkdir()
        made = finished_with(seeds).copy(tmp_path / name)
        file = made.root / "scores/chunk/shapes-graded.parquet"
        rows = read_table(file, "scores").to_pylist()
        for number, row in enumerate(rows):
            if row["mode"] == "tuned":
                row["value"] = row["value"] / 2 + change(number)  # in [0, 1]
        write_table(table_from_rows(rows, "scores"), file, "scores")
        return tmp_path / name

    return write


def shown(*roots: Path) -> list[list[str]]:
    """Cells of the table, with plain signs and spaces."""
    settings = [found for root in roots if (found := setting_of(root.name, root))]
    return cells(settings_compared(settings))


def cells(markdown: str) -> list[list[str]]:
    plain = markdown.replace(NO_BREAK, " ").replace("\N{MINUS SIGN}", "-")
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in plain.splitlines() if line[:1] == "|"]


def test_variant_difference_equals_score_difference(workspace: Callable[..., Path]) -> None:
    """0.25 more on one scorer, whose weight in the reward is 1."""
    head, _, *rows = shown(workspace("slow"), workspace("fast", lambda _: 0.25))
    assert head == ["variant: settings", "training reward", "shapes-exact", "shapes-graded", "shapes-vivid"]
    same, more = "0.000 (the same on every prompt)", "**+0.250 (the same on every prompt)**"
    assert rows == [["dance: fast - slow", *[same] * 4], ["chunk: fast - slow", more, same, more, same]]


def test_few_training_seeds_claim_no_difference(workspace: Callable[..., Path]) -> None:
    table = shown(workspace("slow", seeds=3), workspace("fast", lambda _: 0.25, seeds=3))
    assert "+0.250 (the same on every prompt)" in table[3] and not any("**" in cell for row in table for cell in row)


def test_a_difference_that_varies_has_an_interval(workspace: Callable[..., Path]) -> None:
    table = shown(workspace("slow"), workspace("fast", lambda number: 0.5 * (number % 2)))
    (cell,) = [row[3] for row in table if row[0].startswith("chunk")]
    mean, interval = cell.strip("*").split(" ", 1)
    low, high = (float(end) for end in interval.strip("()").split(" to "))
    assert low < float(mean) < high


def test_another_reward_is_not_compared(workspace: Callable[..., Path]) -> None:
    other, rewards = workspace("other"), {"shapes-graded": 1.0, "shapes-vivid": 0.5}
    Run(other / "artifacts").change_params(lambda params: params.update(rewards=rewards))
    head, *_ = shown(workspace("one"), other)
    assert head == ["variant: settings", "shapes-exact", "shapes-graded", "shapes-vivid"]


def test_other_presets_and_unfinished_settings_have_no_rows(workspace: Callable[..., Path]) -> None:
    one, other = workspace("one"), workspace("other")
    Run(other / "artifacts").change_params(lambda params: params.update(composed_from="smoke"))
    assert shown(one, other) == []
    shutil.rmtree(other / "artifacts/scores/dance")
    assert setting_of("other", other) is None
    assert shown(one) == []


def value(difference: float, low: float | None = None, high: float | None = None) -> dict[str, float | None]:
    return {"mean": 0.5, "difference": difference, "low": low, "high": high}


def test_a_row_for_each_policy_of_each_preset_with_its_intervals() -> None:
    first = {
        "prompts": 8,
        "base": {"training_reward": 0.4},
        "a": {"tuned": {"training_reward": value(0.0904, 0.046, 0.134), "clip": value(-0.01)}},
    }
    second = {"b_c": {"tuned": {"training_reward": value(0.2, 0.1, 0.3)}, "hybrid": {"other": value(0.0, -1.0, 1.0)}}}
    head, _, *rows = cells(to_markdown(against_base({"tiny": first, "tiny-paper": second})))
    assert head == ["preset and changes, policy, inference", "training reward", "clip", "other"]
    assert rows == [
        ["tiny, a, tuned", "+0.090 (+0.046 to +0.134)", "-0.010", ""],
        ["tiny-paper, b_c, tuned", "+0.200 (+0.100 to +0.300)", "", ""],
        ["tiny-paper, b_c, hybrid", "", "", "0.000 (-1.000 to +1.000)"],
    ]


def test_a_run_shows_both_tables_of_the_settings_that_have_a_report(workspace: Callable[..., Path]) -> None:
    one, other = workspace("one"), workspace("other")
    named = [("tiny lr=1", one), ("tiny lr=2", other)]
    assert comparison(named) == ""
    summary = {"a": {"tuned": {"reward": value(0.1, 0.0, 0.2)}}}
    (one / "artifacts/report").mkdir()
    (one / "artifacts/report/summary.json").write_text(json.dumps(summary))
    text = comparison(named)
    assert text.startswith("# Presets and variants of this run\n\n") and "\n## Settings against each other\n" in text
    assert "| tiny lr=1, a, tuned |" in text and "tiny lr=2, a" not in text
    assert "| dance: lr=2 − lr=1 |" in text
