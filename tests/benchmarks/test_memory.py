"""Peak memory: that of torch's records; ours is a quarter of autograd's at most, and does not grow with the chunk."""

from dataclasses import replace

import pytest
import torch

from benchmarks.memory import SIZES, peak_bytes, update_peak
from benchmarks.workloads import TINY, Workload

MIB = 2**20


def test_peak_counts_bytes_alive_at_the_same_time() -> None:
    before = torch.zeros(MIB // 4)

    def work() -> None:
        kept = [torch.zeros(MIB // 4) for _ in range(3)]
        del kept
        torch.zeros(2 * MIB // 4)

    assert peak_bytes(work) == 3 * MIB
    assert peak_bytes(lambda: None) == 0
    assert before.numel() == MIB // 4


def test_peak_excludes_tensors_of_earlier_measurements() -> None:
    kept: list[torch.Tensor] = []
    assert peak_bytes(lambda: kept.append(torch.zeros(MIB // 4))) == MIB
    assert peak_bytes(lambda: kept.append(torch.zeros(2 * MIB // 4))) == 2 * MIB


@pytest.mark.slow
def test_our_memory_is_small_and_does_not_grow_with_the_chunk() -> None:
    long = Workload("small", TINY, 32, 2, 2, 8, 1)
    short = replace(long, sizes=(*SIZES[:-1], 2))
    autograd, ours = update_peak(long, 1, "autograd"), update_peak(long, 1, "ours")
    assert 0 < ours < autograd / 4
    assert ours < 1.5 * update_peak(short, 1, "ours")
    assert autograd > 1.5 * update_peak(short, 1, "autograd")
