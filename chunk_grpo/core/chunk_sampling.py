"""Selection of the chunks that an update trains, and their inclusion probabilities."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chunk_grpo.core.choices import SELECTIONS, Selection, implemented
from chunk_grpo.core.chunking import ChunkPlan, chunk_means
from chunk_grpo.core.dynamics import require_profile
from chunk_grpo.core.precision import at_least_float32

LOG_TIME_SPACING = 1 / 16
"""Distance of the quadrature nodes of `inclusion_probabilities` in log time; 1/8 already gives 1e-12."""


def chunk_weights(profile: Sequence[float], plan: ChunkPlan) -> Tensor:
    """Sampling weight of each chunk: its mean relative L1 distance divided by the trajectory's mean.

    Paper: Eq. (16). The profile must come from SDE rollouts: under the ODE the curve rises and inverts the
    weights (docs/deviations.md).

    Args:
        profile: Mean relative L1 distance of each trainable step, [N], positive.
        plan: The chunks of the N steps.

    Returns:
        float64 [K], positive; their mean weighted by chunk size is 1.

    Raises:
        ValueError: A profile value is not positive and finite, or N is not the plan's number of steps.
    """
    values = torch.tensor(require_profile("profile", profile), dtype=torch.float64)
    return chunk_means(values, plan) / values.mean()


def num_selected(num_chunks: int, fraction: float) -> int:
    """Number of chunks that an update trains of each trajectory: int(K * fraction), rounded down as released.

    Paper: Eq. (16) and the fraction named above it; Table 6 sets 0.5.

    Args:
        num_chunks: Number of chunks K, at least 1.
        fraction: Fraction of chunks to train, in (0, 1].

    Returns:
        A number from 1 to K.

    Raises:
        ValueError: The fraction is out of range or leaves no chunk.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}")
    count = int(num_chunks * fraction)
    if count < 1:
        raise ValueError(
            f"fraction must leave at least one chunk: int({num_chunks} chunks * {fraction}) = 0; "
            f"use at least {1 / num_chunks:.4g}"
        )
    return count


