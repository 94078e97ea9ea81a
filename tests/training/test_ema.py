"""The average by hand, and a swap that leaves no trace."""

import contextlib

import pytest
import torch
from torch import Tensor, nn

from chunk_grpo.training.ema import ExponentialMovingAverage, constant, rising, warming


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor([1.0, -2.0])), nn.Parameter(torch.tensor([[4.0]]))]


def assign(weights: list[nn.Parameter], *values: object) -> None:
    with torch.no_grad():
        for weight, value in zip(weights, values, strict=True):
            weight.copy_(torch.tensor(value))


def trained(decay: float = 0.75) -> tuple[list[nn.Parameter], ExponentialMovingAverage]:
    """Random weights that are not their average."""
    stream = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(5, 3, generator=stream)) for _ in range(2)]
    ema = ExponentialMovingAverage(weights, constant(decay))
    assign(weights, *(torch.randn(5, 3, generator=stream).tolist() for _ in weights))
    ema.update(1)
    return weights, ema


def copies(tensors: list[nn.Parameter] | list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_two_updates_by_hand():
    weights = parameters()
    ema = ExponentialMovingAverage(weights, constant(0.75))
    assign(weights, [5.0, 2.0], [[0.0]])
    ema.update(1)  # 0.75 (1, -2) + 0.25 (5, 2) = (2, -1);  0.75 * 4 + 0.25 * 0 = 3
    assert [average.tolist() for average in ema.state()] == [[2.0, -1.0], [[3.0]]]
    assign(weights, [6.0, -1.0], [[7.0]])
    ema.update(1)  # 0.75 (2, -1) + 0.25 (6, -1) = (3, -1);  0.75 * 3 + 0.25 * 7 = 4
    assert [average.tolist() for average in ema.state()] == [[3.0, -1.0], [[4.0]]]
    assert [weight.tolist() for weight in weights] == [[6.0, -1.0], [[7.0]]]
    assert not any(average.requires_grad for average in ema.state())  # they are outside every graph


def test_warm_up_by_hand():
    """Decays 2/11, 3/12 and 4/13 after updates 1, 2 and 3; from the 8th on that of the setting, here below 9/18."""
    weight = nn.Parameter(torch.tensor([11.0], dtype=torch.float64))
    ema = ExponentialMovingAverage([weight], warming(0.45))
    assign([weight], [0.0])
    for updates, expected in ((1, 2.0), (2, 0.5), (3, 2.0 / 13)):
        ema.update(updates)
        assert ema.state()[0].item() == pytest.approx(expected, rel=1e-14)
    for updates, decay in ((6, 7 / 16), (7, 0.45), (8, 0.45), (10**6, 0.45)):
        before = ema.state()[0].item()
        ema.update(updates)
        assert ema.state()[0].item() / before == pytest.approx(decay, rel=1e-14)


@pytest.mark.parametrize(
    ("decay", "by_hand"),
    [
        (rising(0.001, 0.5, 0), {1: 0.001, 100: 0.1, 500: 0.5, 10_000: 0.5}),
        (rising(0.0075, 0.999, 75), {74: 0, 75: 0, 76: 0.0075, 1000: 0.999}),
    ],
)
def test_the_decay_of_a_sampling_policy_by_hand(decay, by_hand):
    assert {k: decay(k) for k in by_hand} == pytest.approx(by_hand)


def test_decay_0_is_the_last_weights():
    weights, ema = trained(decay=0.0)
    assert same(ema.state(), copies(weights))


@pytest.mark.parametrize("fails", [False, True])
def test_the_swap_is_exact_both_ways(fails):
    """Also when the block fails."""
    weights, ema = trained()
    mine, averages = copies(weights), copies(ema.state())
    places = [weight.data_ptr() for weight in weights]
    with contextlib.suppress(KeyError), ema.averaged():
        assert same(copies(weights), averages)
        assert not same(copies(weights), mine)
        assert [weight.data_ptr() for weight in weights] == places
        if fails:
            raise KeyError
    assert same(copies(weights), mine)
    assert same(ema.state(), averages)
    ema.update(1)


@pytest.mark.parametrize("what", ["update", "state", "averaged", "load_state"])
def test_other_calls_are_refused_inside_the_swap(what):
    weights, ema = trained()
    mine, averages = copies(weights), copies(ema.state())
    calls = {
        "update": lambda: ema.update(1),
        "state": ema.state,
        "averaged": lambda: ema.averaged().__enter__(),
        "load_state": lambda: ema.load_state(averages),
    }
    with ema.averaged(), pytest.raises(ValueError, match=f"{what} is not possible inside averaged"):
        calls[what]()
    assert same(copies(weights), mine)
    assert same(ema.state(), averages)


def test_restored_average_continues_identically():
    weights, ema = trained()
    state = copies(ema.state())
    given = copies(state)
    other = ExponentialMovingAverage(weights, constant(0.75))
    other.load_state(state)
    for average in (ema, other):
        average.update(1)
    assert same(ema.state(), other.state())
    assert not same(ema.state(), given)
    assert same(state, given)  # copied, not taken over


def test_averages_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"shapes \[\(5, 3\), \(5, 3\)\] of the parameters, got \[\(2,\)\]"):
        trained()[1].load_state([torch.ones(2)])
