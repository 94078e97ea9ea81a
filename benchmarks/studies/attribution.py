"""What each step earned: `python -m benchmarks.studies.attribution CHECKOUT`.

GRPO gives every step of an image the advantage of the whole image. Proposition 1 of Chunk-GRPO says that a chunk gets
nearer to the truth. Here the truth is measured on the base model: a step's own advantage is the expected reward after
it minus the expected reward before it, and each expectation is a mean over continuations of the SDE from that state.

While no ratio is clipped, an objective multiplies the gradient of step k of image i by w_k A_i: the weight of the step
and the advantage of the image. Two tables compare such weights with the measured advantages A_ik:

- the squared cosine of w_k A_i with A_ik, over all images and steps;
- the squared cosine of the gradient of a batch with the mean gradient of the measured advantages.

A third table has the norm of a batch's gradient by chunk. The first two also compare gains, which need no
continuations: the reward of the image that the network predicts after a step, or a chunk, minus that before it, less
the group's mean. A step of a chunk gets an equal part of the chunk's gain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from benchmarks.studies.finished_run import FinishedRun, finished_run
from benchmarks.tables import parser_of, print_table, write_found
from chunk_grpo.core.log_prob import gaussian_log_prob
from chunk_grpo.core.rollout import rollout_sde, sample_noise
from chunk_grpo.core.step_weights import interval_weights, noise_weights
from chunk_grpo.core.types import Trajectory, Velocity
from chunk_grpo.progress import Meter
from chunk_grpo.seeding import generator
from chunk_grpo.training.method import StepGrid

Array: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.int64]
Score: TypeAlias = Callable[[Tensor], Array]
"""(final latents [B, L, D]) -> rewards [B]."""
SIZES = (2, 3, 4, 7)
EQUAL = "equal: single steps, equal chunks, one chunk"
IMAGE, OWN = "the image's advantage", "measured advantages"
SKETCH = 2**15
"""Places of a sketch of a gradient."""
BATCHES = (8, 24)
"""Prompts of a batch whose gradient is compared: an iteration of `study-vivid`, and of `study-exact`."""


def main(options: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("checkout", type=Path, help="checkout with a finished run")
    parser.add_argument("--json", type=Path, default=Path("attribution.json"), help="result to write")
    parser.add_argument("--prompts", type=int, default=64, help="number of held-out prompts (default: 64)")
    parser.add_argument("--images", type=int, default=8, help="images of a prompt (default: 8)")
    parser.add_argument("--continuations", type=int, default=8, help="of each state, even (default: 8)")
    arguments = parser.parse_args(options)
    with finished_run(arguments.checkout) as run:
        grid = run.grid
        found = measure(run, grid, arguments.prompts, arguments.images, arguments.continuations)
    write_found(arguments.json, **report(grid, found))
    return 0


@dataclass(frozen=True)
class Measured:
    """Numbers of P prompts, G images each, N noisy steps, in units of the standard deviation of a prompt's rewards."""

    values: Array
    """Expected rewards [P, 2, G, N + 1] of `expected`."""
    credits: Mapping[str, Array]
    """What an objective multiplies a step's gradient by, before its weight [P, G, N]: `IMAGE`, `OWN`, and gains."""
    gram: Array
    """Inner products [C, C, P, P, N, N] of the gradients of the C credits."""


def report(grid: StepGrid, found: Measured) -> dict[str, object]:
    """Print the three tables, and return their numbers."""
    values, prompts = found.values, len(found.values)
    weights = weights_of(grid, values)
    shares = [by_prompt(partial(_share_of, values, part), prompts) for part in range(values.shape[-1])]
    decided = ["first noise", *(f"step {step}" for step in range(len(shares) - 1))]
    rows = []
    for part, (name, shown_share) in enumerate(zip(decided, shares, strict=True)):
        of_step = [f"{each[part - 1]:.2f}" if part else "" for each in weights.values()]
        rows.append([name, f"{grid.times[max(part - 1, 0)]:.3f}", shown(shown_share), *of_step])
    title = f"Share of the reward's variance in a prompt, {prompts} prompts, 95 % interval; weights of the steps"
    print_table(title, ("decided by", "t", "share", *weights), rows)
    even = np.ones(values.shape[-1] - 1)
    ways = {name: (IMAGE, each) for name, each in weights.items()}
    ways |= {name: (name, even) for name in found.credits if name != IMAGE}
    cosines = {name: cosines_of(found, *way) for name, way in ways.items()}
    print_table(
        "Squared cosine with the measured advantages, and its ratio to equal weights' with a 95 % interval",
        ("credit of the steps", *(column for title in cosines[EQUAL] for column in (title, "to equal weights"))),
        [
            [name, *(cell for value, ratio in row.values() for cell in (f"{value:.4f}", shown(ratio)))]
            for name, row in cosines.items()
        ],
    )
    norms = norms_by_chunk(found.gram[0, 0], weights)
    if norms:
        print_table(
            "Norm of the gradient of a batch by chunk, of the whole gradient's; in brackets without sampling noise",
            ("weights", "prompts", *(f"chunk of {size}" for size in SIZES)),
            [[name, str(batch), *(f"{norm:.2f} ({mean:.2f})" for norm, mean in row)] for name, batch, row in norms],
        )
    kept = {name: each.tolist() for name, each in weights.items()}
    return {"prompts": prompts, "shares": shares, "weights": kept, "cosines": cosines, "norms": norms}


