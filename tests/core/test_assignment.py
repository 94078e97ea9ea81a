import pytest
import torch

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.chunking import chunk_means, listed_plan, single_plan, step_plan
from tests.core.conftest import draw

PLANS = [listed_plan([2, 3, 4, 7], 16), step_plan(16), single_plan(16)]
NAN = float("nan")


def ragged():
    # a window, two chunks with a gap between them, nothing
    return ChunkAssignment(torch.tensor([[-1, 0, 0, -1], [0, -1, 1, 1], [-1, -1, -1, -1]]))


def test_ragged_rows_by_hand():
    assignment = ragged()
    assert assignment.num_chunks.tolist() == [1, 2, 0]
    assert assignment.max_chunks == 2
    assert assignment.exists.tolist() == [[True, False], [True, True], [False, False]]
    assert assignment.sizes.tolist() == [[2, 0], [1, 2], [0, 0]]
    spread = assignment.to_steps(torch.tensor([[1.0, NAN], [3, 4], [NAN, NAN]]))
    assert spread.tolist() == [[0, 1, 1, 0], [3, 0, 4, 4], [0, 0, 0, 0]]
    assert assignment.single_steps().chunk.tolist() == [[-1, 0, 1, -1], [0, -1, 1, 2], [-1] * 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("plan", PLANS, ids=["listed", "step", "single"])
def test_shared_assignment_is_bitwise_equal_to_plan(plan, dtype):
    assignment = ChunkAssignment.shared(plan, 64)
    by_step, by_chunk = draw(64, 16).to(dtype), draw(64, plan.num_chunks).to(dtype)
    assert torch.equal(assignment.means(by_step), chunk_means(by_step, plan))
    assert torch.equal(assignment.to_steps(by_chunk), by_chunk[:, list(plan.chunk_of_step())])
    assert assignment.sizes.tolist() == [list(plan.sizes)] * 64


def test_each_row_follows_its_own_plan():
    assignment = ChunkAssignment.per_row(PLANS)
    assert torch.equal(assignment.single_steps().chunk, ChunkAssignment.shared(step_plan(16), 3).chunk)
    values = draw(3, 16)
    means, spread = assignment.means(values), assignment.to_steps(assignment.means(values))
    for row, plan in enumerate(PLANS):
        assert torch.equal(means[row, : plan.num_chunks], chunk_means(values[row], plan))
        assert not means[row, plan.num_chunks :].any()
        assert torch.equal(spread[row], chunk_means(values[row], plan)[list(plan.chunk_of_step())])


def test_untrained_steps_and_missing_chunks_are_not_read():
    values = torch.tensor([[NAN, 1.0, 3.0, NAN], [4.0, NAN, 5.0, 8.0], [NAN] * 4], requires_grad=True)
    means = ragged().means(values)
    assert means.tolist() == [[2, 0], [4, 6.5], [0, 0]]
    (grad,) = torch.autograd.grad(means.sum(), values)
    assert grad.tolist() == [[0, 0.5, 0.5, 0], [1, 0, 0.5, 0.5], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    "row", [[1, 1, 2], [0, 0, 2], [0, 1, 0], [1, 0, 0], [-1, 1, 2], [0, -1, 0], [0, 1, -1, 1], [0, -2, 1]], ids=str
)
def test_rows_must_be_runs_numbered_in_order(row):
    good = [0] * len(row)
    with pytest.raises(ValueError, match=r"runs of consecutive steps numbered 0, 1, .* got \[") as caught:
        ChunkAssignment(torch.tensor([good, row]))
    assert str(caught.value).endswith(str(row))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChunkAssignment(torch.zeros(2, 3)), "int64 .* got torch.float32"),
        (lambda: ChunkAssignment(torch.zeros(3, dtype=torch.int64)), r"got torch.int64 \(3,\)"),
        (lambda: ChunkAssignment(torch.zeros(0, 3, dtype=torch.int64)), r"at least 1, got .* \(0, 3\)"),
        (lambda: ChunkAssignment(-torch.ones(2, 3, dtype=torch.int64)), "at least one chunk, got none"),
        (lambda: ChunkAssignment.per_row([]), "at least one .* got 0 plans"),
        (lambda: ChunkAssignment.per_row([step_plan(2), step_plan(3)]), r"2 plans over \[2, 3\] steps"),
        (lambda: ChunkAssignment.shared(step_plan(2), 0), "got 0 plans"),
        (lambda: ragged().means(torch.zeros(3, 5)), r"shape \(3, 4\), got \(3, 5\)"),
        (lambda: ragged().to_steps(torch.zeros(3, 3)), r"shape \(3, 2\), got \(3, 3\)"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
