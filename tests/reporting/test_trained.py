"""Training statistics: values computed by hand from a few metrics, and omissions if metrics are missing."""

import dataclasses

import pytest

from chunk_grpo.artifacts import RunManifest
from chunk_grpo.reporting.content import not_trained
from chunk_grpo.reporting.tables import Cell, Table
from chunk_grpo.reporting.trained import (
    FIDELITY_LIMIT,
    ChunkUse,
    PlanMoment,
    Trained,
    chunk_uses,
    plan_moments,
    step_uses,
    trained_in_numbers,
)
from chunk_grpo.reporting.training_tables import clipping_table, draws_table, plan_table, trained_table
from chunk_grpo.training import metrics as trainer
from tests.reporting.conftest import metrics_source, training_settings

SETTINGS = training_settings()
LINE = Trained("v", 32, 128.0, 1e-4, 1e-4, 0.25, 3.1e-4, 0.0, 0.02, 0.5, 1.5, 0.01, 0.05, 0.2, None, None, None, 2.5)


def manifest(stage: str, seconds: float, **notes: int) -> RunManifest:
    return RunManifest(1, stage, "2001-01-01T10:00:00+00:00", seconds, 1.0, "3", {}, "", "", 2, None, None, {**notes})


def texts(table: Table | None) -> list[list[str]]:
    assert table is not None
    return [[row.head, *(cell.text for cell in row.cells)] for row in table.rows]


def test_means_over_seeds_and_iterations_by_hand() -> None:
    rows = [
        (0, 0, "clip_fraction", 9.0),  # the base was not trained: iteration 0 counts nowhere
        *((seed, i, "clip_fraction", 0.1 * i + 0.2 * seed) for seed in (0, 1) for i in (1, 2)),
        *((seed, i, "trained_steps", 100.0 * i) for seed in (0, 1) for i in (1, 2)),
        *((0, i, "ratio_min", 1 - 0.1 * i) for i in (1, 2)),  # 0.9, 0.8
        *((0, i, "ratio_max", 1.15) for i in (1, 2)),
        *((0, i, "kl", 0.5 * i) for i in (1, 2)),
        *((0, i, "grad_norm", 2.0) for i in (1, 2)),
        *((0, i, "degenerate_groups", 1.0 * i) for i in (1, 2)),
        *(
            (0, i, f"fidelity_{end}", size * i)
            for i in (1, 2)
            for end, size in (("p50", 1e-6), ("p99", 2e-5), ("max", 3e-5))
        ),
        *((seed, 1, f"fidelity_later_{end}", 1e-6 + 1e-6 * seed) for seed in (0, 1) for end in ("p50", "p99", "max")),
        *((seed, 2, "distance_from_base", 0.01 + 0.02 * seed) for seed in (0, 1)),
    ]
    found = trained_in_numbers(
        "v",
        metrics_source(*rows),
        SETTINGS,
        [manifest("x", 9.0), manifest("train@v-0", 6.0), manifest("train@v-1", 4.0)],
    )
    assert found.clip_fraction == pytest.approx(0.25)  # 0.1, 0.2, 0.3, 0.4
    assert found.trained_items == 150
    assert found.max_ratio_distance == pytest.approx((0.15 + 0.2) / 2)
    assert found.kl == 0.75
    assert found.distance == pytest.approx(0.02)
    assert found.grad_norm == 2.0
    assert found.degenerate_groups == 1.5
    assert found.fidelity_p99_of_clip_range == pytest.approx(0.3)  # mean 3e-5 over the smallest clip range 1e-4
    assert found.fidelity_p50_of_clip_range == pytest.approx(0.015)
    assert found.fidelity_max_of_clip_range == pytest.approx(0.6)  # the largest of both iterations
    assert found.fidelity_later_p50_of_clip_range == found.fidelity_later_p99_of_clip_range == pytest.approx(0.015)
    assert found.fidelity_later_max_of_clip_range == pytest.approx(0.02)
    assert found.seconds == 2.5  # 10 s over two iterations of two seeds
    assert found.images == 32


