import pytest
import torch

from chunk_grpo.core.precision import at_least_float32, broadcast, exact


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_upcast(dtype):
    assert at_least_float32(torch.ones(2, dtype=dtype)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_is_passed_through(dtype):
    x = torch.ones(2, dtype=dtype)
    assert at_least_float32(x) is x


def test_broadcast_takes_dtype_and_rank_of_the_tensor():
    like = torch.zeros(2, 3, 4)
    assert broadcast(torch.tensor([1.0, 2.0], dtype=torch.float64), like).shape == (2, 1, 1)
    assert broadcast(0.5, like).shape == ()
    assert broadcast(0.5, like).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: broadcast(torch.ones(3), torch.zeros(2, 4)), r"one entry per sample \(2\), got 3"),
        (lambda: exact(torch.ones(2, 2)), r"scalar or have shape \[B\], got shape \(2, 2\)"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
