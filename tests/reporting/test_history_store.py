"""The history on disk, its plot and its page."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from chunk_grpo.artifacts import read_table, write_text
from chunk_grpo.errors import DataError
from chunk_grpo.reporting import history_page, history_store
from chunk_grpo.reporting.history import Change, HistoryRow, Measured, known, measure
from chunk_grpo.reporting.history_page import alert, history_markdown, summary, trend_png
from chunk_grpo.reporting.history_store import read_history, record
from chunk_grpo.reporting.markdown import Section, data_uri
from tests.reporting.history_cases import Case, evaluation, write_workspace

LOWER = {("chunk", "shapes-graded"): -0.2}


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> list[Measured]:
    """Four evaluations: the first, the same again, one with new noise, and one with a retrained, worse policy."""
    cases = [(Case(0), "a" * 16), (Case(0), "a" * 16), (Case(1), "a" * 16), (Case(2, LOWER), "b" * 16)]
    return [
        measure(write_workspace(tmp_path_factory.mktemp("night"), case), evaluation(number, model))
        for number, (case, model) in enumerate(cases)
    ]


def test_each_evaluation_is_added(nights: list[Measured], tmp_path: Path) -> None:
    for count, number in enumerate((0, 2, 3), start=1):
        done = record(tmp_path, nights[number])
        assert done.repeats == ""
        assert {row.evaluation for row in done.newest} == {f"night-{number}"}
        assert len(done.history) == 20 * count
        assert [row.change for row in done.newest].count("moved") == (2 if number == 3 else 0)
        folder = tmp_path / "tiny"
        page = (folder / "history.md").read_text(encoding="utf-8")
        assert f"## Scores of night-{number}" in page
        uri = data_uri((folder / "history.png").read_bytes())
        assert done.trend == Section(
            "trend", "Scores over the evaluations", page.replace("](history.png)", f"]({uri})")
        )
    assert {path.relative_to(tmp_path / "tiny").as_posix() for path in (tmp_path / "tiny").rglob("*.*")} == {
        "history.parquet", "history.png", "history.md",
        "evaluations/night-0.parquet", "evaluations/night-2.parquet", "evaluations/night-3.parquet",
    }  # fmt: skip
    table = read_table(tmp_path / "tiny" / "history.parquet", "evaluation_history")
    assert table.num_rows == 60
    assert str(table["evaluated_at"][59].as_py()) == "2001-01-04 00:00:00+00:00"
    assert [row.evaluation for row in read_history(tmp_path / "tiny" / "history.parquet")][::20] == [
        "night-0", "night-2", "night-3",
    ]  # fmt: skip


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves the time for the plot."""
    monkeypatch.setattr(history_store, "trend_png", lambda history: b"PNG")


@pytest.mark.usefixtures("undrawn")
def test_an_evaluation_that_is_there_is_replaced(nights: list[Measured], tmp_path: Path) -> None:
    record(tmp_path, nights[0])
    record(tmp_path, nights[2])
    again = record(tmp_path, nights[2])
    assert len(again.history) == 40
    assert {row.change for row in again.newest} == {"none", "unknown"}
    assert {row.reference for row in again.newest} == {"night-0"}
    assert [row.evaluation for row in again.history] == ["night-0"] * 20 + ["night-2"] * 20
    other = record(tmp_path, renamed(nights[0], 2))  # also by results that another evaluation has
    assert [row.evaluation for row in other.history] == ["night-0"] * 20 + ["night-2"] * 20
    assert ({row.change for row in other.newest}, other.repeats) == ({"same"}, "night-0")


def renamed(night: Measured, number: int, **changes: object) -> Measured:
    """The same numbers in the evaluation of another night."""
    other = evaluation(number)
    at = {"evaluation": other.evaluation, "evaluated_at": other.evaluated_at, **changes}
    return night._replace(rows=tuple(replace(row, **at) for row in night.rows))  # type: ignore[arg-type]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("before", [(0,), (0, 2, 3)], ids=["just before", "long before"])
def test_known_evaluation_is_not_added_under_new_name(
    before: tuple[int, ...], nights: list[Measured], tmp_path: Path
) -> None:
    for number in before:
        last = record(tmp_path, nights[number])
    folder = tmp_path / "tiny"
    files = {path: path.read_bytes() for path in folder.rglob("*.*")}
    (folder / "history.png").unlink()
    done = record(tmp_path, renamed(nights[1], 9))
    assert (done.repeats, done.trend) == ("night-0", last.trend)
    assert [row.evaluation for row in done.history][::20] == [f"night-{number}" for number in before]
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == files
    assert {row.evaluation for row in done.newest} == {"night-9"}
    assert summary(done.newest, done.repeats) == "No change: all 20 scores equal those of night-0."
    assert alert(done.history, done.newest) is None


@pytest.mark.parametrize(
    "change",
    [{"model_commit": "b" * 16}, {"image_seed": 7}, {"scorer_hash": "v2"}, {"mean": 0.5}, {"num_images": 1}],
    ids=lambda change: next(iter(change)),
)
def test_evaluation_with_any_difference_is_new(change: dict[str, object], nights: list[Measured]) -> None:
    rows = renamed(nights[1], 9).rows
    assert known(nights[0].rows, rows) == "night-0"
    assert not known(nights[0].rows, [replace(rows[0], **change), *rows[1:]])  # type: ignore[arg-type]
    assert not known(nights[0].rows, rows[1:])


