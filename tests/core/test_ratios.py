import math

import pytest
import torch

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.chunking import listed_plan, single_plan, step_plan
from chunk_grpo.core.log_prob import gaussian_kl, gaussian_log_prob
from chunk_grpo.core.ratios import chunk_ratio, guard_log_ratio

NEW = torch.log(torch.tensor([[2.0, 8.0, 3.0, 9.0, 0.5]], dtype=torch.float64))
OLD = torch.zeros(1, 5, dtype=torch.float64)


def ratios(new, old, plan):
    return chunk_ratio(new, old, ChunkAssignment.shared(plan, len(new)))


def test_ratios_of_single_steps_by_hand():
    assert ratios(NEW, OLD, step_plan(5))[0].tolist() == pytest.approx([2, 8, 3, 9, 0.5], abs=1e-14)
    assert ratios(OLD, NEW, step_plan(5))[0, 0].item() == pytest.approx(0.5, abs=1e-15)


def test_chunk_ratio_by_hand():
    # sqrt(2 * 8) = 4, cube root of 3 * 9 * .5 = 13.5
    ratio = ratios(NEW, OLD, listed_plan([2, 3], 5))
    assert ratio[0].tolist() == pytest.approx([4.0, 13.5 ** (1 / 3)], abs=1e-14)


def test_untrained_steps_and_missing_chunks_do_not_enter():
    # sqrt(2 * 8) = 4 and sqrt(9 * .5); the third step is in no chunk, and the second row has one chunk only
    assignment = ChunkAssignment(torch.tensor([[0, 0, -1, 1, 1], [-1, -1, -1, -1, 0]]))
    new = torch.cat([NEW, NEW])
    new[0, 2] = math.nan
    ratio = chunk_ratio(new, torch.zeros_like(new), assignment)
    assert ratio[0].tolist() == pytest.approx([4.0, 4.5**0.5], abs=1e-14)
    assert ratio[1].tolist() == pytest.approx([0.5, 1.0], abs=1e-15)


def test_a_single_chunk_is_the_sequence_ratio():
    sequence = math.exp((NEW.sum() - OLD.sum()).item() / 5)
    assert ratios(NEW, OLD, single_plan(5))[0].tolist() == pytest.approx([sequence], abs=1e-14)


GUARD_STDS = torch.tensor([0.8, 0.2, 0.05], dtype=torch.float64)


def guard_case(batch):
    """Steps drawn from an old policy: their noise, the move of the means, and what both policies say."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(batch, 3, 2, 2, dtype=torch.float64, generator=generator)
    move = 0.05 * torch.randn(1, 1, 2, 2, dtype=torch.float64, generator=generator)
    old_mean = torch.randn(1, 3, 2, 2, dtype=torch.float64, generator=generator).expand(batch, -1, -1, -1)
    mean, log_probs, old_log_probs, drift = old_mean + move, [], [], []
    for step, std in enumerate(GUARD_STDS):
        x_next = old_mean[:, step] + std * noise[:, step]
        log_probs.append(gaussian_log_prob(x_next, mean[:, step], std))
        old_log_probs.append(gaussian_log_prob(x_next, old_mean[:, step], std))
        drift.append(gaussian_kl(mean[:, step], old_mean[:, step], std))
    stacked = [torch.stack(values, dim=1) for values in (log_probs, old_log_probs, drift)]
    return noise, move, stacked


def test_guard_log_ratio_by_hand():
    new, old, drift = torch.tensor([[1.0, 2, 3]]), torch.tensor([[0.5, 3, 1]]), torch.tensor([[0.25, 2, 7]])
    log_ratio = guard_log_ratio(new, old, drift, torch.tensor([2, 0.5, 0]))
    assert log_ratio.tolist() == [[1.5, 0.5, 0]]  # 2 * (.5 + .25), .5 * (-1 + 2), and a step without noise


def test_guard_log_ratio_is_the_mean_of_noise_times_move():
    noise, move, (new, old, drift) = guard_case(batch=50)
    closed_form = (noise * move).mean(dim=(2, 3))
    torch.testing.assert_close(guard_log_ratio(new, old, drift, GUARD_STDS), closed_form, rtol=0, atol=1e-12)
    per_row = GUARD_STDS.expand(50, -1)
    assert torch.equal(guard_log_ratio(new, old, drift, per_row), guard_log_ratio(new, old, drift, GUARD_STDS))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ratios(NEW, OLD[:, :4], step_plan(5)), r"a shape \[B, N\], got \(1, 5\) and \(1, 4\)"),
        (lambda: ratios(NEW, OLD, single_plan(4)), r"assignment with shape \(1, 4\), got \(1, 5\)"),
        (lambda: guard_log_ratio(NEW, OLD, OLD[:, :4], torch.ones(5)), r"\(1, 5\) .* got \(1, 4\) and \(5,"),
        (lambda: guard_log_ratio(NEW, OLD, OLD, torch.ones(4)), r"got \(1, 5\) and \(4,\)"),
        (lambda: guard_log_ratio(NEW, OLD, OLD, -torch.ones(5)), "std must be at least 0, got"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
