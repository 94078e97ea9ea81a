"""Scores of one evaluation, from the output of the score stages."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.errors import DataError
from chunk_grpo.reporting.history import Score, measure
from chunk_grpo.reporting.statistics import crossed_interval
from tests.reporting.history_cases import VARIANTS, Case, evaluation, write_workspace

TUNED = Score("chunk", "tuned", "eval", "shapes-graded")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_workspace(tmp_path_factory.mktemp("workspace"), Case(image_seed=7))


def test_every_score_of_every_policy_has_a_row(workspace: Path) -> None:
    rows = measure(workspace, evaluation(0)).rows
    policies = [("base", "base"), *((name, mode) for name in VARIANTS for mode in ("tuned", "hybrid"))]
    assert [row.score for row in rows] == [
        Score(policy, mode, split, scorer)
        for scorer in ("shapes-exact", "shapes-graded")
        for split in ("eval", "wise")
        for policy, mode in policies
    ]
    for row in rows:
        assert (row.evaluation, row.preset, row.image_seed, row.scorer_hash) == ("night-0", "tiny", 7, "v1")
        assert (row.model_commit, row.code_commit) == ("0123456789abcdef", "fedcba9876543210")
        assert (row.change, row.reference) == ("first", "")


def test_a_row_has_the_interval_of_the_report_and_prompts_their_means(workspace: Path) -> None:
    measured = measure(workspace, evaluation(0))
    row = next(r for r in measured.rows if r.score == TUNED)
    table = read_table(workspace / "artifacts/scores/chunk/shapes-graded.parquet", "scores")
    values = {
        (r["train_seed"], r["prompt_id"], r["sample"]): r["value"]
        for r in table.filter(pc.equal(table["mode"], "tuned")).to_pylist()
    }
    prompts = read_table(workspace / "artifacts/prompts/evaluation.parquet", "prompts").to_pylist()
    of_eval = [p for p in prompts if p["split"] == "eval"]
    matrix = np.array(
        [[(values[s, p["prompt_id"], 0] + values[s, p["prompt_id"], 1]) / 2 for p in of_eval] for s in (0, 1)]
    )
    captions = [p["prompt"] for p in of_eval]
    interval = crossed_interval(matrix, None, captions)
    assert row.mean == pytest.approx(matrix.mean(), abs=1e-12)
    assert (row.low, row.high, row.standard_error) == (interval.low, interval.high, interval.standard_error)
    assert row.degrees_of_freedom == interval.degrees_of_freedom
    assert (row.num_seeds, row.num_prompts, row.num_captions) == (2, 60, len(set(captions)))
    assert row.num_images == 60 * 2 * 2
    means = [r for r in measured.prompts.to_pylist() if Score(*(r[name] for name in Score._fields)) == TUNED]
    assert [r["prompt_id"] for r in means] == [p["prompt_id"] for p in of_eval]
    assert [r["mean"] for r in means] == pytest.approx(matrix.mean(axis=0).tolist(), abs=1e-12)
    assert {r["num_images"] for r in means} == {4}


def test_refused_images_are_left_out_on_every_side(tmp_path: Path) -> None:
    """One prompt lacks a sample, another both: 59 prompts are left, with 2 * 59 - 1 samples."""
    root = write_workspace(tmp_path)
    path = root / "artifacts/scores/chunk/shapes-graded.parquet"
    table = read_table(path, "scores")
    rows = table.to_pylist()
    refused = {("eval-003", 0), ("eval-004", 0), ("eval-004", 1)}
    for row in rows:
        if row["mode"] == "tuned" and row["train_seed"] == 0 and (row["prompt_id"], row["sample"]) in refused:
            row |= {"value": None, "refusal": "no answer"}
    metadata = {"chunk_grpo.scorer": table.schema.metadata[b"chunk_grpo.scorer"].decode()}
    write_table(table_from_rows(rows, "scores"), path, "scores", metadata)
    measured = measure(root, evaluation(0))
    row = next(r for r in measured.rows if r.score == TUNED)
    assert (row.num_prompts, row.num_images) == (59, (2 * 59 - 1) * 2)
    of_base = next(r for r in measured.rows if r.score == TUNED._replace(policy="base", mode="base"))
    assert (of_base.num_prompts, of_base.num_images) == (59, 2 * 59 - 1)
    means = measured.prompts.to_pylist()
    counts = {r["prompt_id"]: r["num_images"] for r in means if Score(*(r[n] for n in Score._fields)) == TUNED}
    assert counts["eval-003"] == 2
    assert "eval-004" not in counts


def test_scores_without_their_scorers_spec(tmp_path: Path) -> None:
    root = write_workspace(tmp_path)
    path = root / "artifacts/scores/base/shapes-exact.parquet"
    for metadata in (None, {"chunk_grpo.scorer": "[]"}):
        write_table(read_table(path, "scores"), path, "scores", metadata)
        with pytest.raises(DataError, match=r"base/shapes-exact\.parquet: must carry its scorer's spec"):
            measure(root, evaluation(0))
    path.unlink()
    with pytest.raises(DataError, match=r"base/shapes-exact\.parquet: cannot read: no such file"):
        measure(root, evaluation(0))
