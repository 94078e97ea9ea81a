"""What the held-out scores of a training decide: the best policy, the end, and how far an update may go.

Training ends when `patience` evaluations in a row bring no new best. A controlled variant is also held back from reward
hacking: after a score that has fallen by more than a tolerance below the best one, training goes back to the best
state, and continues with a higher KL coefficient and a smaller clip range. After too many falls it ends there. That
rule is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from chunk_grpo.config.training import ControllerParams
from chunk_grpo.core.objective import Bounds

Verdict = Literal["best", "within", "fallen"]


class Controller:
    """Follows the held-out score of a training.

    Attributes:
        falls: Number of falls so far.
        goes_back: Whether training goes back to the best state after a fall: whether the variant is controlled.
    """

    def __init__(self, patience: int | None, settings: ControllerParams | None, bounds: Bounds) -> None:
        """Start without evaluations.

        Args:
            patience: Evaluations without a new best that end training; None: no number does.
            settings: Tolerance and steps; None: a variant that is not controlled.
            bounds: The variant's bounds.
        """
        self._patience, self._settings, self._first = patience, settings, bounds
        self._best: float | None = None
        self._since_best = 0
        self._kl_coef, self._clip_scale = bounds.kl_coef, 1.0
        self.falls, self.goes_back = 0, settings is not None

    @property
    def bounds(self) -> Bounds:
        """Bounds of the next updates."""
        return replace(self._first, clip_range=self._first.clip_range * self._clip_scale, kl_coef=self._kl_coef)

    @property
    def has_ended(self) -> bool:
        """Whether training is over."""
        if self._patience is not None and self._since_best >= self._patience:
            return True
        return self._settings is not None and self.falls > self._settings.falls

    def judge(self, score: float) -> Verdict:
        """Add a held-out score, finite, higher is better, and set the bounds.

        Returns:
            "best": the first score, or one above all earlier ones. "fallen": go back to the best state. "within": else.
        """
        if self._best is None or score > self._best:
            self._best, self._since_best = score, 0
            return "best"
        self._since_best += 1
        if self._settings is None or score >= self._best - self._settings.tolerance:
            return "within"
        self.falls += 1
        if self.falls <= self._settings.falls:
            self._kl_coef = max(self._kl_coef * self._settings.kl_factor, self._settings.kl_coef)
            self._clip_scale *= self._settings.clip_factor
        return "fallen"

    def metrics(self) -> dict[str, float]:
        """KL coefficient, factor of the clip range and number of falls by name; empty if not controlled."""
        if self._settings is None:
            return {}
        return {
            "controller/kl_coef": self._kl_coef,
            "controller/clip_scale": self._clip_scale,
            "controller/falls": float(self.falls),
        }

    def state(self) -> dict[str, Any]:
        """Input of `load_state`, for a checkpoint."""
        return {
            "best": self._best,
            "since_best": self._since_best,
            "kl_coef": self._kl_coef,
            "clip_scale": self._clip_scale,
            "falls": self.falls,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._best, self._since_best, self.falls = state["best"], state["since_best"], state["falls"]
        self._kl_coef, self._clip_scale = state["kl_coef"], state["clip_scale"]
