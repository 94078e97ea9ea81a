"""Peak memory: torch's records tell it, and a chunk's update needs that of one step."""

from dataclasses import replace

import torch

from benchmarks.configurations import TINY, Configuration
from benchmarks.memory import SIZES, peak_bytes, update_peak
from benchmarks.results import MEMORY_TARGET

CONFIGURATION = Configuration("small", TINY, 32, 2, 2, 8, 1)
MIB = 2**20


def test_the_peak_is_what_lived_at_one_time() -> None:
    before = torch.zeros(MIB // 4)

    def work() -> None:
        kept = [torch.zeros(MIB // 4) for _ in range(3)]
        del kept
        torch.zeros(2 * MIB // 4)

    assert peak_bytes(work) == 3 * MIB
    assert peak_bytes(lambda: None) == 0
    assert before.numel() == MIB // 4


def test_a_chunk_of_seven_steps_needs_a_quarter_of_autograds_memory_at_most() -> None:
    held, ours = (update_peak(CONFIGURATION, 2, way) for way in ("autograd", "ours"))
    assert 0 < ours < MEMORY_TARGET * held


def test_our_memory_does_not_grow_with_the_chunk_and_autograds_does() -> None:
    short = replace(CONFIGURATION, sizes=(*SIZES[:-1], 2))
    for way, grows in (("autograd", True), ("ours", False)):
        assert (update_peak(CONFIGURATION, 1, way) > 1.5 * update_peak(short, 1, way)) == grows
