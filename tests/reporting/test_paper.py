"""The paper's numbers agree with its own definitions of overall scores and gains."""

import pytest

from chunk_grpo.reporting.paper import CHUNK_SETTINGS, GENEVAL, PREFERENCE, WISE, PaperTable


def numbers(table: PaperTable) -> dict[str, list[float]]:
    return {row.head: [float(cell.text) for cell in row.cells] for row in table.table.rows}


@pytest.mark.parametrize("found", [PREFERENCE, WISE, CHUNK_SETTINGS, GENEVAL])
def test_rows_fit_the_columns(found: PaperTable) -> None:
    assert all(1 + len(row.cells) == len(found.table.columns) for row in found.table.rows)


@pytest.mark.parametrize(("table", "weights"), [(GENEVAL, (1 / 6,) * 6), (WISE, (0.4, 0.167, 0.133, 0.1, 0.1, 0.1))])
def test_overall_is_the_weighted_mean(table: PaperTable, weights: tuple[float, ...]) -> None:
    for *values, overall in numbers(table).values():
        mean = sum(w * v for w, v in zip(weights, values, strict=True))
        assert mean == pytest.approx(overall, abs=0.0101)  # from rounded figures


@pytest.mark.parametrize(("model", "share"), [("Chunk-GRPO w/ ws", 0.23), ("Chunk-GRPO w/o ws", 0.12)])
def test_gains_that_the_text_states(model: str, share: float) -> None:
    hpsv3 = {name: values[0] for name, values in numbers(PREFERENCE).items()}
    base, dance = hpsv3["FLUX.1-dev"], hpsv3["Dance-GRPO"]
    assert (hpsv3[model] - dance) / (dance - base) == pytest.approx(share, abs=0.005)
