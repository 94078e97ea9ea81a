import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from chunk_grpo.core.log_prob import gaussian_kl, gaussian_log_prob
from chunk_grpo.core.sde import sde_transition
from tests.core.conftest import draw


def test_log_prob_by_hand():
    # one dimension, (1 - 0) / 2: -1/8 - ln 2 - ln(2 pi)/2
    value = gaussian_log_prob(torch.tensor([[[1.0]]]).double(), torch.zeros(1, 1, 1).double(), 2.0)
    assert value.item() == pytest.approx(-0.125 - math.log(2) - 0.5 * math.log(2 * math.pi), abs=1e-15)


@pytest.mark.parametrize("std", [0.3, torch.tensor([0.3, 2.0], dtype=torch.float64)], ids=["one", "each"])
def test_log_prob_is_the_mean_over_latent_dimensions(std):
    x, mean = draw(2, 3, 4), draw(2, 3, 4, seed=1)
    each = torch.as_tensor(std, dtype=torch.float64).reshape(-1, 1, 1)
    expected = Normal(mean, each).log_prob(x).mean(dim=(1, 2))
    torch.testing.assert_close(gaussian_log_prob(x, mean, std), expected, rtol=0, atol=1e-13)


def test_kl_is_the_closed_form_mean_over_latent_dimensions():
    mean, mean_ref = draw(2, 3, 4), draw(2, 3, 4, seed=1)
    expected = kl_divergence(Normal(mean, 0.3), Normal(mean_ref, 0.3)).mean(dim=(1, 2))
    torch.testing.assert_close(gaussian_kl(mean, mean_ref, 0.3), expected, rtol=0, atol=1e-13)


def test_kl_of_velocities_is_tempflow_equation_6():
    t, t_next, coef = 0.6, 0.5, 0.9
    x, v, v_ref = draw(2, 3, 4), draw(2, 3, 4, seed=1), draw(2, 3, 4, seed=2)
    policy, reference = sde_transition(x, v, t, t_next, coef), sde_transition(x, v_ref, t, t_next, coef)
    scale = (t - t_next) / 2 * (coef * (1 - t) / (2 * t) + 1 / coef) ** 2
    expected = scale * (v - v_ref).square().mean(dim=(1, 2))
    kl = gaussian_kl(policy.mean, reference.mean, policy.std)
    torch.testing.assert_close(kl, expected, rtol=1e-12, atol=0)


def test_half_precision_is_upcast():
    x = torch.ones(1, 2, 2, dtype=torch.bfloat16)
    assert gaussian_log_prob(x, x, 0.5).dtype == torch.float32


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        (torch.zeros(1, 2, 2), 0.0, r"std must be positive.*got 0\.0"),
        (torch.zeros(1, 2, 1), 1.0, r"share a shape.*\(1, 2, 2\) and \(1, 2, 1\)"),
    ],
)
def test_bad_arguments_are_refused(mean, std, message):
    for function in (gaussian_log_prob, gaussian_kl):
        with pytest.raises(ValueError, match=message):
            function(torch.zeros(1, 2, 2), mean, std)