def norms_by_chunk(gram: Array, weights: Mapping[str, Array]) -> list[tuple[str, int, list[tuple[float, float]]]]:
    """Norms of the gradients of the chunks of `SIZES`: expected in a batch, and of the mean gradient.

    `gram` has the inner products [P, P, N, N] of the image's advantage. Both norms are shares of the whole gradient's
    expected norm in a batch. Rows without an estimate are left out; empty unless the chunks have N steps.
    """
    if sum(SIZES) != gram.shape[-1]:
        return []
    ends = np.cumsum((0, *SIZES))
    found = []
    for name, each in weights.items():
        weighted = gram * each[:, None] * each
        parts = [weighted[..., a:b, a:b].sum(axis=(2, 3)) for a, b in pairwise(ends)]
        for batch in BATCHES:
            whole = _squared_length(weighted.sum(axis=(2, 3)), batch)
            squared = np.array([(_squared_length(part, batch), _between(part)) for part in parts])
            if whole > 0:  # from few prompts an estimate may be below 0
                norms = np.sqrt(squared.clip(min=0) / whole)
                found.append((name, batch, [(float(norm), float(mean)) for norm, mean in norms]))
    return found


def cosines_of(found: Measured, credit: str, weights: Array) -> dict[str, tuple[float, tuple[float, float, float]]]:
    """Squared cosines of a credit's coefficients and gradients: each, and its ratio to equal weights'."""
    prompts, even = len(found.values), np.ones_like(weights)

    def coefficients(name: str, w: Array, kept: Rows) -> float:
        return 1.0 if name == OWN else coefficient_cosine(found.values[kept], found.credits[name][kept] * w)

    def gradient(batch: int, name: str, w: Array, kept: Rows) -> float:
        kinds = np.array([list(found.credits).index(each) for each in (name, OWN)])
        return gradient_cosine(found.gram[np.ix_(kinds, kinds, kept, kept)], w, batch)

    def compared(cosine: Callable[[str, Array, Rows], float]) -> tuple[float, tuple[float, float, float]]:
        return cosine(credit, weights, np.arange(prompts)), by_prompt(
            lambda kept: cosine(credit, weights, kept) / cosine(IMAGE, even, kept), prompts
        )

    of_gradients = {f"gradient, {batch} prompts": compared(partial(gradient, batch)) for batch in BATCHES}
    return {"coefficients": compared(coefficients), **of_gradients}


def _share_of(values: Array, part: int, prompts: Rows) -> float:
    return float(share(values[prompts])[part])


def measure(run: FinishedRun, grid: StepGrid, prompts: int, images: int, continuations: int) -> Measured:
    """Measure the base model.

    Prompts whose rewards are all equal give no gradient in training and are left out; so P may be below `prompts`.
    """
    base, all_values, all_credits, gradients = run.model.base, [], [], []
    weights = list(base.trainable_parameters())
    for weight in weights:
        weight.requires_grad_(True)
    count = min(prompts, len(run.prompts))
    with Meter("prompts", count) as meter:
        for row in range(count):
            one = run.prompts.rows([row])
            conditioning = one.conditioning.to(base.device)

            def velocity(x: Tensor, t: Tensor, c=conditioning) -> Tensor:  # type: ignore[no-untyped-def]
                return base.velocity(x, t, c.rows([0] * len(x)))

            def score(latents: Tensor, row: int = row) -> Array:
                found = run.scores(latents, [row] * len(latents))
                return np.asarray(sum(weight * found[name] for name, weight in run.params.rewards.items()))

            noise = generator("attribution", one.ids[0])
            start = sample_noise((images, *base.latent_shape), noise).to(base.device)
            made = rolled(grid, velocity, start, noise)
            states = made.states
            deviation = score(states[:, -1]).std(ddof=1)
            if deviation > 0:
                values = expected(velocity, score, states, grid, continuations, noise) / deviation
                given = credits_of(values, predicted(score, made) / deviation)
                of_steps = step_gradients(velocity, weights, states, grid, list(given.values()))
                gradients.append(sketched(of_steps))
                all_values.append(values)
                all_credits.append(given)
            meter.advance()
    together = {name: np.stack([each[name] for each in all_credits]) for name in all_credits[0]}
    return Measured(np.stack(all_values), together, inner_products(torch.stack(gradients)))


