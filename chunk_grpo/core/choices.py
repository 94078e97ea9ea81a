"""The named choices of a method, with their labels in reports and their sources.

Configuration, rules, core and report read these tables; the names are defined only here. A new choice needs a name and
an entry here, and an implementation in the module that its table names. This module does not import torch, so that
params.yaml is read quickly.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, get_args

Name = TypeVar("Name", bound=Hashable)
Implementation = TypeVar("Implementation")

MIN_GUIDED_SIZE = 2
"""Fewest steps in a chunk of a guided plan: a line through one point fits anything."""


@dataclass(frozen=True)
class Choice:
    """One value of a setting."""

    label: str
    """Text in the report."""
    source: str
    """Equation of the paper (arXiv 2510.21583 v1), or another source."""


def _table(names: Any, choices: Mapping[Name, Choice]) -> Mapping[Name, Choice]:
    """Check that the table has one entry for each name of a Literal, and return it.

    Raises:
        TypeError: A name has no entry, or an entry no name.
    """
    return implemented(dict.fromkeys(get_args(names)), "core/choices.py", choices)


def implemented(
    choices: Mapping[Name, Any], where: str, found: Mapping[Name, Implementation]
) -> Mapping[Name, Implementation]:
    """Check at import that each choice has an implementation.

    Args:
        choices: Table of this module.
        where: File of the implementations, for the message.
        found: Implementation by name.

    Returns:
        `found`.

    Raises:
        TypeError: A choice has no implementation, or an implementation has no choice.
    """
    for names, text in ((choices.keys() - found.keys(), "lacks"), (found.keys() - choices.keys(), "has unknown")):
        if names:
            raise TypeError(f"{where} {text} {', '.join(sorted(map(str, names)))}")
    return found


Objective: TypeAlias = Literal["step", "chunk"]
OBJECTIVES: Mapping[Objective, Choice] = _table(
    Objective, {"step": Choice("step objective", "Eq. (5)-(6)"), "chunk": Choice("chunk objective", "Eq. (13)-(14)")}
)
"""Level of the importance ratio; implemented in core/assignment.py."""

Sde: TypeAlias = Literal["flow", "dance", "cps", "ode"]
SDES: Mapping[Sde, Choice] = _table(
    Sde,
    {
        "flow": Choice("Flow-SDE steps", "Eq. (7); Flow-GRPO, arXiv 2505.05470"),
        "dance": Choice("Dance-SDE steps", "Eq. (7); Dance-GRPO, arXiv 2505.07818"),
        "cps": Choice("CPS steps", "coefficients-preserving sampling, arXiv 2509.05952"),
        "ode": Choice("steps without noise", "Eq. (3)"),
    },
)
"""Noise of a step; implemented in core/sde.py."""

Solver: TypeAlias = Literal["euler", "dpm2"]
SOLVERS: Mapping[Solver, Choice] = _table(
    Solver,
    {
        "euler": Choice("Euler steps", "Eq. (3)"),
        "dpm2": Choice("steps of second order (DPM-Solver++)", "DPM-Solver++ (2M), arXiv 2211.01095"),
    },
)
"""Rule of the ODE's steps; implemented in core/solvers.py."""

Selection: TypeAlias = Literal["uniform", "weighted", "unbiased", "annealed", "trajectory"]
SELECTIONS: Mapping[Selection, Choice] = _table(
    Selection,
    {
        "uniform": Choice("selection uniform", "released code"),
        "weighted": Choice("selection weighted", "Eq. (16)"),
        "unbiased": Choice("selection unbiased", "Eq. (16) with Horvitz-Thompson weights"),
        "annealed": Choice("selection annealed", "ours: from Eq. (16) to uniform"),
        "trajectory": Choice("selection trajectory", "Eq. (16) of each trajectory, released code"),
    },
)
"""Rule by which chunks are drawn; implemented in core/chunk_sampling.py."""