@pytest.mark.usefixtures("undrawn")
def test_an_evaluation_that_comes_late_takes_its_place_in_time(nights: list[Measured], tmp_path: Path) -> None:
    record(tmp_path, nights[0])
    record(tmp_path, nights[3])
    late = record(tmp_path, nights[2])
    assert {row.reference for row in late.newest} == {"night-0"}
    assert [row.evaluation for row in late.history][::20] == ["night-0", "night-2", "night-3"]


@pytest.mark.usefixtures("undrawn")
def test_a_foreign_or_unreadable_history_stays_as_it_is(nights: list[Measured], tmp_path: Path) -> None:
    path = tmp_path / "tiny" / "history.parquet"
    write_text("notes of somebody", path)
    with pytest.raises(DataError, match=r"history\.parquet: corrupt, .*\. Restore it from a copy, or move"):
        record(tmp_path, nights[0])
    assert path.read_text() == "notes of somebody"
    pq.write_table(nights[0].prompts.replace_schema_metadata({}), path)
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"history\.parquet: must be the table evaluation_history/1, got a"):
        record(tmp_path, nights[0])
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.usefixtures("undrawn")
def test_missing_means_of_reference_are_an_error(nights: list[Measured], tmp_path: Path) -> None:
    record(tmp_path, nights[0])
    (tmp_path / "tiny" / "evaluations" / "night-0.parquet").unlink()
    before = (tmp_path / "tiny" / "history.parquet").read_bytes()
    with pytest.raises(DataError, match=r"evaluations/night-0\.parquet: no such file; scores are compared"):
        record(tmp_path, nights[2])
    assert (tmp_path / "tiny" / "history.parquet").read_bytes() == before


@pytest.fixture(scope="module")
def history(nights: list[Measured], tmp_path_factory: pytest.TempPathFactory) -> tuple[HistoryRow, ...]:
    folder = tmp_path_factory.mktemp("history")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_store, "trend_png", lambda history: b"PNG")
        return [record(folder, night) for night in nights][-1].history  # without night-1


def rows_of(history: tuple[HistoryRow, ...], name: str) -> list[HistoryRow]:
    return [row for row in history if row.evaluation == name]


def test_one_sentence_on_an_evaluation(history: tuple[HistoryRow, ...]) -> None:
    assert summary(rows_of(history, "night-0")) == ("First evaluation: 20 scores, with nothing to compare them with.")
    assert summary(rows_of(history, "night-3")) == (
        "2 of 20 scores moved; 10 too few prompts to tell; 8 no change shown."
    )
    changed = [replace(row, change="scorer") for row in rows_of(history, "night-2")]
    assert summary(changed) == "0 of 20 scores moved; 20 not compared: the scorer changed."


def test_an_alert_names_the_scores_that_moved(history: tuple[HistoryRow, ...]) -> None:
    for quiet in ("night-0", "night-2"):
        assert alert(history, rows_of(history, quiet)) is None
    newest = rows_of(history, "night-3")
    row = next(r for r in newest if r.change == "moved")
    lines = (alert(history, newest) or "").splitlines()
    assert lines[0].endswith("Evaluation night-3 of preset tiny:")
    assert lines[2] == (
        f"- shapes-graded on eval, chunk, tuned: {row.mean:.3f}, −{-row.difference:.3f} since night-0 "
        f"(band ±{row.band:.3f}, p < 0.001); the policies were trained again since"
    )
    assert len(lines) == 4


def test_the_page_has_the_scores_and_the_evaluations(history: tuple[HistoryRow, ...]) -> None:
    page = history_markdown(history, "night-3", "history.png")
    assert page.startswith("# Evaluations of preset tiny\n\nnight-3, 2001-01-04 00:00 UTC: 2 of 20 scores")
    assert "![Scores over the evaluations, with 95 % intervals](history.png)" in page
    assert page.count("| **moved** |") == 2
    assert "| night-3 | 2001-01-04 00:00 | bbbbbbbbbb | fedcba9876 | 2 | 20 | 2 | 0 |" in page
    assert page.index("| night-3 |") < page.index("| night-0 | 2001")
    assert "about 99% of evaluations" in page
    alone = history_markdown(rows_of(history, "night-0"), "night-0", "history.png")  # type: ignore[arg-type]
    assert "nan" not in page + alone
    assert alone.count("| first evaluation |") == 20


def test_the_plot_has_a_panel_for_each_scorer_split_and_mode(
    history: tuple[HistoryRow, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = [row for row in history if row.mode != "hybrid"]
    one_scorer = [row for row in history if row.scorer == "shapes-exact" and row.split == "eval"]
    of_base = [row for row in tuned if row.policy == "base"]
    monkeypatch.setattr(history_page, "png", lambda draws, size, legend, strip, columns: (len(draws), columns))
    found = [trend_png(rows) for rows in (history, tuned, one_scorer, of_base)]
    assert found == [(8, 2), (4, 1), (2, 2), (4, 1)]  # type: ignore[comparison-overlap]  # panels, and those of a row


def test_plot_marks_events_at_their_evaluation(history: tuple[HistoryRow, ...]) -> None:
    """The plots differ only by the marks of moved scores and changed scorers."""

    def drawn(name: str, word: Change, difference: float = 1.0) -> bytes:
        one = {"change": word, "difference": difference}
        return trend_png([replace(row, **one) if row.evaluation == name else row for row in plain])  # type: ignore[arg-type]

    kept = ("shapes-exact", "eval", "tuned"), ("shapes-exact", "eval", "base")
    plain = [replace(row, change="none") for row in history if (row.scorer, row.split, row.mode) in kept]
    moved = [drawn("night-2", "moved"), drawn("night-3", "moved"), drawn("night-3", "moved", -1.0)]
    assert len({trend_png(plain), trend_png(plain), *moved, drawn("night-2", "scorer")}) == 5