def rolled(grid: StepGrid, velocity: Velocity, start: Tensor, noise: torch.Generator) -> Trajectory:
    """Trajectories of G images from x1 [G, L, D], with the images that they predict before each noisy step."""
    steps = range(grid.num_sde_steps)
    return rollout_sde(velocity, start, grid.times, grid.noise, noise, sampler=grid.sampler, predict_at=steps)


def predicted(score: Score, made: Trajectory) -> Array:
    """Rewards [G, N + 1] of the images of `rolled` that are predicted, and of the images."""
    if made.predicted is None:
        raise ValueError("give trajectories of `rolled`, which keeps predicted images; these have none")
    return np.stack([score(each) for each in (*made.predicted.unbind(dim=1), made.states[:, -1])], axis=1)


def credits_of(values: Array, predictions: Array) -> dict[str, Array]:
    """Credits [G, N] of the steps of a prompt's images, from `expected` [2, G, N + 1] and `predicted` [G, N + 1]."""
    steps = predictions.shape[1] - 1
    gains = np.diff(predictions, axis=1)
    found = {
        IMAGE: np.repeat(advantages(values)[:, None], steps, axis=1),
        OWN: np.diff(values.mean(axis=0), axis=1),
        "gains of steps": gains,
    }
    for sizes in (SIZES, (4, 4, 4, 4)):
        if sum(sizes) == steps:
            ends = np.cumsum((0, *sizes))
            of_chunks = np.diff(predictions[:, ends], axis=1) / sizes
            found[f"gains of chunks {', '.join(map(str, sizes))}"] = np.repeat(of_chunks, sizes, axis=1)
    centred = {name: each - each.mean(axis=0) for name, each in found.items() if name not in (IMAGE, OWN)}
    return {**found, **centred}


def continued(grid: StepGrid, velocity: Velocity, x: Tensor, step: int, noise: torch.Generator) -> Tensor:
    """States [B, N + 2 - step, L, D] from x [B, L, D] at the beginning of a noisy step to the image."""
    return rollout_sde(velocity, x, grid.times[step:], grid.noise[step:], noise, sampler=grid.sampler).states


def expected(
    velocity: Velocity, score: Score, states: Tensor, grid: StepGrid, continuations: int, noise: torch.Generator
) -> Array:
    """Expected reward [2, G, N + 1] before each noisy step, and after the last one, of images [G, N + 2, L, D].

    Two independent estimates, each the mean over half of the continuations of a state. The step after the noisy ones
    draws nothing, so that the last expectation is the reward itself.
    """
    found = []
    steps = len(grid.noise)
    for step in range(steps):
        starts = states[:, step].repeat_interleave(continuations, dim=0)  # [G * M, L, D]
        finals = continued(grid, velocity, starts, step, noise)[:, -1]
        found.append(score(finals).reshape(len(states), 2, -1).mean(axis=2).T)  # [2, G]
    rewards = score(states[:, -1])  # [G]
    return np.stack([*found, np.stack([rewards, rewards])], axis=2)


def step_gradients(
    velocity: Velocity, weights: Sequence[Tensor], states: Tensor, grid: StepGrid, given: Sequence[Array]
) -> Tensor:
    """Gradients [C, N, W] of sum_i c_ik log p(step k of image i), for each credit c [G, N]."""
    found = []
    for step, strength in enumerate(grid.noise):
        x, after = states[:, step], states[:, step + 1]
        t, t_next = float(grid.times[step]), float(grid.times[step + 1])
        with torch.enable_grad():
            moved = velocity(x, torch.full((len(x),), t).to(x))
            transition = grid.sampler.transition(x, moved, t, t_next, float(strength))
            log_probs = gaussian_log_prob(after, transition.mean, transition.std)  # [G]
        of_step = []
        for credit in given:
            c = torch.from_numpy(credit[:, step]).to(log_probs)
            parts = torch.autograd.grad(log_probs, weights, c, retain_graph=True, materialize_grads=True)
            of_step.append(torch.cat([part.flatten() for part in parts]))
        found.append(torch.stack(of_step))
    return torch.stack(found, dim=1)


def sketched(gradients: Tensor) -> Tensor:
    """Count sketches [..., D] of gradients [..., W]: each weight is added to or subtracted from one of D places.

    Sketches keep inner products, with an error of about 1 / sqrt(D) of the product of the lengths. The gradients of all
    prompts would not fit into memory.
    """
    width = gradients.shape[-1]
    draw = torch.Generator().manual_seed(0)
    place = torch.randint(SKETCH, (width,), generator=draw)
    sign = torch.randint(2, (width,), generator=draw).to(gradients) * 2 - 1
    return gradients.new_zeros(*gradients.shape[:-1], SKETCH).index_add_(-1, place, gradients * sign)