def test_seconds_of_a_resumed_training_are_those_of_its_last_process() -> None:
    rows = [(seed, i, "clip_fraction", 0.1) for seed in (0, 1) for i in (1, 2, 3, 4)]
    runs = [manifest("train@v-0", 6.0, iterations=1), manifest("train@v-1", 24.0, iterations=4)]
    found = trained_in_numbers("v", metrics_source(*rows), SETTINGS, runs)
    assert found.seconds == 6.0  # 30 s over five iterations, not eight
    taken_over = [manifest(run.stage, 0.1, iterations=0) for run in runs]
    assert trained_in_numbers("v", metrics_source(*rows), SETTINGS, taken_over).seconds is None


def test_missing_metric_is_none_and_its_column_is_omitted() -> None:
    found = trained_in_numbers("v", metrics_source((0, 1, "grad_norm", 2.0)), SETTINGS, [])
    recorded = {name: value for name, value in dataclasses.asdict(found).items() if value is not None}
    assert recorded == {
        "variant": "v", "images": 32, "clip_range_min": 1e-4, "clip_range_max": 4e-4, "grad_norm": 2.0
    }  # fmt: skip
    assert texts(trained_table([found])) == [["v", "32", "0.0001 to 0.0004", "2"]]
    beside = trained_table([found, dataclasses.replace(LINE, variant="w")])
    assert texts(beside)[0] == ["v", "32", "–", "0.0001 to 0.0004", "–", "–", "–", "2", "–", "–", "–"]


def test_poor_fidelity_is_marked_above_ten_percent() -> None:
    found = [dataclasses.replace(LINE, fidelity_p99_of_clip_range=share) for share in (FIDELITY_LIMIT, 0.11)]
    cells = [row.cells[8] for row in trained_table(found).rows]
    assert [(cell.text, cell.verdict) for cell in cells] == [("10.0%", ""), ("⚠ 11%", "warn")]
    assert {cell.note for cell in cells} == {"1.0% to 20.0%"}
    assert trainer.FIDELITY_LIMIT == FIDELITY_LIMIT  # the trainer warns from the same share on


def test_only_what_ratios_of_later_updates_carry_is_marked_where_it_is_known() -> None:
    later = {f"fidelity_later_{end}_of_clip_range": share for end, share in (("p50", 0.0), ("p99", 0.01), ("max", 0.3))}
    first = dataclasses.replace(LINE, fidelity_p99_of_clip_range=0.5, **later)
    second = dataclasses.replace(first, fidelity_later_p99_of_clip_range=0.2)
    cells = [row.cells[8:10] for row in trained_table([first, second]).rows]
    assert [[cell.text for cell in row] for row in cells] == [["50.0%", "1.0%"], ["50.0%", "⚠ 20%"]]
    assert cells[0][1].note == "0.0% to 30.0%"


DRAWS = metrics_source(
    (0, 1, "chunk_draws/0", 3.0),
    (0, 2, "chunk_draws/0", 1.0),
    (0, 1, "chunk_clip_fraction/0", 1 / 3),
    (0, 2, "chunk_clip_fraction/0", 1.0),
    (0, 1, "chunk_draws/1", 0.0),
    (0, 1, "chunk_draws/10", 12.0),
    (0, 1, "chunk_clip_fraction/10", 0.25),
)


def test_draws_and_clipping_of_a_chunk_by_hand() -> None:
    first, never, last = chunk_uses(DRAWS)
    assert (first.chunk, first.draws, first.share) == (0, 4, 0.25)
    assert first.clip_fraction == pytest.approx(0.5)  # 1 of 3 and 1 of 1
    assert never == ChunkUse(1, 0, 0.0, None)
    assert last == ChunkUse(10, 12, 0.75, 0.25)
    assert chunk_uses(metrics_source((0, 1, "clip_fraction", 0.5))) == ()


def uses(count: int) -> tuple[ChunkUse, ...]:
    return tuple(ChunkUse(chunk, 1, 1 / count, chunk / count) for chunk in range(count))


def test_few_chunks_have_draws() -> None:
    few = draws_table({"two": uses(2), "eight": uses(8), "sixteen": uses(16), "old": ()})
    assert few is not None
    assert [row.head for row in few.rows] == ["two", "eight"]
    assert few.columns[1:] == tuple(f"chunk {i}" for i in range(8))
    cell = few.rows[0].cells[1]
    assert (cell.text, cell.heat) == ("50%", 0.5)
    assert [cell.text for cell in few.rows[0].cells[2:]] == [""] * 6
    assert draws_table({"old": ()}) is None