def select_chunks(weights: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Draw the chunks to train without replacement, independently for each trajectory.

    Paper: Eq. (16), used as the released code does: drawn one after the other from what is left, without
    correction, so that a chunk's chance to be drawn is not proportional to its weight (docs/deviations.md).

    The draws are an exponential race: of the chunks j with noise E_j of rate 1 the largest w_j / E_j are taken.
    `torch.multinomial` does the same: for positive rows of equal length the result is equal bit for bit.

    Args:
        weights: Sampling weight of each chunk of each trajectory, [B, K], at least 0, on any scale: equal
            weights draw uniformly, and a weight of 0 is never drawn, such as the padding of a shorter row.
        fraction: Fraction of a trajectory's chunks of positive weight to train, in (0, 1].
        generator: Source of randomness; the result is on its device.

    Returns:
        bool [B, K]; of each row's n chunks of positive weight int(n * fraction) are true.

    Raises:
        ValueError: The shape is not [B, K], a weight is negative or not finite, a row has no positive weight,
            or the fraction is out of range or leaves a row no chunk.
    """
    w = _row_weights(weights).to(generator.device)
    candidates = w > 0
    counts = torch.tensor([num_selected(n, fraction) for n in candidates.sum(dim=1).tolist()])  # [B]
    noise = torch.empty_like(w).exponential_(generator=generator)
    priority = torch.where(candidates, w / noise, -1.0)  # weights of 0 come last
    order = priority.argsort(dim=1, descending=True)  # [B, K]
    taken = torch.arange(w.shape[1]) < counts.unsqueeze(1)  # [B, K]
    return torch.zeros_like(candidates).scatter_(1, order, taken.to(w.device))


def inclusion_probabilities(weights: Tensor, count: int) -> Tensor:
    """Probability of each chunk to be among `count` weighted draws without replacement, as in `select_chunks`.

    From the exponential race: if E_j is exponential with rate w_j, the E_j in rising order are successive
    draws, so chunk j is drawn when at most count - 1 of the others come before it:

        pi_j = integral over t > 0 of w_j * exp(-w_j * t) * P(at most count - 1 of the others have E_i < t)

    The number of the others before t is Poisson-binomial, summed by dynamic programming. In log time the
    integrand is analytic and falls off at both ends, where the trapezoidal rule converges exponentially:
    relative errors were below 1e-11 for weights up to 1e4 apart and up to 49 chunks.

    Args:
        weights: Sampling weights [K], positive, on any scale.
        count: Number of chunks drawn, from 1 to K.

    Returns:
        float64 [K], in (0, 1]; they sum to count.

    Raises:
        ValueError: A weight is not positive and finite, or count is out of range.
    """
    if weights.ndim != 1:
        raise ValueError(f"weights must be [K] positive numbers, got shape {tuple(weights.shape)}")
    w = _relative_weights(weights)
    if not 1 <= count <= len(w):
        raise ValueError(f"count must be from 1 to the number of chunks {len(w)}, got {count}")
    first = -13 * math.log(10)  # the part before has a relative mass of 1e-13 * K
    last = math.log(40 / float(w.min()))  # the part after has a mass of exp(-40)
    num_nodes = math.ceil((last - first) / LOG_TIME_SPACING) + 1
    log_time = first + LOG_TIME_SPACING * torch.arange(num_nodes, dtype=torch.float64, device=w.device)
    hazard = w.unsqueeze(1) * log_time.exp()  # w_j t, [K, nodes]
    return LOG_TIME_SPACING * (hazard * torch.exp(-hazard) * _few_others_before(hazard, count)).sum(dim=1)


def importance_weights(weights: Tensor, count: int) -> Tensor:
    """Factors that undo the bias of weighted sampling: count / (K * pi_j).

    The Horvitz-Thompson estimator: the mean of factor_j * x_j over the selected chunks has the mean of x_j over
    all chunks as its expectation for any weights. The paper trains without such a correction.

    Args:
        weights: Sampling weights [K], positive, on any scale.
        count: Number of chunks drawn, from 1 to K.

    Returns:
        float64 [K], at least count / K; all 1 for equal weights.

    Raises:
        ValueError: A weight is not positive and finite, or count is out of range.
    """
    chances = inclusion_probabilities(weights, count)
    return count / (len(chances) * chances)


def tempered_weights(weights: Tensor, exponent: float) -> Tensor:
    """Interpolate between the given sampling weights and equal ones: w ** exponent.

    The exponent is the inverse of a sampling temperature: temperature 1 is exponent 1, infinite is 0. Unlike
    the temperature it stays finite up to uniform sampling, so that a schedule can be linear in it.

    Args:
        weights: Sampling weights [..., K], positive, on any scale.
        exponent: Exponent in [0, 1]; 0 is uniform sampling, 1 keeps the weights.

    Returns:
        float64 [..., K], positive, with mean 1 over the chunks.

    Raises:
        ValueError: A weight is not positive and finite, or the exponent is out of range.
    """
    if not 0 <= exponent <= 1:
        raise ValueError(f"exponent must be in [0, 1], got {exponent}")
    tempered = _relative_weights(weights) ** exponent
    return tempered / tempered.mean(dim=-1, keepdim=True)


def annealed_exponent(iteration: int, iterations: int) -> float:
    """Exponent of `tempered_weights` that falls linearly from 1 in the first iteration to 0 in the last.

    A run thus begins with the weights of Eq. (16) and ends with uniform sampling.

    Args:
        iteration: Number of the iteration, from 1 to iterations.
        iterations: Number of iterations of the run, at least 1; a run of one keeps the weights.

    Returns:
        The exponent, in [0, 1].

    Raises:
        ValueError: The iteration is out of range.
    """
    if not 1 <= iteration <= iterations:
        raise ValueError(f"iteration must be from 1 to {iterations}, got {iteration}")
    return 1 - (iteration - 1) / max(iterations - 1, 1)


@dataclass(frozen=True)
class SelectionRule:
    """Rule by which chunks are drawn."""

    exponent: Callable[[int, int], float] | None = None
    """(iteration from 1, iterations) -> exponent of the Eq. (16) weights; None draws uniformly."""
    is_corrected: bool = False
    """Whether `importance_weights` undo the bias of the draw."""
    of_trajectory: bool = False
    """Whether each trajectory's weights come from its own L1 distances, and not from the profile."""


def _one(iteration: int, iterations: int) -> float:
    return 1.0


SELECTION_RULES: Mapping[Selection, SelectionRule] = implemented(
    SELECTIONS,
    "core/chunk_sampling.py",
    {
        "uniform": SelectionRule(),
        "weighted": SelectionRule(_one),
        "unbiased": SelectionRule(_one, is_corrected=True),
        "annealed": SelectionRule(annealed_exponent),
        "trajectory": SelectionRule(_one, of_trajectory=True),
    },
)


def _few_others_before(hazard: Tensor, count: int) -> Tensor:
    """Probability that at most count - 1 chunks other than j come before each time, [K, nodes].

    `table` holds the probability of each number below count. The loop adds one chunk at a time.
    """
    num_chunks, num_nodes = hazard.shape
    before = -torch.expm1(-hazard)  # 1 - exp(-w_i t)
    table = hazard.new_zeros(num_chunks, num_nodes, count)  # [K, nodes, count]
    table[..., 0] = 1
    for other in range(num_chunks):
        chance = before[other].expand(num_chunks, -1).clone()
        chance[other] = 0  # exclude chunk j itself
        chance = chance.unsqueeze(-1)
        one_more = chance * table[..., :-1]
        table = table * (1 - chance)
        table[..., 1:] += one_more
    return table.sum(dim=-1)


def _row_weights(weights: Tensor) -> Tensor:
    """Validate weights [B, K] and return them in float32 or wider."""
    if weights.ndim != 2 or weights.numel() == 0:
        raise ValueError(f"weights must have shape [B, K], B and K at least 1, got shape {tuple(weights.shape)}")
    valid = torch.isfinite(weights) & (weights >= 0)
    if not bool(valid.all()):
        raise ValueError(f"weights must be finite and at least 0, got {weights[~valid].tolist()}")
    empty = ~(weights > 0).any(dim=1)
    if bool(empty.any()):
        raise ValueError(
            f"every row of weights needs a positive one, got none in the rows {empty.nonzero().flatten().tolist()}"
        )
    return at_least_float32(weights).contiguous()


def _relative_weights(weights: Tensor) -> Tensor:
    """Validate weights [..., K] and return them divided by the largest of K, in float64."""
    if weights.numel() == 0 or not bool((torch.isfinite(weights) & (weights > 0)).all()):
        raise ValueError(f"weights must be [..., K] positive numbers, got {weights.tolist()}")
    w = weights.to(torch.float64)
    return w / w.amax(dim=-1, keepdim=True)