def inner_products(gradients: Tensor) -> Array:
    """Inner products [C, C, P, P, N, N] of the gradients [P, C, N, W]: of credits, prompts and steps."""
    prompts, count, steps, _ = gradients.shape
    flat = gradients.flatten(0, 2)
    table = (flat @ flat.T).reshape(prompts, count, steps, prompts, count, steps)
    return np.asarray(table.permute(1, 4, 0, 3, 2, 5).double().numpy())


def advantages(values: Array) -> Array:
    """Advantages [..., G] of images from expected rewards [..., 2, G, N + 1]: the reward less the group's mean."""
    rewards = values[..., 0, :, -1]
    return np.asarray(rewards - rewards.mean(axis=-1, keepdims=True))


def share(values: Array) -> Array:
    """Share of the variance that the first noise [0] and each step [1 + k] decide, [1 + N], from [P, 2, G, N + 1].

    Two independent estimates of the same value are multiplied, whose errors drop out of the mean. The parts are
    uncorrelated, so the variances of an infinite sample sum to the reward's; here the shares sum to 1.
    """
    first, group = values[..., 0], values.shape[2]  # [P, 2, G]
    start = (first - first.mean(axis=2, keepdims=True)).prod(axis=1).mean() * group / (group - 1)
    steps = np.diff(values, axis=3).prod(axis=1).mean(axis=(0, 1))  # [N]
    parts = np.concatenate([[start], steps])
    return np.asarray(parts / parts.sum())


def weights_of(grid: StepGrid, values: Array) -> dict[str, Array]:
    """Weights [N] of the steps, mean 1, of the objectives while no ratio is clipped."""
    steps = grid.num_sde_steps
    by_size = np.repeat(SIZES, SIZES)
    found = {EQUAL: np.ones(steps)}
    if len(by_size) == steps:
        found["chunks 2, 3, 4, 7"] = 1 / by_size
        found["chunks 7, 4, 3, 2"] = 1 / by_size[::-1]
    found["noise (TempFlow)"] = noise_weights(grid.transition_stds()).numpy()
    found["1 / width (Guard)"] = interval_weights(grid.widths()).numpy()
    found["variance of the step"] = share(values)[1:].clip(min=0)
    return {name: each / each.mean() for name, each in found.items()}


def coefficient_cosine(values: Array, coefficients: Array) -> float:
    """Squared cosine of coefficients [P, G, N] with the steps' own advantages, of values [P, 2, G, N + 1]."""
    steps = np.diff(values, axis=3)  # [P, 2, G, N]
    product = (coefficients * steps.mean(axis=1)).sum(axis=2).mean()
    lengths = (coefficients**2).sum(axis=2).mean() * steps.prod(axis=1).sum(axis=2).mean()
    return float(product**2 / lengths)


def gradient_cosine(gram: Array, weights: Array, batch: int) -> float:
    """Squared cosine of a batch's gradient with the mean gradient of the measured advantages.

    `gram` has the inner products [2, 2, P, P, N, N] of a credit and of the measured advantages, `weights` [N] multiply
    the credit, and `batch` is the number of its prompts. The means are over pairs of different prompts, so that the
    noise of a prompt is not taken for agreement.
    """
    own = np.einsum("pqkl,k,l->pq", gram[0, 0], weights, weights)
    across = np.einsum("pqkl,k->pq", gram[0, 1], weights)
    truth = gram[1, 1].sum(axis=(2, 3))
    return float(_between(across) ** 2 / (_squared_length(own, batch) * _between(truth)))


def _squared_length(own: Array, batch: int) -> float:
    """Expected squared norm of a batch's gradient, from inner products [P, P] of the gradients of prompts."""
    mean_length = _between(own)
    return float(mean_length + (np.trace(own) / len(own) - mean_length) / batch)


def _between(table: Array) -> float:
    """Mean of the entries [P, P] of different prompts."""
    prompts = len(table)
    return float((table.sum() - np.trace(table)) / (prompts * (prompts - 1)))


def by_prompt(figure: Callable[[Rows], float], prompts: int) -> tuple[float, float, float]:
    """A figure of the prompts' numbers, with its 95 % interval by the jackknife over prompts."""
    all_of_them = np.arange(prompts)
    whole = figure(all_of_them)
    without = np.array([figure(np.delete(all_of_them, left)) for left in range(prompts)])
    error = np.sqrt((prompts - 1) / prompts * ((without - without.mean()) ** 2).sum())
    wide = float(stats.t.ppf(0.975, prompts - 1) * error)
    return whole, whole - wide, whole + wide


def shown(found: tuple[float, float, float]) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(*found)


if __name__ == "__main__":
    sys.exit(main())
