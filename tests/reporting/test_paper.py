"""The paper's numbers agree with its own definitions of overall scores and gains."""

import pytest

from chunk_grpo.reporting.paper import CHUNK_SETTINGS, GENEVAL, PREFERENCE, WISE, PaperTable


@pytest.mark.parametrize("table", [PREFERENCE, WISE, CHUNK_SETTINGS, GENEVAL])
def test_rows_fit_the_columns(table: PaperTable) -> None:
    assert all(len(values) == len(table.columns) for _, values in table.rows)


def test_geneval_overall_is_the_mean_of_the_six() -> None:
    for _, values in GENEVAL.rows:
        numbers = [value for value in values if isinstance(value, float)]
        assert sum(numbers[:6]) / 6 == pytest.approx(numbers[6], abs=0.0101)  # from rounded figures


def test_wise_overall_is_the_weighted_mean() -> None:
    weights = (0.4, 0.167, 0.133, 0.1, 0.1, 0.1)
    for _, values in WISE.rows:
        numbers = [value for value in values if isinstance(value, float)]
        mean = sum(w * n for w, n in zip(weights, numbers, strict=False))
        assert mean == pytest.approx(numbers[6], abs=0.0101)


def test_gains_that_the_text_states() -> None:
    hpsv3 = {model: values[0] for model, values in PREFERENCE.rows}
    base, dance = hpsv3["FLUX.1-dev"], hpsv3["Dance-GRPO"]
    assert isinstance(base, float)
    assert isinstance(dance, float)
    for model, share in (("Chunk-GRPO w/ ws", 0.23), ("Chunk-GRPO w/o ws", 0.12)):
        value = hpsv3[model]
        assert isinstance(value, float)
        assert (value - dance) / (dance - base) == pytest.approx(share, abs=0.005)