def test_clipping_by_update_and_step_by_hand() -> None:
    """Two seeds; updates and steps are numbers: 10 comes after 2."""
    clipped = {(1, 0): (0.1, 0.3), (1, 10): (0.0, 0.0), (2, 2): (0.8, 0.8)}
    rows = [
        row
        for (update, step), shares in clipped.items()
        for seed, share in enumerate(shares)
        for row in (
            (seed, 2, f"step_clip_fraction/{update}/{step}", share),
            (seed, 2, f"step_log_ratio/{update}/{step}", 1e-4 * (1 + share)),
        )
    ]
    found = step_uses(metrics_source(*rows))
    assert [(use.update, use.step) for use in found] == [(1, 0), (1, 10), (2, 2)]
    assert found[0].clip_fraction == pytest.approx(0.2)
    assert found[0].log_ratio == pytest.approx(1.2e-4)
    table = clipping_table({"v": found, "old": ()})
    assert table is not None
    assert table.columns == ("clipped; |log-ratio| in 1e-4", *map(str, range(11)))
    assert [row.head for row in table.rows] == ["v, update 1", "v, update 2"]
    (first, second), cell = (row.cells for row in table.rows), Cell("")
    assert (first[0].text, first[0].note) == ("20%", "1.2")
    assert first[0].heat == pytest.approx(0.25) and second[2].heat == 1.0  # relative to the largest
    assert list(first[1:10]) == [cell] * 9 and first[10].text == "0%"
    assert clipping_table({"old": step_uses(metrics_source((0, 1, "kl", 0.0)))}) is None


def moment_rows(seed: int, sizes: dict[int, tuple[int, int]]) -> list[tuple[int, int, str, float]]:
    rows: list[tuple[int, int, str, float]] = []
    for iteration, plan in sizes.items():
        rows += [(seed, iteration, f"chunk_size/{k}", float(size)) for k, size in enumerate(plan)]
        rows.append((seed, iteration, "profile_drift", 0.1 * (iteration - 1) + 0.2 * seed))
        rows.append((seed, iteration, "boundary_shift", float(abs(plan[0] - 2))))
    return rows


def test_a_plan_that_moves_at_first_middle_and_last_iteration() -> None:
    rows = moment_rows(0, dict.fromkeys(range(1, 5), (2, 6))) + moment_rows(
        1, {1: (2, 6), 2: (2, 6), 3: (3, 5), 4: (4, 4)}
    )
    found = plan_moments(metrics_source(*rows))
    assert [m.iteration for m in found] == [1, 2, 4]
    assert [m.plans for m in found] == [((2, 6),), ((2, 6),), ((2, 6), (4, 4))]
    assert [m.profile_drift for m in found] == pytest.approx([0.1, 0.2, 0.4])
    assert [m.boundary_shift for m in found] == [0.0, 0.0, 1.0]
    assert texts(plan_table({"v": found, "fixed": ()}))[-1] == [
        "v, iteration 4", "[2, 6] or [4, 4]", "0.400", "1.00"
    ]  # fmt: skip


def test_a_plan_that_stays_has_no_table() -> None:
    assert plan_moments(metrics_source((0, 1, "kl", 0.0))) == ()
    assert plan_table({"v": ()}) is None


def test_one_iteration_and_no_sizes() -> None:
    (found,) = plan_moments(metrics_source((0, 1, "profile_drift", 0.0)))
    assert found == PlanMoment(1, ((),), 0.0, None)
    assert texts(plan_table({"v": (found,)})) == [["v, iteration 1", "–", "0.000", "–"]]


@pytest.mark.parametrize("single_chunks", [False, True])
@pytest.mark.parametrize("chunk_rewards", [False, True])
def test_studies_that_no_variant_makes_are_named(single_chunks: bool, chunk_rewards: bool) -> None:
    text = " ".join(not_trained(training_settings(single_chunks=single_chunks, chunk_rewards=chunk_rewards)))
    assert ("Fig. 6" in text, "Table 4" in text) == (not single_chunks, not chunk_rewards)
