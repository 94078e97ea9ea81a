"""Which items go through the network together."""

import torch

from chunk_grpo.core.assignment import ChunkAssignment, TrainedChunks
from chunk_grpo.core.chunking import ChunkPlan, listed_plan, step_plan
from chunk_grpo.training.packing import pack, with_slope


def packed(chunks: TrainedChunks, size: int) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
    found = pack(chunks, size)
    return [part.tolist() for part in found.divided], [part.tolist() for part in found.whole]


def test_packing_by_hand():
    """Chunks of 3, 1 and 2 steps in row 0, of 4 and 2 in row 1; all but the chunk of 2 steps of row 0 are trained."""
    assignment = ChunkAssignment.per_row([ChunkPlan((3, 1, 2)), ChunkPlan((4, 2))])
    chunks = TrainedChunks(assignment, torch.tensor([[True, True, False], [True, True, False]]), None)
    of_4, of_3 = [[1, 0], [1, 1], [1, 2], [1, 3]], [[0, 0], [0, 1], [0, 2]]
    of_2, of_1 = [[1, 4], [1, 5]], [[0, 3]]
    assert packed(chunks, 100) == ([], [[*of_4, *of_3, *of_2, *of_1]])
    assert packed(chunks, 7) == ([], [[*of_4, *of_3], [*of_2, *of_1]])
    assert packed(chunks, 4) == ([], [of_4, of_3, [*of_2, *of_1]])
    assert packed(chunks, 3) == ([of_4[:3], of_4[3:]], [of_3, [*of_2, *of_1]])
    assert packed(chunks, 2) == ([of_4[:2], of_4[2:], of_3[:2], of_3[2:]], [of_2, of_1])
    assert packed(chunks, 1) == ([[item] for item in [*of_4, *of_3, *of_2]], [of_1])


def test_single_steps_fill_micro_batches_in_their_order():
    chunks = TrainedChunks(ChunkAssignment.shared(step_plan(5), 2), torch.ones(2, 5, dtype=torch.bool), None)
    assert packed(chunks, 4)[1] == [
        [[0, 0], [0, 1], [0, 2], [0, 3]],
        [[0, 4], [1, 0], [1, 1], [1, 2]],
        [[1, 3], [1, 4]],
    ]


def test_steps_of_no_chunk_are_left_out():
    chunks = TrainedChunks(ChunkAssignment(torch.tensor([[-1, 0, -1, 1, -1]])), torch.tensor([[True, True]]), None)
    assert packed(chunks, 8) == ([], [[[0, 1], [0, 3]]])


def test_chunks_without_a_slope_are_left_out_by_hand():
    """Three rows with chunks of 3 and 1 steps; the middle one has a slope in its first chunk, but for one step."""
    chunks = TrainedChunks.every(ChunkAssignment.shared(ChunkPlan((3, 1)), 3))
    slopes = torch.zeros(3, 4)
    slopes[1, :3] = torch.tensor([0.5, 0.0, -0.5])
    assert with_slope(chunks, slopes).selected.tolist() == [[False, False], [True, False], [False, False]]
    slopes[2, 3] = -0.5
    found = with_slope(chunks, slopes)
    assert packed(found, 3) == ([], [[[1, 0], [1, 1], [1, 2]], [[2, 3]]])
    untrained = TrainedChunks(chunks.assignment, torch.tensor([[True, True], [False, True], [True, True]]))
    assert with_slope(untrained, slopes).selected.nonzero().tolist() == [[2, 1]]
    assert with_slope(chunks, torch.zeros(3, 4)) is chunks  # a process has something to pass


def test_every_item_is_in_one_micro_batch_of_at_most_its_size():
    plan = listed_plan((2, 3, 4, 7), 16)
    selected = torch.rand(20, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    chunks = TrainedChunks(ChunkAssignment.shared(plan, 20), selected, None)
    trained = (chunks.assignment.to_steps(selected.double()) > 0).nonzero().tolist()
    for size in (1, 2, 3, 5, 7, 8, 64, 1000):
        found = pack(chunks, size).all
        assert all(1 <= len(part) <= size for part in found)
        assert sorted(torch.cat(found).tolist()) == trained
