import math

import pytest
import torch

from chunk_grpo.core.chunking import listed_plan, single_plan, step_plan
from chunk_grpo.core.ratios import chunk_ratio, step_ratio

NEW = torch.log(torch.tensor([[2.0, 8.0, 3.0, 9.0, 0.5]], dtype=torch.float64))
OLD = torch.zeros(1, 5, dtype=torch.float64)


def test_step_ratio_by_hand():
    assert step_ratio(NEW, OLD)[0].tolist() == pytest.approx([2, 8, 3, 9, 0.5], abs=1e-14)
    assert step_ratio(OLD, NEW)[0, 0].item() == pytest.approx(0.5, abs=1e-15)


def test_chunk_ratio_by_hand():
    # sqrt(2 * 8) = 4, cube root of 3 * 9 * .5 = 13.5
    ratio = chunk_ratio(NEW, OLD, listed_plan([2, 3], 5))
    assert ratio[0].tolist() == pytest.approx([4.0, 13.5 ** (1 / 3)], abs=1e-14)


def test_chunks_of_one_step_are_the_step_level():
    assert torch.equal(chunk_ratio(NEW, OLD, step_plan(5)), step_ratio(NEW, OLD))


def test_a_single_chunk_is_the_sequence_ratio():
    sequence = math.exp((NEW.sum() - OLD.sum()).item() / 5)
    assert chunk_ratio(NEW, OLD, single_plan(5))[0].tolist() == pytest.approx([sequence], abs=1e-14)


def test_ratio_is_one_on_policy():
    assert torch.equal(step_ratio(NEW, NEW), torch.ones_like(NEW))
    assert torch.equal(chunk_ratio(NEW, NEW, listed_plan([2, 3], 5)), torch.ones(1, 2).double())


def test_samples_do_not_mix():
    both = chunk_ratio(torch.cat([NEW, OLD]), torch.zeros(2, 5).double(), listed_plan([2, 3], 5))
    assert torch.equal(both[1], torch.ones(2).double())


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"share a shape \[B, N\], got \(1, 5\) and \(1, 4\)"):
        step_ratio(NEW, OLD[:, :4])


def test_the_plan_must_cover_the_steps():
    with pytest.raises(ValueError, match="covers 4 steps, but the values have 5"):
        chunk_ratio(NEW, OLD, single_plan(4))
