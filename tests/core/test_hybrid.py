import pytest

from chunk_grpo.core.hybrid import uses_base


def test_the_papers_split_is_30_tuned_then_20_base():
    models = [uses_base(step, num_steps=50, base_steps=20) for step in range(50)]
    assert models == [False] * 30 + [True] * 20


def test_limits():
    assert not any(uses_base(step, 4, base_steps=0) for step in range(4))
    assert all(uses_base(step, 4, base_steps=4) for step in range(4))


@pytest.mark.parametrize(
    ("step", "base_steps", "message"),
    [(0, 5, "from 0 to num_steps 4, got 5"), (0, -1, "got -1"), (4, 2, "step must be from 0 to 3, got 4")],
)
def test_out_of_range_is_refused(step, base_steps, message):
    with pytest.raises(ValueError, match=message):
        uses_base(step, 4, base_steps)
