import pytest

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.errors import DataError
from chunk_grpo.reporting.evidence import Source
from chunk_grpo.reporting.series import by_work, csv_text, metric_curve, profile_curve, ratio_curve
from tests.reporting.conftest import metrics_source


def test_band_of_a_metric_is_the_range_of_the_seeds() -> None:
    found = metric_curve(
        metrics_source((0, 5, "r", 1.0), (1, 5, "r", 3.0), (0, 0, "r", 0.5), (0, 0, "other", 9.0)), "r"
    )
    assert found.x.tolist() == [0, 5]
    assert found.mean.tolist() == [0.5, 2.0]
    assert found.low.tolist() == [0.5, 1.0]
    assert found.high.tolist() == [0.5, 3.0]


def test_ratio_curve_is_the_larger_distance_from_one() -> None:
    found = ratio_curve(metrics_source((0, 0, "ratio_min", 0.5), (0, 0, "ratio_max", 1.25)))
    assert found.mean.tolist() == found.low.tolist() == found.high.tolist() == [0.5]


def test_curves_by_work_are_stretched_by_each_variants_own_work() -> None:
    curve = metric_curve(metrics_source((0, 0, "r", 0.5), (0, 10, "r", 1.0)), "r")
    found = by_work({"v": curve, "w": curve, "unknown": curve}, {"v": 3.0, "w": 1.5, "unknown": None})
    assert {variant: each.x.tolist() for variant, each in found.items()} == {"v": [0, 30], "w": [0, 15]}
    assert found["v"].mean.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("work", [{"v": 3.0, "w": 3.0}, {"v": 3.0, "w": None}, {"v": None, "w": None}])
def test_curves_by_work_are_left_out_where_they_show_nothing_new(work: dict[str, float | None]) -> None:
    curve = metric_curve(metrics_source((0, 0, "r", 0.5)), "r")
    assert by_work({"v": curve, "w": curve}, work) == {}


def test_missing_metric_is_named() -> None:
    with pytest.raises(DataError, match=r"train/v/metrics\.parquet: no row with metric=grad_norm"):
        metric_curve(metrics_source((0, 0, "r", 1.0)), "grad_norm")


def test_profile_averages_seeds_before_prompts_spread() -> None:
    rows = [
        {"sampler": "sde", "prompt_id": p, "seed": s, "step": 0, "t": 1.0, "t_next": 0.9, "l1_rel": value}
        for p, s, value in (("a", 0, 0.0), ("a", 1, 0.4), ("b", 0, 0.6))
    ]
    source = Source("profile.parquet", table_from_rows(rows, "l1_profile"))
    found = profile_curve(source, "sde")
    assert found.mean == pytest.approx([0.4])  # (0.2 + 0.6) / 2
    assert found.low == pytest.approx([0.22])
    assert found.high == pytest.approx([0.58])
    with pytest.raises(DataError, match=r"profile\.parquet: no row with sampler=ode"):
        profile_curve(source, "ode")


def test_csv_has_six_digits() -> None:
    assert csv_text(("a", "b"), [("x", 1 / 3), ("y", 2)]) == "a,b\nx,0.333333\ny,2\n"
