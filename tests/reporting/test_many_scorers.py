"""A run with many scorers: short remarks, and tables in parts."""

import pytest

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.reporting.tables import PAGE_COLUMNS, Cell, Row, Table, in_parts
from tests.reporting.conftest import VARIANTS, Run


def add_scorers(run: Run, lifts: dict[str, float]) -> None:
    """Scorers by name: every image has 0.5, those of variants `lift` more."""
    external = {"kind": "external", "splits": ["eval"], "batch_size": 8, "source": "a:b", "version": 1, "options": {}}
    run.change_params(lambda params: params["scorers"].update(dict.fromkeys(lifts, external)))
    for name, lift in lifts.items():
        for policy in ("base", *VARIANTS):
            table = read_table(run.root / "scores" / policy / "shapes-exact.parquet", "scores")
            value = 0.5 + (lift if policy != "base" else 0.0)
            rows = [row | {"scorer": name, "value": value} for row in table.to_pylist()]
            write_table(table_from_rows(rows, "scores"), run.root / "scores" / policy / f"{name}.parquet", "scores")


def remarks(run: Run) -> list[str]:
    lines = run.markdown().splitlines()
    return [line for line in lines if line.startswith("- ") and "not part of the reward" in line]


@pytest.mark.parametrize(
    ("lifts", "named"),
    [
        ({"still": 0.0}, [{"shapes-exact"}, {"still"}]),  # few scorers have a remark each
        ({"still": 0.0, "calm": 0.0, "moved": 0.25}, [{"shapes-exact"}, {"moved"}, {"Scorers", "still", "calm"}]),
    ],
)
def test_scorers_without_a_difference_share_a_sentence(
    lifts: dict[str, float], named: list[set[str]], run: Run
) -> None:
    add_scorers(run, lifts)
    assert [{name for name in (*lifts, "shapes-exact", "Scorers") if name in line} for line in remarks(run)] == named


def test_a_table_wider_than_the_page_is_shown_in_parts(small: Run) -> None:
    add_scorers(small, {f"more-{n}": 0.0 for n in range(4)})
    heads = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in small.markdown().splitlines()
        if line.startswith("| policy |") and ("training reward" in line or "more-" in line)
    ]
    assert heads == [
        ["policy", "training reward", "shapes-exact", "shapes-graded", "shapes-vivid"],
        ["policy", "more-0", "more-1", "more-2", "more-3"],
    ]


@pytest.mark.parametrize("count", [1, 6, 7, 13])
def test_parts_of_a_table_hold_every_cell_once(count: int) -> None:
    whole = Table(
        ("policy", *map(str, range(count))), (Row("base", tuple(Cell(str(n)) for n in range(count)), mode="base"),)
    )
    parts = in_parts(whole)
    sizes = [len(part.columns) - 1 for part in parts]
    assert sum(sizes) == count and max(sizes) <= PAGE_COLUMNS and max(sizes) - min(sizes) <= 1
    assert [cell for part in parts for cell in part.rows[0].cells] == list(whole.rows[0].cells)
    assert [head for part in parts for head in part.columns[1:]] == list(whole.columns[1:])
    assert all((part.columns[0], part.rows[0].head) == ("policy", "base") for part in parts)
