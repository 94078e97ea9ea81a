"""A run with many scorers: scales, short remarks, and tables in parts."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from chunk_grpo.artifacts import read_table, write_table
from chunk_grpo.config.scorers import (
    AnyScorer,
    ClipScorer,
    ExternalScorer,
    HPSv3Scorer,
    ImageRewardScorer,
    PickScoreScorer,
    ShapesScorer,
    WiseScorer,
)
from chunk_grpo.reporting.score_ranges import scale
from chunk_grpo.reporting.tables import PAGE_COLUMNS, Cell, Row, Table, in_parts
from stages import report
from stages._stage import run_stage
from tests.reporting.conftest import VARIANTS, Run


def add_scorers(run: Run, lifts: dict[str, float]) -> None:
    """Scorers by name: every image has 0.5, those of variants `lift` more."""
    path = run.root / "params.yaml"
    params = json.loads(path.read_text())
    source = {"source": "a:b", "version": 1, "options": {}}
    for name, lift in lifts.items():
        params["scorers"][name] = {"kind": "external", "splits": ["eval"], "batch_size": 8} | source
        for policy in ("base", *VARIANTS):
            table = read_table(run.root / "scores" / policy / "shapes-exact.parquet", "scores")
            rows = table.num_rows
            values = {"scorer": [name] * rows, "value": [0.5 + (lift if policy != "base" else 0.0)] * rows}
            for column, made in values.items():
                place = table.schema.get_field_index(column)
                table = table.set_column(place, table.schema.field(place), pa.array(made))
            write_table(table, run.root / "scores" / policy / f"{name}.parquet", "scores")
    path.write_text(json.dumps(params))


def remarks(run: Run) -> list[str]:
    assert run_stage(report.main, report.Arguments, run.options) == 0
    lines = Path(run.root, "report", "report.md").read_text().splitlines()
    return [line for line in lines if line.startswith("- ") and "not part of the reward" in line]


def test_scorers_without_a_difference_share_a_sentence(run: Run) -> None:
    add_scorers(run, {"still": 0.0, "calm": 0.0, "moved": 0.25})
    found = remarks(run)
    assert found[-1] == (
        "- Scorers that are not part of the reward and show no difference between any tuned variant and the base: "
        "still, calm."
    )
    moved = next(line for line in found if line.startswith("- moved, which is not part of the reward"))
    assert "higher for dance" in moved
    assert not any(line.startswith(("- still", "- calm")) for line in found)


def test_each_of_a_few_scorers_has_its_own(run: Run) -> None:
    add_scorers(run, {"still": 0.0})
    assert [line.split(",")[0] for line in remarks(run)] == ["- shapes-exact", "- still"]


def test_a_table_wider_than_the_page_is_shown_in_parts(run: Run) -> None:
    add_scorers(run, {f"more-{n}": 0.0 for n in range(4)})
    remarks(run)
    heads = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in Path(run.root, "report", "report.md").read_text().splitlines()
        if line.startswith("| policy |") and ("training reward" in line or "more-" in line)
    ]
    assert heads == [
        ["policy", "training reward", "shapes-exact", "shapes-graded", "shapes-vivid"],
        ["policy", "more-0", "more-1", "more-2", "more-3"],
    ]
    page = Path(run.root, "report", "index.html").read_text()
    assert page.count(">Further scorers<") == 1


@pytest.mark.parametrize("count", [1, 6, 7, 13])
def test_parts_of_a_table_hold_every_cell_once(count: int) -> None:
    whole = Table(
        ("policy", *map(str, range(count))),
        (Row("base", tuple(Cell(str(n)) for n in range(count)), mode="base"),),
    )
    parts = in_parts(whole)
    sizes = [len(part.columns) - 1 for part in parts]
    assert sum(sizes) == count and max(sizes) <= PAGE_COLUMNS and max(sizes) - min(sizes) <= 1
    assert [cell for part in parts for cell in part.rows[0].cells] == list(whole.rows[0].cells)
    assert [head for part in parts for head in part.columns[1:]] == list(whole.columns[1:])
    assert {(part.columns[0], part.rows[0].head, part.rows[0].mode) for part in parts} == {
        ("policy", "base", "base")
    }


@pytest.mark.parametrize(
    ("scorer", "words"),
    [
        (ShapesScorer.model_construct(kind="shapes-exact"), "1: right, 0: not"),
        (ShapesScorer.model_construct(kind="shapes-vivid"), "0 to 1"),
        (ClipScorer.model_construct(scale="cosine"), "similarity, cosine"),
        (PickScoreScorer.model_construct(scale="logit/26"), "preference, logit/26"),
        (ImageRewardScorer.model_construct(), "preference, standardised"),
        (HPSv3Scorer.model_construct(), "preference, unbounded"),
        (WiseScorer.model_construct(protocol="legacy"), "WiScore, 0 to 1"),
        (WiseScorer.model_construct(protocol="verified"), "1: right, 0: not"),
        (ExternalScorer.model_construct(), "defined by the scorer"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_scale_in_words(scorer: AnyScorer, words: str) -> None:
    assert scale(scorer) == words