StepWeights: TypeAlias = Literal["uniform", "noise", "interval", "chunk-size"]
STEP_WEIGHTS: Mapping[StepWeights, Choice] = _table(
    StepWeights,
    {
        "uniform": Choice("step weights uniform", "Eq. (5)"),
        "noise": Choice("step weights noise", "TempFlow-GRPO, arXiv 2508.04324, Eq. (8)"),
        "interval": Choice("step weights interval", "1 / dt: GRPO-Guard, arXiv 2510.22319"),
        "chunk-size": Choice("step weights chunk-size", "those that Eq. (13) implies on policy: the control"),
    },
)
"""Weights of the step objective's terms; implemented in core/step_weights.py."""

RatioNorm: TypeAlias = Literal["none", "guard"]
RATIO_NORMS: Mapping[RatioNorm, Choice] = _table(
    RatioNorm,
    {
        "none": Choice("ratio norm none", "Eq. (6), (14)"),
        "guard": Choice("ratio norm guard", "GRPO-Guard, arXiv 2510.22319"),
    },
)
"""Normalisation of the log-ratio; implemented in core/ratios.py."""

TrustRegion: TypeAlias = Literal["clip", "divergence"]
TRUST_REGIONS: Mapping[TrustRegion, Choice] = _table(
    TrustRegion,
    {
        "clip": Choice("trust region by clipped ratios", "Eq. (5), (13)"),
        "divergence": Choice("trust region by divergence", "Flow-DPPO, arXiv 2606.11025"),
    },
)
"""Bound on an update's move away from the sampling policy; implemented in core/objective.py."""


Likelihood: TypeAlias = Literal["transition", "matching", "nft"]
LIKELIHOODS: Mapping[Likelihood, Choice] = _table(
    Likelihood,
    {
        "transition": Choice("log p of the sampled steps", "Eq. (6)"),
        "matching": Choice("matching loss of noised images (AWM)", "AWM, arXiv 2509.25050"),
        "nft": Choice("implicit policies on noised images (DiffusionNFT)", "DiffusionNFT, arXiv 2509.16117"),
    },
)
"""What stands for log p of a step; implemented in training/update.py."""


def needs_old_means(ratio_norm: RatioNorm, trust_region: TrustRegion, likelihood: Likelihood = "transition") -> bool:
    """Whether an update needs the means, or for DiffusionNFT the velocities, of the sampling policy."""
    return ratio_norm != "none" or trust_region != "clip" or likelihood == "nft"


AdvantageStd: TypeAlias = Literal["group", "global"]
ADVANTAGE_STDS: Mapping[AdvantageStd, Choice] = _table(
    AdvantageStd,
    {
        "group": Choice("group standard deviation of the rewards", "Eq. (4)"),
        "global": Choice("global standard deviation of the rewards", "Flow-GRPO, first release"),
    },
)
"""Standard deviation that divides the rewards; implemented in core/advantages.py."""

Credit: TypeAlias = Literal["image", "chunk-gains"]
CREDITS: Mapping[Credit, Choice] = _table(
    Credit,
    {
        "image": Choice("advantage of the image in all chunks", "Eq. (4), (13)"),
        "chunk-gains": Choice(
            "advantages by the gain of each chunk",
            "ours; gains of steps: DenseGRPO, arXiv 2601.20218; Stepwise-Flow-GRPO, arXiv 2603.28718",
        ),
    },
)
"""What a chunk's advantage is made of; implemented in training/advantages.py."""

Combine: TypeAlias = Literal["rewards", "advantages", "gdpo"]
COMBINATIONS: Mapping[Combine, Choice] = _table(
    Combine,
    {
        "rewards": Choice("rewards combined by rewards", "the weighted sum of rewards, then Eq. (4)"),
        "advantages": Choice("rewards combined by advantages", "Eq. (4) for each reward, then the weighted sum"),
        "gdpo": Choice("rewards combined as in GDPO", "GDPO, arXiv 2601.05242"),
    },
)
"""Whether rewards or advantages are summed; implemented in training/advantages.py."""
