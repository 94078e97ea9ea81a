"""What each step earned: a model whose expected rewards are known in closed form, and figures by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.studies import attribution
from chunk_grpo.core.log_prob import gaussian_log_prob
from chunk_grpo.core.sde import SDE, diffusion_coefs, sde_transition
from chunk_grpo.training.method import StepGrid
from tests.conftest import Workspace

TIMES = torch.tensor([1.0, 0.8, 0.5, 0.2, 0.0], dtype=torch.float64)
GRID = StepGrid(TIMES, diffusion_coefs(TIMES, "flow", 0.7), SDE)
STEPS = 3


def still(x, t):
    """A velocity of zero: each step multiplies the state and adds noise."""
    return torch.zeros_like(x)


def first(latents):
    """Reward: the first number of the final latents."""
    return latents[:, 0, 0].double().numpy()


def factors():
    """What each noisy step multiplies the state by."""
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    steps = zip(TIMES[:-2], TIMES[1:-1], GRID.noise, strict=True)
    return [float(sde_transition(one, 0 * one, *step).mean) for step in steps]


def values_of(images, continuations, seed=0):
    noise = torch.Generator().manual_seed(seed)
    start = torch.randn(images, 1, 1, generator=noise, dtype=torch.float64)
    states = attribution.continued(GRID, still, start, 0, noise)
    return states, attribution.expected(still, first, states, GRID, continuations, noise)


def test_expected_rewards_are_those_of_a_linear_model():
    states, values = values_of(images=5, continuations=20_000)
    assert values.shape == (2, 5, STEPS + 1)
    left = [float(np.prod(factors()[step:])) for step in range(STEPS + 1)]
    exact = states[:, : STEPS + 1, 0, 0].numpy() * left
    np.testing.assert_allclose(values[0], exact, atol=0.03)
    np.testing.assert_array_equal(values[0, :, -1], first(states[:, -1]))


def test_the_halves_of_the_continuations_are_different_draws():
    _, values = values_of(images=3, continuations=2)
    assert (values[0, :, :-1] != values[1, :, :-1]).all()


def test_shares_are_the_variances_that_the_steps_add():
    _, values = values_of(images=40_000, continuations=2)
    left = [float(np.prod(factors()[step:])) for step in range(STEPS + 1)]
    stds = SDE.std(TIMES[:-2], TIMES[1:-1], GRID.noise).numpy()
    parts = np.array([left[0] ** 2, *(stds * left[1:]) ** 2])
    found = attribution.share(values[None])
    np.testing.assert_allclose(found, parts / parts.sum(), atol=0.03)
    assert found.sum() == pytest.approx(1)
    rewards = values[0, :, -1]
    assert rewards.var() == pytest.approx(parts.sum(), rel=0.03)


def rewards_of(parts, noise=0.0, seed=1):
    """Expected rewards [P, 2, G, 3] of two steps whose advantages have these deviations, estimated with noise."""
    draw = np.random.default_rng(seed)
    steps = draw.normal(size=(4000, 1, 8, 2)) * parts
    exact = np.concatenate([np.zeros((4000, 1, 8, 1)), steps.cumsum(axis=3)], axis=3)
    halves = np.repeat(exact, 2, axis=1)
    halves[..., :-1] += noise * draw.normal(size=halves[..., :-1].shape)
    return halves


def test_the_best_weights_are_the_shares_of_the_variance():
    values = rewards_of([2.0, 1.0], noise=0.7)
    by_image = attribution.advantages(values)[..., None]
    found = {
        weights: attribution.coefficient_cosine(values, by_image * np.array(weights))
        for weights in ((1, 1), (4, 1), (1, 4), (8, 2))
    }
    # cos^2 = (w . s)^2 / ((sum of s) (w . w) (sum of s)) with s = (4, 1), and 7/8 for the group's mean.
    by_hand = {(1, 1): 25 / 50, (4, 1): 17**2 / (25 * 17), (1, 4): 8**2 / (25 * 17), (8, 2): 17**2 / (25 * 17)}
    assert found == pytest.approx({weights: 7 / 8 * value for weights, value in by_hand.items()}, abs=0.01)


def test_a_batch_points_to_the_truth_as_its_size_says():
    draw = torch.Generator().manual_seed(0)
    truth = torch.zeros(2, 400)
    truth[0, 0], truth[1, 1] = 3.0, 1.0
    by_step = truth.expand(600, 2, 400)
    by_image = by_step + 0.5 * torch.randn(600, 2, 400, generator=draw)
    gram = attribution.inner_products(torch.stack([by_image, by_step], dim=1).double())
    for batch in (1, 10):
        for weights in ((1.0, 1.0), (1.0, 0.0)):
            w = torch.tensor(weights)
            length = float(w.square() @ truth.square().sum(1)) + 400 * 0.25 * float(w.square().sum()) / batch
            exact = float(w @ truth.square().sum(1)) ** 2 / (length * 10)
            found = attribution.gradient_cosine(gram, np.array(weights), batch)
            assert found == pytest.approx(exact, rel=0.03)
    own = gram[1:, 1:].repeat(2, axis=0).repeat(2, axis=1)
    assert attribution.gradient_cosine(own, np.ones(2), 1) == pytest.approx(1)


def test_norms_by_chunk_are_those_of_batches():
    draw = torch.Generator().manual_seed(0)
    steps, batch = sum(attribution.SIZES), attribution.BATCHES[0]
    mean = torch.randn(steps, 50, generator=draw, dtype=torch.float64)
    gradients = mean + torch.randn(60, steps, 50, generator=draw, dtype=torch.float64)
    weights = np.linspace(0.5, 1.5, steps)
    gram = attribution.inner_products(gradients[:, None])[0, 0]
    name, size, row = attribution.norms_by_chunk(gram, {"any": weights})[0]
    assert (name, size) == ("any", batch)
    weighted = gradients * torch.from_numpy(weights)[:, None]
    drawn = [torch.randperm(60, generator=draw)[:batch] for _ in range(500)]
    batches = torch.stack([weighted[prompts].mean(dim=0) for prompts in drawn])  # [500, N, W]

    def norm_of(part):
        return float(part.sum(dim=-2).square().sum(dim=-1).mean().sqrt())

    whole, first = norm_of(batches), 0
    for size, (norm, of_mean) in zip(attribution.SIZES, row, strict=True):
        chunk = slice(first, first + size)
        assert norm == pytest.approx(norm_of(batches[:, chunk]) / whole, rel=0.02)
        assert of_mean == pytest.approx(
            float((mean * torch.from_numpy(weights)[:, None])[chunk].sum(dim=0).norm()) / whole, rel=0.05
        )
        first += size


def test_sketches_keep_inner_products():
    draw = torch.Generator().manual_seed(0)
    gradients = torch.randn(2, 3, 200_000, generator=draw, dtype=torch.float64)
    gradients[1] += gradients[0]
    found = attribution.sketched(gradients)
    assert found.shape == (2, 3, attribution.SKETCH)
    exact = torch.einsum("akw,blw->abkl", gradients, gradients)
    close = torch.einsum("akw,blw->abkl", found, found)
    lengths = gradients.norm(dim=-1)
    allowed = 5 / attribution.SKETCH**0.5 * torch.einsum("ak,bl->abkl", lengths, lengths)
    assert bool(((close - exact).abs() < allowed).all())


def test_gradients_are_of_weighted_log_probabilities():
    weight = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def velocity(x, t):
        return weight * x

    noise = torch.Generator().manual_seed(0)
    start = torch.randn(4, 1, 2, generator=noise, dtype=torch.float64)
    states = attribution.continued(GRID, velocity, start, 0, noise)
    draw = np.random.default_rng(0)
    given = [draw.normal(size=(4, STEPS)) for _ in range(2)]
    found = attribution.step_gradients(velocity, [weight], states, GRID, given)
    assert found.shape == (2, STEPS, 1)
    for step in range(STEPS):
        mean, std = sde_transition(
            states[:, step],
            velocity(states[:, step], None),
            *(float(each) for each in (TIMES[step], TIMES[step + 1], GRID.noise[step])),
        ).__dict__.values()
        log_probs = gaussian_log_prob(states[:, step + 1], mean, std)
        for kind, credit in enumerate(given):
            (exact,) = torch.autograd.grad(torch.from_numpy(credit[:, step]) @ log_probs, weight, retain_graph=True)
            assert float(found[kind, step]) == pytest.approx(float(exact))


def test_predictions_are_of_one_evaluation():
    """x0 = x - t v, here with v = x / 2, and of the images themselves at the end."""
    noise = torch.Generator().manual_seed(0)
    start = torch.randn(3, 1, 2, generator=noise, dtype=torch.float64)
    made = attribution.rolled(GRID, lambda x, t: x / 2, start, noise)
    states = made.states
    exact = [states[:, k, 0, 0] * (1 - TIMES[k] / 2) for k in range(STEPS)]
    found = attribution.predicted(first, made)
    np.testing.assert_allclose(found, torch.stack([*exact, states[:, -1, 0, 0]], dim=1))


def test_gains_are_differences_less_the_groups_mean_shared_within_a_chunk():
    predictions = np.zeros((2, 17))
    predictions[0, 2:] = 1.0  # the first image gains in the first chunk, and in the last step of the last one
    predictions[0, 16:] += 7.0
    values = np.zeros((2, 2, 17))
    values[:, 0, 16] = 3.0
    found = attribution.credits_of(values, predictions)
    np.testing.assert_array_equal(found[attribution.IMAGE], np.repeat([[1.5], [-1.5]], 16, axis=1))
    assert found[attribution.OWN][0].tolist() == [0.0] * 15 + [3.0]
    assert found["gains of steps"][0].tolist() == [0, 0.5] + [0] * 13 + [3.5]
    assert found["gains of chunks 2, 3, 4, 7"][0].tolist() == [0.25] * 2 + [0] * 7 + [0.5] * 7
    assert found["gains of chunks 4, 4, 4, 4"][0].tolist() == [0.125] * 4 + [0] * 8 + [0.875] * 4
    np.testing.assert_array_equal(found["gains of steps"].sum(axis=0), 0)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    numbers = np.array([1.0, 2.0, 4.0, 7.0, 11.0])
    mean, low, high = attribution.by_prompt(lambda kept: float(numbers[kept].mean()), 5)
    assert mean == 5
    error = numbers.std(ddof=1) / np.sqrt(5)
    assert (high - low) / 2 == pytest.approx(2.776445 * error, rel=1e-6)


@pytest.mark.slow
def test_the_command_measures_a_finished_run(finished: Workspace, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    few = ("--prompts", "3", "--images", "4", "--continuations", "2")
    assert attribution.main([str(finished.root), "--json", str(found), *few]) == 0
    written = json.loads(found.read_text())
    assert 0 < written["prompts"] <= 3
    assert sum(share for share, *_ in written["shares"]) == pytest.approx(1)
    for each in written["cosines"].values():
        assert all(np.isfinite(value) for value, _ in each.values())
