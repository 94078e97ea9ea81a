"""Experience: every trajectory is a function of its name alone, and nothing that is not a number passes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.rollout import rollout_ode
from chunk_grpo.errors import DataError
from chunk_grpo.families.base import velocity_function
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.training.advantages import rewards_of
from chunk_grpo.training.chunk_selection import ChunkSelector, DrawContext
from chunk_grpo.training.heldout import heldout_images, heldout_scores
from chunk_grpo.training.rollouts import Experience, Iteration, collect_experience
from chunk_grpo.training.run import TrainingData
from chunk_grpo.training.schedule import starts_per_prompt

from .conftest import CHUNK_WS, PROFILE, method_of, small_params

G = 3


def experience(
    family: FluxFamily,
    data: TrainingData,
    batch_size: int = 4,
    same_noise: bool = False,
    iteration: int = 1,
    seed: int = 0,
) -> Experience:
    sizes = {"group_size": G, "rollout_batch_size": batch_size, "micro_batch_size": batch_size}
    params = small_params(CHUNK_WS, same_noise_in_group=same_noise, **sizes)
    where = Iteration(iteration, data.prompts.rows([1, 3]), range(2 * G))
    return collect_experience(family, method_of(params), where, data.reward, params.train, seed)


def test_rows_are_grouped_by_prompt(family, data):
    made = experience(family, data)
    assert made.prompts.ids == ["p1"] * G + ["p3"] * G
    assert made.trajectories.states.shape == (2 * G, len(PROFILE) + 2, *family.latent_shape)
    assert made.trajectories.log_probs.shape == (2 * G, len(PROFILE))
    rewards = rewards_of(made, data.reward.weights)
    assert rewards.shape == (2, G)
    by_hand = 1.0 * made.scores["shapes-graded"] + 0.6 * made.scores["shapes-vivid"]
    assert np.array_equal(rewards.numpy().ravel(), by_hand)


@pytest.mark.parametrize("batch_size", [1, 5, 6, 100])
def test_trajectories_do_not_depend_on_the_batch_size(batch_size, family, data):
    """The noise is bitwise the same; a forward pass over another batch may round differently.

    Four steps carry such a difference, 1e-7 at first, to 7e-6 on two threads and to 1.2e-5 on one.
    """
    one, other = experience(family, data), experience(family, data, batch_size)
    assert torch.equal(one.trajectories.states[:, 0], other.trajectories.states[:, 0])
    assert float((one.trajectories.states - other.trajectories.states).abs().max()) < 3e-5
    assert float((one.trajectories.log_probs - other.trajectories.log_probs).abs().max()) < 1e-5
    rewards = [rewards_of(made, data.reward.weights) for made in (one, other)]
    assert float((rewards[0] - rewards[1]).abs().max()) < 1e-3


def test_every_trajectory_has_its_own_noise(family, data):
    starts = [
        experience(family, data, iteration=i, seed=s).trajectories.states[:, 0].flatten(1)
        for i, s in ((1, 0), (2, 0), (1, 1))
    ]
    rows = torch.cat(starts)
    distances = torch.cdist(rows, rows) + torch.eye(len(rows)) * 1e9
    assert float(distances.min()) > 1


def test_a_group_may_share_its_first_noise_and_nothing_else(family, data):
    made = experience(family, data, same_noise=True, batch_size=2)
    groups = made.trajectories.states.view(2, G, *made.trajectories.states.shape[1:])
    assert torch.equal(groups[:, :, 0], groups[:, :1, 0].expand(-1, G, -1, -1))
    assert not torch.equal(groups[0, 0, 0], groups[1, 0, 0])
    for group in groups[:, :, 1].flatten(2):  # after the first step
        assert float(torch.pdist(group).min()) > 1


def test_images_without_step_noise_are_the_odes(family, data):
    """From the same starts as with noise; what is trained does not ask for noise."""
    ode = {"objective": "step", "plan": "step", "likelihood": "matching", "sde": "ode", "fraction": 1.0}
    params = small_params(ode, group_size=G)
    method, drawn = method_of(params), data.prompts.rows([1, 3])
    made = collect_experience(family, method, Iteration(1, drawn, range(2 * G)), data.reward, params.train, seed=0)
    noisy = experience(family, data).trajectories.states
    assert torch.equal(made.trajectories.states[:, 0], noisy[:, 0])
    prompts = made.prompts.conditioning.rows(range(2 * G)).to(family.device)
    expected = rollout_ode(lambda step: velocity_function(family, prompts), noisy[:, 0], method.grid.times)
    assert float((made.trajectories.states - expected).abs().max()) < 1e-5
    assert float((made.trajectories.finals - noisy[:, -1]).abs().max()) > 0.1
    context = DrawContext(seed=0, iteration=1, iterations=1, update=0, rows=range(2 * G), total=2 * G)
    chosen = ChunkSelector(method).select(made.trajectories, context)
    assert chosen.assignment.to_steps(chosen.selected.double()).tolist() == [[1.0] * len(PROFILE)] * 2 * G


def test_a_batch_waits_for_the_scores_of_the_one_before(family, data, monkeypatch):
    """`background` is off. The recorded seconds are those of the reward alone."""
    events = []
    scores = Reward.scores

    def slow(self, batch):
        time.sleep(0.1)  # a batch that did not wait would begin meanwhile
        events.append("scored")
        return scores(self, batch)

    monkeypatch.setattr(Reward, "scores", slow)
    sizes = {"group_size": G, "rollout_batch_size": 2, "micro_batch_size": 2}
    params = small_params(CHUNK_WS, reward_in_background=False, **sizes)
    where = Iteration(1, data.prompts.rows([1, 3]), range(2 * G))
    start = time.perf_counter()
    made = collect_experience(
        family, method_of(params), where, data.reward, params.train, seed=0, check=lambda: events.append("evaluated")
    )
    elapsed = time.perf_counter() - start
    assert events == (["evaluated"] * (len(PROFILE) + 1) + ["scored"]) * 3
    assert 0.3 <= made.seconds["reward"] <= elapsed
    assert made.seconds["reward"] <= made.seconds["rollout"] <= elapsed


def test_one_branch_point_gives_one_step_a_row(family, data):
    branching = {"objective": "step", "plan": "step", "branching": {"points": 1, "children": G}, "fraction": 1.0}
    params = small_params(branching, group_size=G)
    method = method_of(params)
    where = Iteration(1, data.prompts.rows([1]), range(starts_per_prompt(G, method.variant.branching)))
    made = collect_experience(family, method, where, data.reward, params.train, seed=0)
    assert made.trajectories.states.shape == (G, 2, *family.latent_shape)
    assert len(set(made.trajectories.first_step.tolist())) == 1
    assert made.trajectories.noisy.sum(dim=1).tolist() == [1] * G


def heldout(family: FluxFamily, data: TrainingData, batch_size: int = 4, seed: int = 9) -> np.ndarray:
    times = time_grid(6, 3.0)
    sizes = {"rollout_batch_size": batch_size, "micro_batch_size": batch_size}
    settings = small_params(CHUNK_WS, heldout={"images_per_prompt": 2, "seed": seed}, **sizes).train
    images = heldout_images(family, times, data.heldout, settings)
    return heldout_scores(images, data.heldout.repeated(2), data.reward)["shapes-vivid"]


def test_heldout_scores_use_fixed_noise(family, data):
    torch.manual_seed(1)
    first = heldout(family, data)
    torch.manual_seed(2)
    assert np.array_equal(heldout(family, data), first)
    assert np.allclose(heldout(family, data, batch_size=1), first, atol=1e-3)
    assert not np.allclose(heldout(family, data, seed=10), first, atol=1e-3)
    assert first.shape == (4,)
    assert first[0] != first[1]  # a prompt's images start from different noises


@contextmanager
def broken(family: FluxFamily, value: float) -> Iterator[None]:
    """The policy with one weight that is no number."""
    weight = family.transformer.proj_out.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight[0, 0] = value
    try:
        yield
    finally:
        with torch.no_grad():
            weight.copy_(before)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_latents_that_are_not_finite_are_an_error_and_no_reward_of_0(value, family, data):
    with broken(family, value):
        with pytest.raises(DataError, match=r"latents of prompt .* are not finite"):
            heldout(family, data)
        with pytest.raises(DataError) as caught:
            experience(family, data, iteration=12)
    assert str(caught.value).startswith(
        f"rollout: the latents of prompt {data.prompts.texts[1]!r} are not finite. The policy has diverged: "
        "lower the learning rate"
    )
