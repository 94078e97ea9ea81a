"""Images of a group are scored together, however they lie in the table."""

import pyarrow as pa
import pytest

from stages.score import GROUP, whole_groups


def table(groups: list[tuple[str, int, str]]) -> pa.Table:
    rows = [{**dict(zip(GROUP, group, strict=True)), "sample": number} for number, group in enumerate(groups)]
    return pa.Table.from_pylist(rows)


A, B, C = ("tuned", 0, "eval-0"), ("hybrid", 0, "eval-0"), ("tuned", 0, "eval-1")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 64])
def test_no_batch_holds_a_part_of_a_group(size: int) -> None:
    """As generation writes them: a batch of tuned images that ends within a group, then hybrid ones, then the rest."""
    images = table([A, A, C, B, B, A, C, C, B])
    batches = [
        [(tuple(r[n] for n in GROUP), r["sample"]) for r in part] for part in whole_groups(images, size)
    ]
    seen = [row for part in batches for row in part]
    assert sorted(number for _, number in seen) == list(range(9))
    for group in (A, B, C):
        holding = [part for part in batches if any(g == group for g, _ in part)]
        assert len(holding) == 1
        numbers = [number for g, number in holding[0] if g == group]
        assert numbers == sorted(numbers)
        assert len(numbers) == 3
    assert all(len(part) < size + 3 for part in batches)
    assert all(len(part) >= size for part in batches[:-1])


def test_there_may_be_no_images() -> None:
    assert list(whole_groups(table([A])[:0], 4)) == []
